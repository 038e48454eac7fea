"""Between two Collectors: what the first was answered for is what the second gets."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.gateway.collector import Collector, ids_in_file, needs_collector
from tests.gateway.telemetry import (
    Killer,
    Sending,
    TelemetryGateway,
    check_arrived,
    otlp_exporter,
    otlp_request,
)
from tests.patience import PATIENCE_S

from holdfast.signals.otlp.kinds import OtlpKind

KILLS = 3


@needs_collector
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_collector_sends_through_holdfast_arrives_at_the_next_one(
    tmp_path: Path, processes: ExitStack
) -> None:
    """Collector to Holdfast to Collector, all by zstd, and Holdfast is killed.

    The first one keeps nothing: it answers when Holdfast has, and asks again until then.
    """
    written = tmp_path / "arrived.json"
    last = Collector(tmp_path / "last", "file", {"path": str(written), "flush_interval": "100ms"})
    middle = TelemetryGateway(
        tmp_path / "middle", {"last": otlp_exporter(last.port, compression="zstd")}
    )
    first = Collector(
        tmp_path / "first",
        "otlp_grpc",
        {
            "endpoint": f"127.0.0.1:{middle.grpc_port}",
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
        },
    )
    for process in (last, middle, first):
        processes.callback(process.kill)
        process.start()
    sent: list[Sending] = []
    numbers = itertools.count(1)
    channel = processes.enter_context(grpc.insecure_channel(f"127.0.0.1:{first.port}"))

    def send_one_of_each() -> None:
        for kind in OtlpKind:
            ids = tuple(f"{next(numbers):016x}" for _ in range(5))
            export: Any = channel.unary_unary(kind.grpc_path)
            export(otlp_request(kind, ids), timeout=PATIENCE_S, wait_for_ready=True)
            sent.append(Sending(kind, ids, answered=True))

    killer = Killer(middle, sent, KILLS)
    killer.start()
    while killer.is_alive():
        send_one_of_each()
    send_one_of_each()
    check_arrived(lambda: ids_in_file(written), sent, KILLS, middle.log)
    for process in (first, middle, last):
        process.stop()
