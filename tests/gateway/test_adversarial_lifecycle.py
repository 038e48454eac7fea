"""Attempts to lose, repeat or orphan a delivery by starting, failing and stopping a gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.graph.gateways import GRAPH, address, gateway_of, running, send
from tests.graph.lineage import run_event
from tests.graph.toys import exporter as toy_exporter
from tests.graph.toys.exporter import DELIVERED, MemoryExporter
from tests.patience import PATIENCE_S, until_async

from holdfast.deliver import destination
from holdfast.deliver.destination import Destination
from holdfast.deliver.exporter import Answer, ExporterContext
from holdfast.errors import BadConfig, StorageFailed
from holdfast.graph.runtime import Gateway
from holdfast.signals.event import Event


@pytest.fixture(autouse=True)
def nothing_delivered() -> Iterator[None]:
    DELIVERED.clear()
    yield
    DELIVERED.clear()


def test_a_destination_that_cannot_be_made_anew_is_tried_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "RESTART_MIN_S", 0.01)
    monkeypatch.setattr(destination, "RESTART_MAX_S", 0.01)
    whole_run, make = Destination.run, toy_exporter.make
    ended: set[str] = set()
    refusals = 3

    async def run_once_with_a_bug(self: Destination) -> None:
        if self.name not in ended:
            ended.add(self.name)
            raise AssertionError("BUG: made by a test")
        await whole_run(self)

    def make_late(config: toy_exporter.Config, context: ExporterContext) -> MemoryExporter:
        nonlocal refusals
        if context.name in ended and refusals:
            refusals -= 1
            raise StorageFailed("the disk is full", hint="wait")
        return make(config, context)

    monkeypatch.setattr(Destination, "run", run_once_with_a_bug)
    monkeypatch.setattr(toy_exporter, "make", make_late)

    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            assert await send(gateway, run_event(job="a")) == [200]
            await until_async(
                lambda: [len(DELIVERED.get(n, ())) for n in ("left", "right")] == [1, 1]
            )

    asyncio.run(run())
    assert refusals == 0


class HeldExporter(MemoryExporter):
    """Takes one event at a time, and answers each when it is let."""

    max_batch_events = 1

    def __init__(self, name: str, mark: bytes) -> None:
        super().__init__(name, mark)
        self.may_answer = asyncio.Semaphore(0)

    async def send(self, events: Sequence[Event]) -> Answer:
        answer = await super().send(events)
        await self.may_answer.acquire()
        return answer


def hold_all(monkeypatch: pytest.MonkeyPatch) -> list[HeldExporter]:
    made: list[HeldExporter] = []

    def make(config: toy_exporter.Config, context: ExporterContext) -> MemoryExporter:
        made.append(HeldExporter(context.name, config.mark.encode()))
        return made[-1]

    monkeypatch.setattr(toy_exporter, "make", make)
    return made


def test_a_start_that_fails_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sent could not be recorded, and would come again with every try to start."""

    async def leave_one_event() -> None:
        hold_all(monkeypatch)
        gateway = gateway_of(tmp_path)
        await gateway.start()
        assert await send(gateway, run_event(job="a")) == [200]
        await gateway.stop(0.0)

    async def fail_to_start(port: int) -> None:
        gateway = gateway_of(tmp_path, GRAPH.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        with pytest.raises(BadConfig, match="cannot listen"):
            await gateway.start()

    asyncio.run(leave_one_event())
    DELIVERED.clear()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for _ in range(5):
            asyncio.run(fail_to_start(taken.getsockname()[1]))
    assert not any(DELIVERED.values())


def test_a_slow_client_does_not_make_a_stop_cut_off_deliveries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop_beside_a_slow_client() -> None:
        exporters = hold_all(monkeypatch)
        gateway = gateway_of(tmp_path)
        await gateway.start()
        assert await send(gateway, run_event(job="a"), run_event(job="b")) == [200, 200]
        await until_async(lambda: len(DELIVERED["left"]) == len(DELIVERED["right"]) == 1)
        host, port = address(gateway).split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = "POST /api/v1/lineage HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        await until_async(partial(is_receiving, gateway))
        stopping = asyncio.create_task(gateway.stop(PATIENCE_S))
        await until_async(lambda: gateway.state == "stopping")
        for exporter in exporters:
            exporter.may_answer.release()
        await until_async(partial(is_left, gateway, 1))
        writer.close()
        await stopping
        assert gateway.left_events == {"left": 1, "right": 1}

    async def deliver_the_rest() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            await until_async(partial(is_left, gateway, 0))

    with monkeypatch.context() as patch:
        monkeypatch = patch
        asyncio.run(stop_beside_a_slow_client())
    asyncio.run(deliver_the_rest())
    for payloads in DELIVERED.values():
        assert len(payloads) == len(set(payloads)) == 2


async def is_receiving(gateway: Gateway) -> bool:
    return (await gateway.statistics()).receivers["lineage"].in_flight_requests == 1


async def is_left(gateway: Gateway, events: int) -> bool:
    return set((await gateway.lag_events()).values()) == {events}
