"""Processors before the buffer: what they drop is not stored, and nobody counts it as accepted."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import pytest
from tests.graph.gateways import address, gateway_of, running, send
from tests.graph.lineage import post, request, run_event
from tests.graph.test_telemetry import graph_file
from tests.graph.test_telemetry import send as send_otlp
from tests.graph.toys.exporter import DELIVERED
from tests.patience import PATIENCE_S, until_async
from tests.signals.otlp.telemetry import request as otlp_request

from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.reload import reload
from holdfast.graph.runtime import Gateway
from holdfast.receive import before_buffer
from holdfast.receive.receiver import ItemCounts
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.kinds import OtlpKind

LINEAGE = """\
data_dir: data
nodes:
  lineage:
    kind: receiver
    type: openlineage
    config: {listen: "127.0.0.1:0"}
    to: [clean]
  clean: {kind: processor, type: drop, config: {drop: "secret", fail: "broken"}, to: [again]}
  again: {kind: processor, type: drop, config: {drop: "private"}, to: [buffer]}
  buffer: {kind: processor, type: quiver, to: [early]}
  early: {kind: exporter, type: memory}
"""
OTLP = """\
nodes:
  telemetry:
    kind: receiver
    type: otlp
    config: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}
    to: [less]
  less:
    kind: processor
    type: filter_items
    config: {drop: [{signals: [traces], name: ["*"]}, {service: ["service-1"]}]}
    to: [buffer]
  buffer: {kind: processor, type: quiver, to: [all]}
  all: {kind: exporter, type: files, config: {directory: all}}
"""


def test_what_is_dropped_is_answered_with_success_and_in_no_ledger(tmp_path: Path) -> None:
    DELIVERED.clear()
    gateway = gateway_of(tmp_path, LINEAGE)
    batch = [run_event(job="c"), run_event(job="secret"), run_event(job="private")]

    async def play() -> None:
        async with running(gateway):
            events = [run_event(job=job) for job in ("a", "secret", "private", "b")]
            assert await send(gateway, *events) == [200] * 4
            to = (address(gateway), "POST", "/api/v1/lineage/batch", batch)
            status, told = await asyncio.to_thread(request, *to)
            assert (status, told["summary"]["successful"]) == (200, 3)
            assert (await asyncio.to_thread(post, address(gateway), events[1]))[1] == {
                "status": "dropped"
            }
            await until_async(lambda: len(DELIVERED["early"]) == 3)
            told = await gateway.statistics()
            figures = told.receivers["lineage"]
            assert (figures.received, figures.accepted, figures.dropped_before_buffer) == (8, 3, 5)
            ((quiver,),) = told.quivers.values()
            assert quiver.accepted_events == 3
            (account,) = quiver.subscribers
            assert account.outcomes["filtered"].events == 0

    asyncio.run(play())


def test_one_that_raises_is_a_503_and_nothing_is_stored(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path, LINEAGE)

    async def play() -> None:
        async with running(gateway):
            broken = run_event(job="broken")
            status, told = await asyncio.to_thread(post, address(gateway), broken)
            assert (status, told["reason"]) == (503, "unavailable")
            assert "ZeroDivisionError" in told["message"]
            statistics = await gateway.statistics()
            assert statistics.receivers["lineage"].rejected == {"unavailable": 1}
            ((quiver,),) = statistics.quivers.values()
            assert quiver.accepted_events == 0

    asyncio.run(play())


@pytest.mark.parametrize("inline_bytes", [0, 256 * 1024], ids=["in a thread", "on the loop"])
def test_items_of_telemetry_are_dropped_out_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(before_buffer, "INLINE_BYTES", inline_bytes)
    # The seed makes two resources, one for each service.
    sent = {kind: otlp_request(kind, random.Random(5)) for kind in OtlpKind}
    left = {kind: codec.check(kind, codec.split(body, 1)[0]) for kind, body in sent.items()}
    left[OtlpKind.TRACES] = 0
    gateway = Gateway(load(graph_file(tmp_path, OTLP)).graph)

    async def play() -> None:
        async with running(gateway):
            grpc_address, http_address = gateway.addresses["telemetry"]
            for kind, body in sent.items():
                assert await asyncio.to_thread(send_otlp, http_address, kind, body) == 200
                assert await asyncio.to_thread(export, grpc_address, kind, body) == "OK"
            told = await gateway.statistics()
            figures = told.receivers["telemetry"]
            assert figures.items == {
                kind.value: ItemCounts(
                    accepted=2 * left[kind],
                    dropped_before_buffer=2 * (codec.check(kind, body) - left[kind]),
                )
                for kind, body in sent.items()
            }
            assert (figures.received, figures.accepted, figures.dropped_before_buffer) == (6, 4, 2)
            ((quiver,),) = told.quivers.values()
            assert quiver.accepted_events == 4

    asyncio.run(play())


def export(target: str, kind: OtlpKind, body: bytes) -> str:
    """Call `Export` with grpcio; return the name of the status."""
    with grpc.insecure_channel(target.removeprefix("grpc://")) as channel:
        method: Any = channel.unary_unary(kind.grpc_path)
        try:
            method(body, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def test_a_request_that_a_processor_fails_at_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(load(graph_file(tmp_path, OTLP)).graph)
    body = otlp_request(OtlpKind.LOGS, random.Random(5))

    def fail(event: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(gateway.graph.nodes["less"].processor, "process", fail)

    async def play() -> None:
        async with running(gateway):
            grpc_address, http_address = gateway.addresses["telemetry"]
            with pytest.raises(HTTPError, match="503"):
                await asyncio.to_thread(send_otlp, http_address, OtlpKind.LOGS, body)
            told = await asyncio.to_thread(export, grpc_address, OtlpKind.LOGS, body)
            assert told == "UNAVAILABLE"
            items = (await gateway.statistics()).receivers["telemetry"].items["logs"]
            assert items == ItemCounts(refused=2 * codec.check(OtlpKind.LOGS, body))

    asyncio.run(play())


def test_it_takes_what_the_receiver_accepts(tmp_path: Path) -> None:
    text = OTLP.replace("type: filter_items", "type: sample").replace(
        'config: {drop: [{signals: [traces], name: ["*"]}, {service: ["service-1"]}]}',
        "config: {ratio: 0.1}",
    )
    with pytest.raises(BadConfig) as caught:
        load(graph_file(tmp_path, text))
    (found,) = [one for one in caught.value.findings if one.severity == "error"]
    assert "'less' cannot take what 'telemetry' receives" in found.message
    assert "not metrics (protobuf)" in found.message


def test_changing_it_needs_a_restart(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path, LINEAGE)

    async def play() -> None:
        async with running(gateway):
            other = gateway_of(tmp_path, LINEAGE.replace('"private"', '"hidden"')).graph
            report = await reload(gateway, other)
            assert report.needs_restart == ["the processors before the quiver buffer"]

    asyncio.run(play())
