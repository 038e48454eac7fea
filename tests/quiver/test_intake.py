"""The intake: events handed over at once or not at all, and one answer for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.patience import PATIENCE_S, SCALE
from tests.quiver.machine import Machine, payloads, quiet
from tests.support.disk import GatedDisk

from holdfast.errors import BundleTooLarge, NotAccepted, Overloaded, StorageFailed
from holdfast.quiver import AckLevel, Intake, Quiver, Receipt
from holdfast.quiver.base.bundle import OneEvent, encode_raw
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind

Answers = list["Receipt | BaseException"]


def in_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


async def answered(answers: Answers, count: int) -> None:
    while len(answers) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("header", [None, {}, {"client": "a"}])
@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 5000])
def test_one_event_is_encoded_as_any_others(payload: bytes, header: dict[str, str] | None) -> None:
    expected = encode_raw("slot", payload, [header], 1 << 20)
    assert OneEvent("slot", 1 << 20).encode(payload, header) == expected


def test_every_event_is_answered_once_with_its_own_place(machine: Machine) -> None:
    quiver = machine.start()

    async def offer_many() -> dict[int, Receipt]:
        intake = quiver.intake(slot="events")
        found: dict[int, Receipt] = {}

        def told(number: int, outcome: Receipt | BaseException) -> None:
            assert isinstance(outcome, Receipt)
            assert number not in found, "told twice"
            found[number] = outcome

        for number in range(200):
            event = b"%d" % number
            assert intake.offer(event, None, partial(told, number))
            if number % 50 == 0:
                await asyncio.sleep(0)
        while len(found) < 200:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return found

    found = in_loop(offer_many)
    stored = payloads(quiver)
    assert {number: stored[one.seq] for number, one in found.items()} == {
        number: [b"%d" % number] for number in range(200)
    }
    assert {one.level for one in found.values()} == {AckLevel.FSYNCED}


def test_nobody_is_told_before_the_sync(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    answers: Answers = []

    async def offer() -> None:
        assert quiver.intake().offer(b"event", None, answers.append)
        assert await asyncio.to_thread(gated.reached.wait, PATIENCE_S)
        await asyncio.sleep(0.01)
        assert not answers, "answered before it was on stable storage"
        gated.gate.set()
        await answered(answers, 1)

    in_loop(offer)
    assert isinstance(answers[0], Receipt)


def test_a_group_asks_once_whether_there_is_room(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    answers: Answers = []
    asked: list[int] = []
    retention = quiver._engine.retention
    refusal = retention.refusal

    def count(size_bytes: int) -> NotAccepted | None:
        asked.append(size_bytes)
        return refusal(size_bytes)

    async def offer() -> None:
        intake = quiver.intake()
        assert intake.offer(b"first", None, answers.append)
        assert await asyncio.to_thread(gated.reached.wait, PATIENCE_S)
        monkeypatch.setattr(retention, "refusal", count)
        for _ in range(3):  # they gather while the first one is synced
            assert intake.offer(b"more", None, answers.append)
        gated.gate.set()
        await answered(answers, 4)

    in_loop(offer)
    assert len(asked) == 1


def test_what_finds_no_room_is_not_handed_over(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(max_pending_bytes=64), through=lambda _: gated)
    answers: Answers = []

    async def offer() -> None:
        intake = quiver.intake()
        assert intake.offer(b"x" * 40, None, answers.append)
        assert not intake.offer(b"y" * 40, None, answers.append)
        gated.gate.set()
        await answered(answers, 1)

    in_loop(offer)
    machine.stop()
    assert list(payloads(machine.start()).values()) == [[b"x" * 40]]


def test_a_closed_quiver_takes_nothing_and_a_large_event_is_refused(machine: Machine) -> None:
    quiver = machine.start()

    async def offer() -> None:
        intake = quiver.intake()
        with pytest.raises(BundleTooLarge):
            intake.offer(bytes(2 << 20), None, print)
        await asyncio.to_thread(machine.stop)
        assert not intake.offer(b"event", None, print)

    in_loop(offer)


def test_whoever_is_not_answered_in_time_is_told_so_and_only_once(machine: Machine) -> None:
    """The first is being written, nobody has claimed the second: that one is never written."""
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(timeout_s=0.5 * SCALE), through=lambda _: gated)
    answers: Answers = []

    async def offer() -> None:
        intake = quiver.intake()
        assert intake.offer(b"claimed", None, answers.append)
        assert await asyncio.to_thread(gated.reached.wait, PATIENCE_S)
        assert intake.offer(b"unclaimed", None, answers.append)
        await answered(answers, 2)
        gated.gate.set()
        # Behind both in the order of the writer: what it says of them has been said.
        await asyncio.to_thread(_appended, quiver)
        assert intake.offer(b"later", None, answers.append)
        await answered(answers, 3)

    in_loop(offer)
    first, second, third = answers
    assert isinstance(first, Overloaded)
    assert first.stored == "maybe"
    assert isinstance(second, Overloaded)
    assert second.stored == "no"
    assert isinstance(third, Receipt)
    assert [b"unclaimed"] not in payloads(quiver).values()


def _appended(quiver: Quiver) -> None:
    while True:
        try:
            quiver.append_raw(b"behind")
        except Overloaded:
            continue
        return


def test_a_failing_disk_is_told_to_everybody_in_the_group(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, FaultKind.EIO, times=1)])
    answers: Answers = []

    async def offer() -> None:
        intake = quiver.intake()
        assert intake.offer(b"one", None, answers.append)
        await answered(answers, 1)
        assert intake.offer(b"two", None, answers.append)
        await answered(answers, 2)

    in_loop(offer)
    assert isinstance(answers[0], StorageFailed)
    assert isinstance(answers[1], Receipt)


def test_one_that_fails_to_take_its_answer_costs_no_other(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    answers: Answers = []
    faults: list[str] = []

    def fail(_: object) -> None:
        raise LookupError("a fault of the caller")

    async def offer() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context["message"]))
        intake = quiver.intake()
        for told in (fail, fail, answers.append):
            assert intake.offer(b"event", None, told)
        gated.gate.set()
        await answered(answers, 1)

    in_loop(offer)
    assert len(faults) == 2


def test_answered_events_are_not_kept(machine: Machine) -> None:
    quiver = machine.start()
    answers: Answers = []

    async def offer() -> Intake:
        intake = quiver.intake()
        for number in range(20):
            assert intake.offer(b"event", None, answers.append)
            await answered(answers, number + 1)
            assert len(intake._deadlines._waiting) <= 1
        return intake

    in_loop(offer)
