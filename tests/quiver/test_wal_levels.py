"""What each level of acknowledgement promises, under kill -9 and under a power cut."""

from __future__ import annotations

from functools import partial

import pytest
from tests.patience import PATIENCE_S, until
from tests.quiver.machine import Machine, payloads, quiet
from tests.quiver.waiting import in_thread
from tests.support.disk import GatedDisk

from holdfast.errors import NotAccepted
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.config import WalConfig
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind


def append_at(quiver: Quiver, level: AckLevel, event: bytes = b"x") -> int:
    """Append and return the seq; a segment is made by a flush beside it."""
    if level is not AckLevel.SEGMENT:
        receipt = quiver.append_raw(event, level=level)
    else:
        bundles = quiver.statistics().open_bundles
        waiting = in_thread(lambda: quiver.append_raw(event, level=level))
        until(lambda: quiver.statistics().open_bundles > bundles)
        assert not waiting.done()
        quiver.flush()
        receipt = waiting.result(PATIENCE_S)
    assert receipt.level is level
    return int(receipt.seq)


def written(machine: Machine) -> bool:
    return bool(machine.wal().frames)


# kill -9.


@pytest.mark.parametrize("level", [AckLevel.WRITTEN, AckLevel.FSYNCED, AckLevel.SEGMENT])
def test_what_was_written_survives_kill(machine: Machine, level: AckLevel) -> None:
    append_at(machine.start(), level)
    machine.kill()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_an_append_at_level_memory_is_answered_before_it_is_written_and_lost_by_kill(
    machine: Machine,
) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_WRITE)
    quiver = machine.start(through=lambda _: gated)
    assert quiver.append_raw(b"x", level=AckLevel.MEMORY).seq == 0
    assert not written(machine)
    machine.disk, dead = machine.disk.kill(), machine.disk
    gated.gate.set()
    with pytest.raises(BaseException, match=r"^$|ended"):
        quiver.append_raw(b"y")
    assert dead is not machine.disk
    machine.quiver = None
    assert payloads(machine.start()) == {}


def test_an_append_at_level_memory_is_kept_by_a_clean_close(machine: Machine) -> None:
    machine.start().append_raw(b"x", level=AckLevel.MEMORY)
    machine.stop()
    assert payloads(machine.start()) == {0: [b"x"]}


# Power cuts.


@pytest.mark.parametrize("level", [AckLevel.FSYNCED, AckLevel.SEGMENT])
def test_what_was_synced_survives_a_power_cut(machine: Machine, level: AckLevel) -> None:
    append_at(machine.start(), level)
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_an_append_at_level_written_may_be_lost_by_a_power_cut_before_the_flush_interval(
    machine: Machine,
) -> None:
    quiver = machine.start()
    append_at(quiver, AckLevel.WRITTEN)
    assert written(machine)
    machine.cut_power()
    quiver = machine.start()
    assert payloads(quiver) == {}
    assert quiver.recovery.damages == []


def test_an_append_at_level_fsynced_takes_along_what_was_only_written(machine: Machine) -> None:
    quiver = machine.start()
    for level in (AckLevel.WRITTEN, AckLevel.MEMORY, AckLevel.FSYNCED):
        append_at(quiver, level, level.name.encode())
    machine.cut_power()
    assert sorted(payloads(machine.start()).values()) == [[b"FSYNCED"], [b"MEMORY"], [b"WRITTEN"]]


def test_an_append_at_level_segment_is_answered_once_a_segment_holds_it(machine: Machine) -> None:
    quiver = machine.start()
    seq = append_at(quiver, AckLevel.SEGMENT)
    (segment,) = quiver.segments()
    assert segment.summary.first_seq == seq == segment.summary.last_seq
    for path in machine.wal_paths():
        machine.disk.unlink(path, "test")
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_an_append_at_level_segment_is_answered_by_the_age_of_the_buffer(machine: Machine) -> None:
    quiver = machine.start(quiet(max_open_duration_s=0.01))
    quiver.append_raw(b"x", level=AckLevel.SEGMENT)
    assert len(quiver.segments()) == 1


# Readers.


def test_readers_see_nothing_that_a_power_cut_may_take_back(machine: Machine) -> None:
    quiver = machine.start()
    append_at(quiver, AckLevel.FSYNCED, b"synced")
    append_at(quiver, AckLevel.WRITTEN, b"written")
    assert payloads(quiver) == {0: [b"synced"]}
    assert quiver.bundle(1) is None
    assert quiver.statistics().synced_seq == 0
    append_at(quiver, AckLevel.FSYNCED, b"synced too")
    assert sorted(payloads(quiver)) == [0, 1, 2]


# Levels of one group, and of repeats.


def test_no_one_in_a_group_is_answered_before_the_own_level_is_reached(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    first = in_thread(lambda: quiver.append_raw(b"first"))
    assert gated.reached.wait(PATIENCE_S)
    others = {level: in_thread(partial(quiver.append_raw, b"x", level=level)) for level in AckLevel}
    until(lambda: quiver.statistics().pending_bytes >= 25 + 4 * 21)
    gated.gate.set()
    assert first.result(PATIENCE_S).level is AckLevel.FSYNCED
    for level in (AckLevel.MEMORY, AckLevel.WRITTEN, AckLevel.FSYNCED):
        assert others[level].result(PATIENCE_S).level is level
    assert not others[AckLevel.SEGMENT].done()
    quiver.flush()
    assert others[AckLevel.SEGMENT].result(PATIENCE_S).level is AckLevel.SEGMENT


def test_a_repeat_at_level_fsynced_is_answered_only_once_the_first_time_is_synced(
    machine: Machine,
) -> None:
    """The same epoch had been appended at level written, and was not yet on stable storage."""
    quiver = machine.start()
    first = quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.WRITTEN)
    repeat = quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.FSYNCED)
    assert (repeat.seq, repeat.duplicate, repeat.level) == (first.seq, True, AckLevel.FSYNCED)
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_a_repeat_at_level_fsynced_is_refused_when_the_first_time_cannot_be_synced(
    machine: Machine,
) -> None:
    failing = [
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC),
        Fault(QuiverPoint.WAL_CREATE, FaultKind.EIO, nth=2),
    ]
    quiver = machine.start(faults=failing)
    quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.WRITTEN)
    with pytest.raises(NotAccepted) as refused:
        quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.FSYNCED)
    assert refused.value.stored == "maybe"


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_repeat_at_level_segment_is_answered_only_once_a_segment_holds_the_first_time(
    machine: Machine, handed_over: bool
) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.SEAL_RENAME)
    quiver = machine.start(through=lambda _: gated)
    first = quiver.append_raw(b"x", producer="p", epoch=1)
    if handed_over:
        in_thread(quiver.flush)
        assert gated.reached.wait(PATIENCE_S)
    repeat = in_thread(
        lambda: quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.SEGMENT)
    )
    quiver.append_raw(b"y")  # behind the repeat
    assert not repeat.done()
    gated.gate.set()
    quiver.flush()
    assert repeat.result(PATIENCE_S).seq == first.seq
    assert quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.SEGMENT).seq == first.seq


def test_a_repeat_within_a_group_keeps_its_own_level(machine: Machine) -> None:
    """It used to be answered with the append it repeats, at that one's level."""
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    in_thread(lambda: quiver.append_raw(b"first"))
    assert gated.reached.wait(PATIENCE_S)
    leader = in_thread(
        lambda: quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.MEMORY)
    )
    until(lambda: quiver.statistics().pending_bytes >= 25 + 21)
    follower = in_thread(
        lambda: quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.SEGMENT)
    )
    until(lambda: quiver.statistics().pending_bytes >= 25 + 2 * 21)
    gated.gate.set()
    assert not leader.result(PATIENCE_S).duplicate
    assert not follower.done()
    quiver.flush()
    assert follower.result(PATIENCE_S).duplicate
    assert sorted(payloads(quiver)) == [0, 1]


# The flush interval.


def test_the_flush_interval_defaults_to_25_ms() -> None:
    assert WalConfig().flush_interval_s == 0.025


@pytest.mark.parametrize("level", [AckLevel.MEMORY, AckLevel.WRITTEN])
def test_data_that_was_only_written_is_synced_by_timer_without_another_append(
    machine: Machine, level: AckLevel
) -> None:
    """Upstream looks at the interval only when the next append comes."""
    quiver = machine.start(quiet(level, flush_interval_s=0.01))
    quiver.append_raw(b"last of a burst")
    until(lambda: quiver.statistics().synced_seq == 0)
    assert payloads(quiver) == {0: [b"last of a burst"]}
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"last of a burst"]}


def test_a_flush_interval_of_zero_syncs_at_once(machine: Machine) -> None:
    quiver = machine.start(quiet(AckLevel.WRITTEN, flush_interval_s=0.0))
    quiver.append_raw(b"x")
    until(lambda: quiver.statistics().synced_seq == 0)


def test_a_sync_that_fails_by_timer_is_rescued_into_another_file(machine: Machine) -> None:
    quiver = machine.start(
        quiet(AckLevel.WRITTEN, flush_interval_s=0.01),
        faults=[Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC)],
    )
    quiver.append_raw(b"x")
    until(lambda: quiver.statistics().synced_seq == 0)
    assert quiver.statistics().writer.sync_failures == 1
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}
