"""Taps look on within their bounds; exporters that take turns share the work."""

from __future__ import annotations

import asyncio

import pytest
from tests.graph.toys.exporter import DELIVERED, REFUSING, MemoryExporter
from tests.support.clock import ManualClock

from holdfast.deliver import context as module
from holdfast.deliver.context import Taps
from holdfast.graph.delivery import RoundRobin
from holdfast.quiver import Position
from holdfast.signals.event import Event


def event(payload: bytes, seq: int = 0) -> Event:
    return Event("q", Position(seq, 0), "openlineage", payload, {}, 0)


def test_a_tap_shows_what_passes_after_it_was_opened() -> None:
    taps = Taps(ManualClock())
    taps.see("out", event(b"before"))
    assert taps.read("out", 0) == {"passed": 0, "events": [], "next": 0}
    taps.see("out", event(b"one", 7))
    taps.see("other", event(b"elsewhere"))
    told = taps.read("out", 0)
    assert [(one["seq"], one["payload"]) for one in told["events"]] == [(7, "one")]
    assert taps.read("out", told["next"])["events"] == []


def test_samples_are_few_per_second_and_all_are_counted() -> None:
    clock = ManualClock()
    taps = Taps(clock)
    taps.read("out", 0)
    for _ in range(100):
        taps.see("out", event(b"x"))
    told = taps.read("out", 0)
    assert told["passed"] == 100
    assert len(told["events"]) == module.SAMPLES_PER_S
    clock.now_s += 1
    taps.see("out", event(b"y"))
    assert [one["payload"] for one in taps.read("out", told["next"])["events"]] == ["y"]


def test_what_nobody_fetches_is_bounded_in_number_and_size() -> None:
    clock = ManualClock()
    taps = Taps(clock)
    taps.read("out", 0)
    for second in range(9):
        clock.now_s = 100.0 + second
        for _ in range(module.SAMPLES_PER_S * 2):
            taps.see("out", event(b"z" * 100_000))
    assert module.SAMPLES_PER_S * 9 <= module.SAMPLES_MAX
    told = taps.read("out", 0)
    assert len(told["events"]) == module.SAMPLES_PER_S * 9
    assert {len(one["payload"]) for one in told["events"]} == {module.PAYLOAD_BYTES_MAX}
    assert told["events"][0]["bytes"] == 100_000


def test_a_tap_that_nobody_reads_is_closed() -> None:
    clock = ManualClock()
    taps = Taps(clock)
    taps.read("out", 0)
    clock.now_s += module.IDLE_S
    taps.see("out", event(b"x"))
    assert taps.read("out", 0)["events"] == []


def test_there_are_only_so_many_taps() -> None:
    taps = Taps(ManualClock())
    for number in range(module.TAPS_MAX + 1):
        taps.read(f"out-{number}", 0)
    taps.see("out-0", event(b"x"))
    taps.see(f"out-{module.TAPS_MAX}", event(b"x"))
    assert taps.read(f"out-{module.TAPS_MAX}", 0)["passed"] == 1
    assert taps.read("out-0", 0)["passed"] == 0


@pytest.fixture
def two() -> RoundRobin:
    DELIVERED.clear()
    REFUSING.clear()
    return RoundRobin([MemoryExporter("one", b""), MemoryExporter("two", b"")])


def test_each_send_goes_to_the_next_exporter(two: RoundRobin) -> None:
    async def run() -> None:
        await two.start()
        for number in range(4):
            answer = await two.send([event(b"%d" % number)])
            assert not answer.failed
        await two.close()

    asyncio.run(run())
    assert DELIVERED == {"one": [b"0", b"2"], "two": [b"1", b"3"]}


def test_what_one_refuses_the_next_try_brings_to_the_other(two: RoundRobin) -> None:
    async def run() -> None:
        await two.start()
        REFUSING.add("one")
        assert (await two.send([event(b"x")])).failed
        assert not (await two.send([event(b"x")])).failed

    asyncio.run(run())
    assert DELIVERED["two"] == [b"x"]


def test_bounds_are_those_of_the_smallest() -> None:
    small, large = MemoryExporter("small", b""), MemoryExporter("large", b"")
    small.max_batch_events, large.max_batch_bytes = 2, 10
    both = RoundRobin([small, large])
    assert (both.max_batch_events, both.max_batch_bytes) == (2, 10)
