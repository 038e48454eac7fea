"""Beside OpenTelemetry Collectors: what one was answered for, the next one gets."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.gateway.collector import Collector, ids_in_file, needs_collector
from tests.gateway.telemetry import (
    Killer,
    OtlpSink,
    Sending,
    TelemetryGateway,
    check_arrived,
    otlp_exporter,
    otlp_request,
)
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

from holdfast.signals.otlp.codec import join
from holdfast.signals.otlp.kinds import OtlpKind

pytestmark = [needs_collector, pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 3


def forwarding(url: str, protocol: str) -> tuple[str, dict[str, Any]]:
    """Return an exporter of a Collector that keeps nothing: it answers when its backend has."""
    settings = {
        "endpoint": url if protocol == "http" else url.removeprefix("http://"),
        "tls": {"insecure": True},
        "compression": "zstd",
        "timeout": f"{PATIENCE_S}s",
        "sending_queue": {"enabled": False},
        "retry_on_failure": {
            "enabled": True,
            "initial_interval": "100ms",
            "max_interval": "500ms",
            "max_elapsed_time": "0s",
        },
    }
    return f"otlp_{protocol}", settings


def export(port: int, kind: OtlpKind, body: bytes) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary(kind.grpc_path)
        method(body, timeout=PATIENCE_S, wait_for_ready=True)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_what_a_collector_sends_through_holdfast_arrives_at_the_next_one(
    tmp_path: Path, processes: ExitStack, protocol: str
) -> None:
    """Collector to Holdfast to Collector, all by zstd, and Holdfast is killed."""
    written = tmp_path / "arrived.json"
    last = Collector(tmp_path / "last", "file", {"path": str(written), "flush_interval": "100ms"})
    last_port = last.grpc_port if protocol == "grpc" else last.http_port
    exporter = otlp_exporter(last_port, compression="zstd", protocol=protocol)
    middle = TelemetryGateway(tmp_path / "middle", {"last": exporter})
    middle_port = middle.grpc_port if protocol == "grpc" else middle.http_port
    first = Collector(tmp_path / "first", *forwarding(f"http://127.0.0.1:{middle_port}", protocol))
    for process in (last, middle, first):
        processes.callback(process.kill)
        process.start()
    sent: list[Sending] = []
    numbers = itertools.count(1)

    def send_one_of_each() -> None:
        for kind in OtlpKind:
            ids = tuple(f"{next(numbers):016x}" for _ in range(5))
            export(first.grpc_port, kind, otlp_request(kind, ids))
            sent.append(Sending(kind, ids, answered=True))

    killer = Killer(middle, sent, KILLS)
    killer.start()
    while killer.is_alive():
        send_one_of_each()
    send_one_of_each()
    check_arrived(lambda: ids_in_file(written), sent, KILLS, middle.log)
    for process in (first, middle, last):
        process.stop()


def test_what_is_too_large_for_a_collector_or_comes_while_its_backend_is_away_is_not_lost(
    tmp_path: Path, processes: ExitStack
) -> None:
    """A Collector says so with words and codes of its own; both are understood."""
    port = free_port()
    exporter, settings = forwarding(f"http://127.0.0.1:{port}", "grpc")
    # It tells whoever sends to it at once that it cannot.
    settings |= {"retry_on_failure": {"enabled": False}, "compression": "gzip"}
    collector = Collector(tmp_path / "collector", exporter, settings)
    limits = {"max_request_size": "64MB", "max_batch_size": "64MB"}
    gateway = TelemetryGateway(
        tmp_path / "gateway", {"out": otlp_exporter(collector.grpc_port, **limits)}
    )
    for process in (collector, gateway):
        processes.callback(process.kill)
        process.start()
    export(gateway.grpc_port, OtlpKind.LOGS, otlp_request(OtlpKind.LOGS, ["1"]))
    failed = partial(gateway.metric, "gateway_destination_failed_events_total")
    until(lambda: failed(**{"class": "transient"}), "a failure", gateway.log)
    sink = OtlpSink(port)
    processes.callback(sink.stop)
    until(lambda: sink.arrivals()[OtlpKind.LOGS] == {"1": 1}, "delivery", gateway.log)
    # One resource for each, so that it can be cut.
    ids = [f"{number:016x}" for number in range(1, 100_001)]
    body = join(otlp_request(OtlpKind.TRACES, [one]) for one in ids)
    with pytest.raises(grpc.RpcError, match="larger than max"):
        export(collector.grpc_port, OtlpKind.TRACES, body)
    export(gateway.grpc_port, OtlpKind.TRACES, body)
    until(lambda: len(sink.arrivals()[OtlpKind.TRACES]) == len(ids), "delivery", gateway.log)
    assert sink.arrivals()[OtlpKind.TRACES] == Counter(ids)
    assert not gateway.metric("gateway_destination_dead_lettered_events_total")
