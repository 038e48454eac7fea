"""OTAP between real processes: Holdfasts, Collectors with `otelarrow`, and kills."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
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
from tests.gateway.test_collector import export, forwarding

from holdfast.signals.otlp.kinds import OtlpKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 3


class OtapGateway(TelemetryGateway):
    """One that receives OTAP, and sends it to all its exporters."""

    def configure(self, nodes: dict[str, Any]) -> None:
        address = {"listening_addr": f"127.0.0.1:{self.grpc_port}"}
        receiver = {"kind": "receiver", "type": "otap", "to": list(nodes), "config": address}
        whole = {**self._settings, "nodes": {"in": receiver, **nodes}}
        self.config.write_text(yaml.safe_dump(whole, sort_keys=False))


def otap_exporter(port: int, **config: Any) -> dict[str, Any]:
    return {**otlp_exporter(port, **config), "type": "otap"}


def send_while_killed(
    first_port: int, killed: TelemetryGateway, *, answers_always: bool
) -> list[Sending]:
    """Send requests of all signals one after the other until a gateway was killed often enough."""
    sent: list[Sending] = []
    numbers = itertools.count(1)

    def send_one_of_each() -> None:
        for kind in OtlpKind:
            ids = tuple(f"{next(numbers):016x}" for _ in range(5))
            try:
                export(first_port, kind, otlp_request(kind, ids))
                answered = True
            except grpc.RpcError:
                assert not answers_always
                answered = False
            sent.append(Sending(kind, ids, answered=answered))

    killer = Killer(killed, sent, KILLS)
    killer.start()
    while killer.is_alive():
        send_one_of_each()
    send_one_of_each()
    return sent


def test_two_holdfasts_lose_nothing_between_them_while_either_is_killed(
    tmp_path: Path, processes: ExitStack
) -> None:
    """OTLP in, OTAP between, OTLP out: each form is made of the other once."""
    sink = OtlpSink()
    processes.callback(sink.stop)
    last = OtapGateway(tmp_path / "last", {"out": otlp_exporter(sink.port)})
    first = TelemetryGateway(tmp_path / "first", {"out": otap_exporter(last.grpc_port)})
    for process in (last, first):
        processes.callback(process.kill)
        process.start()
    sent = send_while_killed(first.grpc_port, last, answers_always=True)
    sent += send_while_killed_again(first, sent)
    check_arrived(sink.arrivals, sent, 2 * KILLS, lambda: first.log() + last.log())
    for process in (first, last):
        process.stop()


def send_while_killed_again(first: TelemetryGateway, before: list[Sending]) -> list[Sending]:
    """Kill the one that is sent to; ids go on behind those that were sent."""
    sent: list[Sending] = []
    numbers = itertools.count(1 + sum(len(one.ids) for one in before))
    killer = Killer(first, sent, KILLS)
    killer.start()
    while True:
        is_last = not killer.is_alive()
        for kind in OtlpKind:
            ids = tuple(f"{next(numbers):016x}" for _ in range(5))
            try:
                export(first.grpc_port, kind, otlp_request(kind, ids))
                sent.append(Sending(kind, ids, answered=True))
            except grpc.RpcError:
                sent.append(Sending(kind, ids, answered=False))
        if is_last:
            return sent


@needs_collector
def test_collectors_with_otelarrow_on_either_side(tmp_path: Path, processes: ExitStack) -> None:
    """Collector to Holdfast to Collector, all by OTAP, and Holdfast is killed."""
    written = tmp_path / "arrived.json"
    last = Collector(
        tmp_path / "last",
        "file",
        {"path": str(written), "flush_interval": "100ms"},
        receiver="otelarrow",
    )
    middle = OtapGateway(tmp_path / "middle", {"last": otap_exporter(last.grpc_port)})
    _, settings = forwarding(f"http://127.0.0.1:{middle.grpc_port}", "grpc")
    # Without this it would go over to OTLP, which nobody takes here.
    settings["arrow"] = {"num_streams": 1, "disable_downgrade": True}
    first = Collector(tmp_path / "first", "otelarrow", settings)
    for process in (last, middle, first):
        processes.callback(process.kill)
        process.start()
    sent = send_while_killed(first.grpc_port, middle, answers_always=True)
    check_arrived(
        lambda: ids_in_file(written), sent, KILLS, lambda: middle.log() + first.log()[-3000:]
    )
    for process in (first, middle, last):
        process.stop()
