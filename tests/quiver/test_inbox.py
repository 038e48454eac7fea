"""Appends on their way to the writer: the bound in bytes, time-outs, event loops, and the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.patience import PATIENCE_S, SCALE, until
from tests.quiver.machine import Machine, payloads, quiet
from tests.quiver.waiting import in_thread, run_loop
from tests.support.disk import GatedDisk

from holdfast.errors import HoldfastError, NotAccepted, Overloaded, QuiverClosed, StorageFailed
from holdfast.quiver import AckLevel, Quiver, Receipt
from holdfast.quiver.base.bundle import Encoded
from holdfast.quiver.base.frame import NO_WATERMARK, FrameKind
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.inbox import Append, Inbox, answer, closed_error
from holdfast.seam.clock import RealClock
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash


def make_append(size_bytes: int = 8, loop: asyncio.AbstractEventLoop | None = None) -> Append:
    bundle = Encoded(FrameKind.RAW, bytes(size_bytes), 1)
    return Append([bundle], AckLevel.FSYNCED, None, 0, NO_WATERMARK, loop)


def make_inbox(max_pending_bytes: int = 100) -> Inbox:
    return Inbox(max_pending_bytes, RealClock())


def soon(seconds: float = 0.02) -> float:
    return RealClock().monotonic_s() + seconds


def late() -> float:
    return RealClock().monotonic_s() + PATIENCE_S


def receipt(seq: int = 0) -> Receipt:
    return Receipt("", seq, 1, 1, AckLevel.FSYNCED)


# The bound.


def test_appends_beyond_the_bound_wait_for_room_and_time_out_as_not_stored() -> None:
    inbox = make_inbox(100)
    inbox.put(make_append(60), late())
    with pytest.raises(Overloaded, match=r"append\.max_pending_bytes") as refused:
        inbox.put(make_append(60), soon())
    assert refused.value.stored == "no"
    assert refused.value.retry_after_s
    assert inbox.pending_bytes == 60
    assert len(inbox.take(1000, 0.0)) == 1


def test_room_given_back_lets_the_next_append_in() -> None:
    inbox = make_inbox(100)
    inbox.put(make_append(60), late())
    waiting = in_thread(lambda: inbox.put(make_append(60), late()))
    inbox.take(1000, 0.0)
    inbox.written(60)
    waiting.result(PATIENCE_S)
    assert inbox.pending_bytes == 60


def test_one_append_larger_than_the_bound_is_let_in_alone() -> None:
    inbox = make_inbox(100)
    inbox.put(make_append(500), soon())
    with pytest.raises(Overloaded):
        inbox.put(make_append(1), soon())


def test_a_group_takes_no_more_than_asked_for_but_at_least_one_append() -> None:
    inbox = make_inbox(1000)
    for size_bytes in (80, 30, 30, 500, 1):
        inbox.put(make_append(size_bytes), late())
    sizes = []
    while taken := inbox.take(100, 0.0):
        sizes.append([item.size_bytes for item in taken if isinstance(item, Append)])
    assert sizes == [[80], [30, 30], [500], [1]]


def test_requests_run_after_the_appends_handed_over_before_them() -> None:
    inbox = make_inbox()
    append = make_append()
    inbox.put(append, late())
    ran: list[bool] = []
    inbox.request(lambda: ran.append(True))
    first, second = inbox.take(1000, 0.0)
    assert first is append
    assert not isinstance(second, Append)
    second.run()
    assert ran == [True]


# Time-outs while waiting for the answer.


def test_an_append_nobody_claimed_times_out_as_not_stored_and_is_never_written(
    machine: Machine,
) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(timeout_s=0.5 * SCALE), through=lambda _: gated)
    first = in_thread(lambda: quiver.append_raw(b"claimed"))
    assert gated.reached.wait(PATIENCE_S)
    with pytest.raises(Overloaded) as unclaimed:
        quiver.append_raw(b"unclaimed")
    assert unclaimed.value.stored == "no"
    with pytest.raises(Overloaded) as claimed:
        first.result(PATIENCE_S)
    assert claimed.value.stored == "maybe"
    gated.gate.set()
    machine.stop()
    assert payloads(machine.start()) == {0: [b"claimed"]}


def test_an_answer_that_comes_with_the_time_out_counts() -> None:
    append = make_append()
    answer([(append, receipt(7))])
    assert append.wait(0.0).seq == 7


def test_a_second_answer_to_the_same_append_changes_nothing() -> None:
    append = make_append()
    answer([(append, receipt(7)), (append, closed_error())])
    assert append.wait(PATIENCE_S).seq == 7


# Event loops.


async def append_many(quiver: Quiver, name: str, count: int) -> list[Receipt]:
    return await asyncio.gather(
        *(quiver.append_raw_async(f"{name}-{n}".encode()) for n in range(count))
    )


def test_many_event_loops_and_threads_append_at_once_and_all_get_their_own_seq(
    machine: Machine,
) -> None:
    quiver = machine.start()
    loops = [run_loop(append_many(quiver, f"loop{n}", 50)) for n in range(4)]
    with ThreadPoolExecutor(4) as threads:
        receipts = list(threads.map(lambda n: quiver.append_raw(f"thread-{n}".encode()), range(50)))
    receipts += [one for loop in loops for one in loop.result(PATIENCE_S)]
    assert len({one.seq for one in receipts}) == 250
    stored = payloads(quiver)
    assert sorted(stored) == sorted(one.seq for one in receipts)
    expected = {f"loop{loop}-{n}".encode() for loop in range(4) for n in range(50)}
    expected |= {f"thread-{n}".encode() for n in range(50)}
    assert {events[0] for events in stored.values()} == expected


def test_async_appends_wait_for_room_and_go_on_when_there_is_some(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(max_pending_bytes=64), through=lambda _: gated)
    done = run_loop(append_many(quiver, "x" * 40, 5))
    assert gated.reached.wait(PATIENCE_S)
    assert quiver.statistics().pending_bytes <= 64
    gated.gate.set()
    assert len({one.seq for one in done.result(PATIENCE_S)}) == 5


def test_an_async_append_that_finds_no_room_in_time_is_refused_as_not_stored() -> None:
    inbox = make_inbox(100)
    inbox.put(make_append(90), late())

    async def too_much() -> None:
        await inbox.put_async(make_append(20, asyncio.get_running_loop()), soon())

    with pytest.raises(Overloaded) as refused:
        asyncio.run(too_much())
    assert refused.value.stored == "no"


def test_an_async_append_not_answered_in_time_is_given_up_as_not_stored() -> None:
    async def unanswered() -> None:
        await make_append(8, asyncio.get_running_loop()).wait_async(0.01)

    with pytest.raises(Overloaded) as refused:
        asyncio.run(unanswered())
    assert refused.value.stored == "no"


def test_a_loop_that_closed_while_it_waited_for_room_does_not_harm_the_others() -> None:
    """Otherwise the writer thread would end with the error of a loop that nobody runs any more."""
    inbox = make_inbox(100)
    inbox.put(make_append(90), late())

    async def give_up_early() -> None:
        append = make_append(20, asyncio.get_running_loop())
        waiting = asyncio.create_task(inbox.put_async(append, late()))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up_early())
    inbox.take(1000, 0.0)
    inbox.written(90)
    inbox.put(make_append(90), soon())


def test_loops_that_gave_up_waiting_for_room_are_forgotten() -> None:
    """The list of waiters is a queue too, and must not grow while the disk hangs."""
    inbox = make_inbox(100)
    inbox.put(make_append(90), late())

    async def give_up() -> weakref.ref[Any]:
        loop = asyncio.get_running_loop()
        with pytest.raises(Overloaded):
            await inbox.put_async(make_append(20, loop), soon(0.001))
        return weakref.ref(loop)

    closed = asyncio.run(give_up())
    gc.collect()
    assert closed() is None


def test_a_loop_that_closed_before_the_answer_does_not_harm_the_others() -> None:
    loop = asyncio.new_event_loop()
    orphan, other = make_append(8, loop), make_append(8)
    loop.close()
    answer([(orphan, receipt(1)), (other, receipt(2))])
    assert other.wait(PATIENCE_S).seq == 2


# The end.


def test_close_answers_what_was_handed_over_and_refuses_what_waits_for_room(
    machine: Machine,
) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(max_pending_bytes=64), through=lambda _: gated)
    first = in_thread(lambda: quiver.append_raw(b"a" * 40))
    assert gated.reached.wait(PATIENCE_S)
    blocked = in_thread(lambda: quiver.append_raw(b"b" * 40))
    blocked_async = run_loop(append_many(quiver, "c" * 40, 1))
    closing = in_thread(quiver.close)
    for waiting in (blocked, blocked_async):
        with pytest.raises(QuiverClosed) as refused:
            waiting.result(PATIENCE_S)
        assert refused.value.stored == "no"
    gated.gate.set()
    assert first.result(PATIENCE_S).seq == 0
    closing.result(PATIENCE_S)
    machine.quiver = None
    assert payloads(machine.start()) == {0: [b"a" * 40]}


def test_appends_and_flushes_after_close_are_refused(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append_raw(b"kept")
    machine.stop()
    for after in (lambda: quiver.append_raw(b"late"), quiver.flush):
        with pytest.raises(QuiverClosed) as refused:
            after()
        assert refused.value.stored == "no"
    assert not quiver.statistics().accepting


def test_closing_twice_or_from_two_threads_is_fine(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append_raw(b"kept")
    for closing in [in_thread(quiver.close) for _ in range(4)]:
        closing.result(PATIENCE_S)
    machine.quiver = None
    assert payloads(machine.start()) == {0: [b"kept"]}


def test_the_reader_of_a_closed_inbox_never_sleeps() -> None:
    """The reader decides to wait, the inbox closes, the reader waits: nobody would wake it."""
    inbox = make_inbox()
    inbox.close(closed_error())
    assert in_thread(lambda: inbox.take(1000, None)).result(PATIENCE_S) == []


def test_what_waits_when_the_writer_dies_is_answered(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(), through=lambda _: gated)
    appends = [in_thread(lambda: quiver.append_raw(b"x")) for _ in range(3)]
    assert gated.reached.wait(PATIENCE_S)
    machine.disk.kill()
    gated.gate.set()
    for waiting in appends:
        with pytest.raises((SimulatedCrash, StorageFailed)):
            waiting.result(PATIENCE_S)
    with pytest.raises(StorageFailed) as later:
        quiver.append_raw(b"later")
    assert later.value.stored == "no"


def test_what_was_taken_when_a_bug_ends_the_writer_is_answered_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = machine.start()
    inbox, all_wait = quiver._engine.writer.inbox, threading.Event()

    def refusal(size_bytes: int) -> None:
        if all_wait.is_set():
            raise ZeroDivisionError
        assert all_wait.wait(PATIENCE_S)

    monkeypatch.setattr(quiver._engine.retention, "refusal", refusal)
    first = in_thread(lambda: quiver.append_raw(b"x"))
    until(lambda: inbox.pending_bytes and not inbox._items)
    together = [in_thread(work) for work in (lambda: quiver.append_raw(b"y"), quiver.flush)]
    until(lambda: len(inbox._items) == len(together))
    all_wait.set()
    for waiting in together:
        with pytest.raises((ZeroDivisionError, StorageFailed)):
            waiting.result(PATIENCE_S)
    assert first.result(PATIENCE_S).seq == 0


def test_a_sealer_that_dies_while_the_log_begins_a_file_is_given_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = machine.start()
    sealer, end_wal_file = quiver._engine.sealer, quiver._engine.writer._end_wal_file

    def dies() -> None:
        raise MemoryError

    def end_and_wait() -> None:
        if sealer._died_of is None and quiver.segments():
            until(lambda: sealer._died_of is not None)
        end_wal_file()

    monkeypatch.setattr(sealer, "on_sealed", dies)
    monkeypatch.setattr(sealer, "is_free", lambda: not sealer._queue)
    monkeypatch.setattr(quiver._engine.writer, "_end_wal_file", end_and_wait)
    quiver.append_raw(b"x")
    quiver.flush()
    quiver.append_raw(b"y")
    with pytest.raises((MemoryError, StorageFailed)):
        in_thread(quiver.flush).result(PATIENCE_S)


def test_a_seal_that_dies_at_close_answers_those_who_wait_for_the_segment(
    machine: Machine,
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.KILL_BEFORE)])
    waiting = in_thread(lambda: quiver.append_raw(b"x", level=AckLevel.SEGMENT))
    until(lambda: quiver.statistics().open_bundles == 1)
    with pytest.raises(SimulatedCrash):
        quiver.close()
    with pytest.raises((SimulatedCrash, NotAccepted)):
        waiting.result(PATIENCE_S)


def test_refusing_for_a_long_time_does_not_pile_up_memory(machine: Machine) -> None:
    """An exception raised again and again keeps the frames of every time, payloads included."""
    quiver = machine.start()
    machine.stop()
    depth = [traceback_depth(refused_by(quiver)) for _ in range(20)]
    assert depth[-1] == depth[0]


def test_refusing_after_the_disk_failed_does_not_pile_up_memory(machine: Machine) -> None:
    failing = [
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC),
        Fault(QuiverPoint.WAL_HEADER_SYNC, FaultKind.EIO, nth=2),
    ]
    quiver = machine.start(faults=failing)
    depth = [traceback_depth(refused_by(quiver)) for _ in range(20)]
    assert depth[-1] == depth[1]


def refused_by(quiver: Quiver) -> HoldfastError:
    with pytest.raises(NotAccepted) as refused:
        quiver.append_raw(b"x")
    return refused.value


def traceback_depth(error: BaseException) -> int:
    depth, traceback = 0, error.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    return depth


def test_a_cancelled_append_that_nobody_took_yet_is_withdrawn() -> None:
    """It was stored all the same, although nobody waited for it any more."""

    async def run() -> Append:
        append = make_append(loop=asyncio.get_running_loop())
        waiting = asyncio.ensure_future(append.wait_async(60.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return append

    assert not asyncio.run(run()).claim(), "the writer could still take it"


def test_async_appends_wait_by_one_timer_and_none_is_kept_once_it_is_answered(
    machine: Machine,
) -> None:
    """One that was cancelled, or waits for a segment, must not hold up those behind it."""
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    inbox = quiver._writer.inbox

    async def run() -> Receipt:
        first = asyncio.ensure_future(quiver.append_raw_async(b"first"))
        await asyncio.to_thread(gated.reached.wait, PATIENCE_S)
        sealed = asyncio.ensure_future(quiver.append_raw_async(b"x", level=AckLevel.SEGMENT))
        cancelled = asyncio.ensure_future(quiver.append_raw_async(b"cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        gated.gate.set()
        await first
        timer = inbox._deadlines_here()._timer
        for _ in range(20):
            await quiver.append_raw_async(b"event")
            assert len(inbox._deadlines_here()._waiting) == 1
        assert inbox._deadlines_here()._timer is timer
        await asyncio.to_thread(quiver.flush)
        return await sealed

    assert asyncio.run(run()).level is AckLevel.SEGMENT
    assert [b"cancelled"] not in payloads(quiver).values()
    asyncio.run(quiver.append_raw_async(b"in another loop"))
    assert len(inbox._deadlines) == 1, "a closed loop was kept"


def test_an_async_append_of_a_writer_that_hangs_is_given_up_in_time(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(quiet(timeout_s=0.2 * SCALE), through=lambda _: gated)

    async def run() -> list[Receipt | BaseException]:
        first = asyncio.ensure_future(quiver.append_raw_async(b"claimed"))
        await asyncio.to_thread(gated.reached.wait, PATIENCE_S)
        second = quiver.append_raw_async(b"unclaimed")
        return list(await asyncio.gather(first, second, return_exceptions=True))

    claimed, unclaimed = asyncio.run(run())
    gated.gate.set()
    assert isinstance(claimed, Overloaded)
    assert isinstance(unclaimed, Overloaded)
    assert (claimed.stored, unclaimed.stored) == ("maybe", "no")
