"""What end-to-end tests of telemetry share: gateways of OTLP, a plain OTLP server, and the verdict.

Spans are known by their ids, data points and log records by an attribute `id`.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import yaml
from tests.gateway.processes import Gateway
from tests.patience import until
from tests.ports import free_port

from holdfast.signals.otlp.codec import item_lists
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

# How many stored requests are joined at most: what a kill may bring twice.
JOINED_MAX = 5

# By signal: how often each id arrived.
Arrivals = dict[OtlpKind, Counter[str]]


class Sending(NamedTuple):
    """What a sender did: the ids of one request, and whether it was told that they are safe."""

    kind: OtlpKind
    ids: tuple[str, ...]
    answered: bool


def otlp_request(kind: OtlpKind, ids: Iterable[str]) -> bytes:
    """Return a request with an item for each id (16 hexadecimal digits)."""
    request: Any = REQUESTS[kind]()
    if kind is OtlpKind.TRACES:
        spans = request.resource_spans.add().scope_spans.add().spans
        for one in ids:
            span_id = bytes.fromhex(one)
            spans.add(span_id=span_id, trace_id=span_id * 2, name="work", end_time_unix_nano=1)
        return bytes(request.SerializeToString())
    if kind is OtlpKind.LOGS:
        items = request.resource_logs.add().scope_logs.add().log_records
    else:
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="work")
        items = metric.gauge.data_points
    for one in ids:
        items.add(time_unix_nano=1).attributes.add(key="id").value.string_value = one
    return bytes(request.SerializeToString())


def ids_in(kind: OtlpKind, body: bytes) -> Iterator[str]:
    """Yield the ids of the items of a request."""
    for items in item_lists(kind, REQUESTS[kind].FromString(body)):
        for item in items:
            if kind is OtlpKind.TRACES:
                yield item.span_id.hex()
            else:
                yield from (one.value.string_value for one in item.attributes if one.key == "id")


class OtlpSink(grpc.GenericRpcHandler):
    """A plain OTLP server of other hands: it counts the ids of all items."""

    def __init__(self, port: int = 0) -> None:
        self._lock = threading.Lock()
        self._arrived: Arrivals = {kind: Counter() for kind in OtlpKind}
        self.server = grpc.server(futures.ThreadPoolExecutor(2), [self])
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def service(self, details: Any) -> Any:
        (kind,) = [kind for kind in OtlpKind if kind.grpc_path == details.method]
        return grpc.unary_unary_rpc_method_handler(partial(self._take, kind))

    def _take(self, kind: OtlpKind, body: bytes, call: grpc.ServicerContext) -> bytes:
        with self._lock:
            self._arrived[kind].update(ids_in(kind, body))
        return b""

    def arrivals(self) -> Arrivals:
        with self._lock:
            return {kind: counts.copy() for kind, counts in self._arrived.items()}

    def stop(self) -> None:
        self.server.stop(None).wait()


def otlp_exporter(port: int, **config: Any) -> dict[str, Any]:
    """Return an exporter that tries often, so that tests need not wait."""
    given = {"url": f"http://127.0.0.1:{port}", "max_batch_events": JOINED_MAX, **config}
    return {
        "kind": "exporter",
        "type": "otlp",
        "config": given,
        "delivery": {"retry_max": "50ms"},
    }


class TelemetryGateway(Gateway):
    """One that receives OTLP, over gRPC and HTTP, and sends it to all its exporters."""

    def __init__(self, folder: Path, exporters: dict[str, Any]) -> None:
        folder.mkdir()
        self.grpc_port, self.http_port = free_port(), free_port()
        super().__init__(folder, exporters)

    def configure(self, nodes: dict[str, Any]) -> None:
        addresses = {
            "listening_addr": f"127.0.0.1:{self.grpc_port}",
            "http_listening_addr": f"127.0.0.1:{self.http_port}",
        }
        receiver = {"kind": "receiver", "type": "otlp", "to": list(nodes), "config": addresses}
        whole = {**self._settings, "nodes": {"in": receiver, **nodes}}
        self.config.write_text(yaml.safe_dump(whole, sort_keys=False))


class Killer(threading.Thread):
    """Kills a gateway at random moments while something is sent to it, and starts it again."""

    def __init__(self, gateway: TelemetryGateway, sent: list[Sending], kills: int) -> None:
        super().__init__(name="killer")
        self._gateway = gateway
        self._sent = sent
        self._kills = kills
        self._dice = random.Random(1)

    def run(self) -> None:
        for _ in range(self._kills):
            more = len(self._sent) + self._dice.randint(3, 12)
            until(lambda: len(self._sent) >= more, "sending")  # noqa: B023
            threading.Event().wait(self._dice.uniform(0.0, 0.05))
            self._gateway.kill()
            self._gateway.start()


def check_arrived(
    arrivals: Callable[[], Arrivals], sent: list[Sending], kills: int, log: Callable[[], str]
) -> None:
    """Wait until all that was answered has arrived; nothing else, and little of it twice."""
    for kind in OtlpKind:
        answered = {one for to in sent if to.kind is kind and to.answered for one in to.ids}
        assert answered, f"no {kind} were answered"
        until(lambda: answered <= set(arrivals()[kind]), f"delivery of {kind}", log)  # noqa: B023
    arrived = arrivals()
    for kind, counts in arrived.items():
        assert set(counts) <= {one for to in sent if to.kind is kind for one in to.ids}
    # What was under way at a kill comes again: a request that was stored and not answered, and
    # those that were joined, delivered, and not yet noted.
    again = sum(counts.total() - len(counts) for counts in arrived.values())
    largest = max(len(one.ids) for one in sent)
    assert again <= kills * largest * (JOINED_MAX + 1)
