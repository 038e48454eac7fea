"""Telemetry through real processes: what was answered arrives, also where the middle is killed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.gateway.processes import Gateway
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.signals.otlp.kinds import OtlpKind


class Sink(grpc.GenericRpcHandler):
    """A plain OTLP server of other hands: remembers the ids of spans."""

    def __init__(self) -> None:
        self.spans: Counter[bytes] = Counter()
        self.server = grpc.server(futures.ThreadPoolExecutor(2), [self])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.take)

    def take(self, body: bytes, call: grpc.ServicerContext) -> bytes:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.update(span.span_id for span in scope.spans)
        return b""


class TelemetryGateway(Gateway):
    """One that receives OTLP over gRPC, and sends it on."""

    def __init__(self, folder: Path, to_port: int) -> None:
        folder.mkdir()
        self.grpc_port = free_port()
        self._to_port = to_port
        super().__init__(folder, {})

    def configure(self, nodes: dict[str, Any]) -> None:
        address = {"listening_addr": f"127.0.0.1:{self.grpc_port}"}
        url = f"http://127.0.0.1:{self._to_port}"
        whole = {
            **self._settings,
            "nodes": {
                "in": {"kind": "receiver", "type": "otlp", "to": ["out"], "config": address},
                "out": {
                    "kind": "exporter",
                    "type": "otlp",
                    "config": {"url": url, "compression": "zstd"},
                    "delivery": {"retry_max": "50ms"},
                },
            },
        }
        self.config.write_text(yaml.safe_dump(whole, sort_keys=False))


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.server.stop(None).wait()


def request(ids: list[bytes]) -> bytes:
    made = ExportTraceServiceRequest()
    spans = made.resource_spans.add().scope_spans.add().spans
    for one in ids:
        spans.add(span_id=one, trace_id=one * 2, name="work", end_time_unix_nano=1)
    return made.SerializeToString()


@pytest.mark.slow
def test_what_was_answered_arrives_though_the_middle_is_killed(tmp_path: Path, sink: Sink) -> None:
    with ExitStack() as running:
        last = TelemetryGateway(tmp_path / "last", sink.port)
        # The middle one sends to a Holdfast, which takes zstd; that one to grpcio, by gzip.
        last.config.write_text(last.config.read_text().replace("zstd", "gzip"))
        middle = TelemetryGateway(tmp_path / "middle", last.grpc_port)
        for gateway in (last, middle):
            running.callback(gateway.kill)
            gateway.start()
        answered: list[bytes] = []
        numbers = itertools.count(1)
        channel = running.enter_context(grpc.insecure_channel(f"127.0.0.1:{middle.grpc_port}"))
        export: Any = channel.unary_unary(OtlpKind.TRACES.grpc_path)
        for round_number in range(3):
            for _ in range(20):
                ids = [next(numbers).to_bytes(8, "big") for _ in range(5)]
                while True:
                    try:
                        export(request(ids), timeout=PATIENCE_S, wait_for_ready=True)
                    except grpc.RpcError as error:
                        # Anything else would make an SDK drop what it has.
                        if error.code() != grpc.StatusCode.UNAVAILABLE:
                            raise
                    else:
                        break
                answered += ids
            if round_number < 2:
                middle.kill()
                middle.start()
        until(lambda: len(sink.spans) >= len(answered), "delivery", middle.log)
        assert set(sink.spans) == set(answered)
        # What was under way at a kill comes again, once for each.
        assert max(sink.spans.values()) <= 3
        middle.stop()
