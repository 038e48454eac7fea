"""The ledger: what is written is applied, what a crash leaves is what was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.readers.ledgers import (
    LEDGER,
    NOON_NS,
    begin,
    empty_disk,
    line,
    recover,
    subscriber,
)
from tests.support.examples import examples

from holdfast.errors import BadInput, Fenced, QuiverClosed, StorageFailed, UnknownSubscriber
from holdfast.quiver import LedgerConfig
from holdfast.quiver.base.config import KB
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger.ledger import Ledger, LedgerState
from holdfast.quiver.ledger.subscriber import Outcome, Position
from holdfast.seam.clock import JumpingClock
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

NAMES = st.sampled_from(["archive", "stats", "spare"])
SEQS = st.integers(0, 30)


def files(disk: SimulatedDisk) -> list[str]:
    return [entry.name for entry in disk.list(LEDGER)]


# ------------------------------------------------------------------ state and replay


CHANGES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "pause": st.just({}),
    "resume": st.just({}),
    "detach": st.just({"since_ns": NOON_NS + 5}),
    "accept_losses": st.just({}),
    "absent": st.builds(lambda s: {"absent_s": s, "since_ns": NOON_NS}, st.floats(0, 1e9)),
    "attempt": st.builds(lambda seq, n: {"seq": seq, "attempt": n}, SEQS, st.integers(1, 9)),
    "nack": st.builds(
        lambda seq, n, why: {"seq": seq, "attempt": n, "reason": why},
        SEQS,
        st.integers(1, 9),
        st.text(max_size=5),
    ),
    "options": st.builds(
        lambda size, age, full: {"options": {"max_bytes": size, "max_age_s": age, "on_full": full}},
        st.none() | st.integers(1, 2**50),
        st.none() | st.floats(0.1, 1e9),
        st.sampled_from(["block", "drop_oldest"]),
    ),
    "pin": st.builds(
        lambda a, b: {"first_seq": a, "end_seq": a + b, "since_ns": NOON_NS},
        SEQS,
        st.integers(1, 9),
    ),
    "reopen": st.builds(
        lambda a, b, n: {"first_seq": a, "end_seq": a + b, "accepted_before": [-n, -2 * n]},
        SEQS,
        st.integers(1, 9),
        st.integers(0, 9),
    ),
}
STEPS = st.one_of(
    st.tuples(st.just("register"), NAMES, SEQS),
    st.tuples(st.just("unregister"), NAMES, st.none()),
    st.tuples(st.just("attach"), NAMES, st.none()),
    st.tuples(
        st.just("resolve"),
        NAMES,
        st.tuples(SEQS, st.integers(0, 8), st.integers(0, 3), st.sampled_from(Outcome)),
    ),
    st.tuples(st.just("deleted"), st.just(""), st.tuples(st.integers(1, 20), SEQS)),
    st.tuples(st.just("rotate"), st.just(""), st.none()),
    *(
        st.tuples(st.just("change"), NAMES, st.tuples(st.just(verb), fields))
        for verb, fields in CHANGES.items()
    ),
)


def take(ledger: Ledger, verb: str, name: str, argument: Any) -> None:
    """Do one random step, if it is possible."""
    known = name in ledger.state.subscribers
    if verb == "deleted":
        segment_seq, epoch = argument
        producers = {f"p{epoch % 3}": [epoch, 5, 1, 2, NOON_NS]}
        ledger.change("deleted", segment_seq=segment_seq, totals=[2, 4], producers=producers)
    elif verb == "rotate":
        ledger._rotate()
    elif verb == "register":
        if not known:
            ledger.register(subscriber(name, argument))
    elif not known:
        return
    elif verb == "attach":
        ledger.attach(name)
    elif verb == "resolve":
        start, length, row, outcome = argument
        ledger.resolve([line(name, start, start + length, outcome, end_row=row)])
    elif verb == "change":
        ledger.change(argument[0], name, **argument[1])
    else:
        ledger.change(verb, name)


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=examples(150))
def test_the_state_after_replay_is_the_state_that_was_live(steps: list[Any]) -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    for verb, name, argument in steps:
        take(ledger, verb, name, argument)
    after_kill = recover(disk.snapshot())
    assert after_kill.state == ledger.state
    assert (after_kill.damaged_bytes, after_kill.torn_bytes, after_kill.unreadable) == (0, 0, [])
    assert LedgerState.from_fields(ledger.state.to_fields()) == ledger.state
    ledger.sync()
    assert recover(disk.power_loss()).state == ledger.state


def test_a_line_survives_a_kill_at_once_and_a_power_cut_after_the_sync() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    ledger.resolve([line("archive", 0, 4)])
    assert recover(disk.snapshot()).state.subscribers["archive"].high_water_seq == 4
    assert recover(disk.snapshot().power_loss()).state.subscribers["archive"].high_water_seq == 0
    ledger.sync()
    assert recover(disk.power_loss()).state.subscribers["archive"].high_water_seq == 4


def test_registering_and_attaching_are_durable_when_they_return() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive", 3))
    generation = ledger.attach("archive")
    found = recover(disk.power_loss()).state.subscribers["archive"]
    assert (found.start_seq, found.generation) == (3, generation)


def test_a_subscriber_is_registered_once() -> None:
    ledger = begin(empty_disk())
    ledger.register(subscriber("archive"))
    with pytest.raises(BadInput, match="is registered"):
        ledger.register(subscriber("archive"))
    with pytest.raises(UnknownSubscriber, match="registered subscribers: archive"):
        ledger.subscriber("nobody")


# ------------------------------------------------------------------------ fencing


def test_a_line_of_an_older_generation_is_refused_and_changes_nothing() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    old, new = ledger.attach("archive"), ledger.attach("archive")
    before = disk.read(LEDGER / files(disk)[-1])
    with pytest.raises(Fenced, match=f"generation {old} .* replaced by {new}"):
        ledger.resolve([line("archive", 0, 1, generation=old)])
    assert disk.read(LEDGER / files(disk)[-1]) == before
    ledger.resolve([line("archive", 0, 1, generation=new)])
    assert ledger.subscriber("archive").high_water_seq == 1


def test_a_generation_is_not_used_again_by_a_subscriber_of_the_same_name() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    old = ledger.attach("archive")
    ledger.change("unregister", "archive")
    ledger.close()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    assert ledger.attach("archive") > old
    with pytest.raises(Fenced):
        ledger.check_generation("archive", old)


def test_detaching_an_older_generation_leaves_the_newer_one_attached() -> None:
    ledger = begin(empty_disk())
    ledger.register(subscriber("archive"))
    old, new = ledger.attach("archive"), ledger.attach("archive")
    ledger.detach("archive", old)
    assert ledger.subscriber("archive").absent_since_ns is None
    ledger.detach("archive", new)
    absent_ns = ledger.subscriber("archive").absent_since_ns
    assert absent_ns is not None
    assert NOON_NS <= absent_ns <= ledger.steady.now_ns()


# -------------------------------------------------------------------- failing disk


@pytest.mark.parametrize("kind", [FaultKind.ENOSPC, FaultKind.EIO, FaultKind.SHORT_WRITE])
def test_a_failed_write_is_undone_and_the_next_one_succeeds(kind: FaultKind) -> None:
    disk = empty_disk()
    ledger = begin(disk, [Fault(QuiverPoint.LEDGER_WRITE, kind, nth=2)])
    ledger.register(subscriber("archive"))
    with pytest.raises(StorageFailed, match="the ledger could not be written"):
        ledger.resolve([line("archive", 0, 1)])
    assert ledger.subscriber("archive").high_water_seq == 0
    ledger.resolve([line("archive", 0, 2)])
    recovered = recover(disk.snapshot())
    assert recovered.state == ledger.state
    assert (recovered.damaged_bytes, recovered.torn_bytes) == (0, 0)


def test_a_write_that_cannot_even_be_undone_is_left_behind_in_its_file() -> None:
    disk = empty_disk()
    faults = [
        Fault(QuiverPoint.LEDGER_WRITE, FaultKind.EIO, nth=2),
        Fault(QuiverPoint.LEDGER_UNDO, FaultKind.EIO),
    ]
    ledger = begin(disk, faults)
    ledger.register(subscriber("archive"))
    with pytest.raises(StorageFailed):
        ledger.resolve([line("archive", 0, 1)])
    assert len(files(disk)) == 2
    ledger.resolve([line("archive", 0, 2)])
    assert recover(disk.snapshot()).state == ledger.state


def test_after_a_failed_sync_everything_is_in_a_new_file() -> None:
    disk = empty_disk()
    ledger = begin(disk, [Fault(QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=2)])
    ledger.register(subscriber("archive"))
    ledger.resolve([line("archive", 0, 3)])
    ledger.sync()
    assert len(files(disk)) == 2
    assert recover(disk.power_loss()).state == ledger.state


def test_a_descriptor_whose_sync_failed_is_never_synced_again() -> None:
    disk = empty_disk()
    faults = [
        Fault(QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=2),
        Fault(QuiverPoint.LEDGER_CREATE, FaultKind.ENOSPC, nth=2),
    ]
    ledger = begin(disk, faults)
    ledger.register(subscriber("archive"))
    ledger.resolve([line("archive", 0, 3)])
    with pytest.raises(StorageFailed, match="the ledger could not be synced"):
        ledger.sync()
    ledger.sync()  # the kernel says yes, and has forgotten the bytes
    assert recover(disk.snapshot().power_loss()).state == ledger.state
    ledger.resolve([line("archive", 3, 4)])
    ledger.sync()
    assert recover(disk.power_loss()).state == ledger.state


@pytest.mark.parametrize("point", [QuiverPoint.LEDGER_CHECKPOINT_SYNC, QuiverPoint.LEDGER_SYNC_DIR])
def test_no_line_follows_in_a_file_that_a_half_begun_one_may_replace(point: QuiverPoint) -> None:
    disk = empty_disk()
    faults = [
        Fault(point, FaultKind.EIO, nth=2),
        Fault(QuiverPoint.LEDGER_UNLINK, FaultKind.EIO),
    ]
    ledger = begin(disk, faults)
    ledger.register(subscriber("archive"))
    with pytest.raises(OSError, match="injected"):
        ledger._rotate()
    # The new file is there, with a checkpoint of now, and could not be removed.
    ledger.resolve([line("archive", 0, 5)])
    ledger.sync()
    assert recover(disk.snapshot()).state == ledger.state
    assert recover(disk.power_loss()).state == ledger.state


def test_a_full_disk_at_the_time_of_rotation_does_not_stop_the_acks() -> None:
    disk = empty_disk()
    ledger = begin(disk, [Fault(QuiverPoint.LEDGER_CHECKPOINT, FaultKind.ENOSPC, nth=2, times=5)])
    ledger.register(subscriber("archive"))
    with pytest.raises(OSError, match="no space"):
        ledger._rotate()
    ledger.resolve([line("archive", 0, 5)])
    ledger.sync()
    assert recover(disk.power_loss()).state == ledger.state


def test_a_failed_sync_is_due_again() -> None:
    disk = empty_disk()
    faults = [
        Fault(QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=2),
        Fault(QuiverPoint.LEDGER_CREATE, FaultKind.EIO, nth=2),
    ]
    ledger = begin(disk, faults)
    ledger.register(subscriber("archive"))
    assert ledger.seconds_until_due() is None
    ledger.resolve([line("archive", 0, 3)])
    with pytest.raises(StorageFailed):
        ledger.sync()
    assert ledger.seconds_until_due() is not None
    ledger.sync()
    assert ledger.seconds_until_due() is None


def test_who_waits_for_dirty_lines_is_told_when_it_can_see_them() -> None:
    ledger = begin(empty_disk())
    ledger.register(subscriber("archive"))
    seen: list[float | None] = []
    ledger.on_dirty = lambda: seen.append(ledger.seconds_until_due())
    ledger.resolve([line("archive", 0, 1)])
    ledger.resolve([line("archive", 1, 2)])
    (due_s,) = seen
    assert due_s is not None


def test_a_closed_ledger_refuses_lines_and_may_be_closed_again() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    ledger.resolve([line("archive", 0, 1)])
    ledger.close()
    ledger.close()
    assert recover(disk.snapshot().power_loss()).state == ledger.state
    with pytest.raises(QuiverClosed, match="closed"):
        ledger.resolve([line("archive", 1, 2)])


# ---------------------------------------------------------- rotation and retention


def test_a_full_file_is_closed_and_the_next_one_begins_with_everything() -> None:
    disk = empty_disk()
    ledger = begin(disk, config=LedgerConfig(flush_interval_s=3600.0, rotate_bytes=64 * KB))
    ledger.register(subscriber("archive"))
    seq = 0
    while len(files(disk)) == 1:
        ledger.resolve([line("archive", seq, seq + 1)])
        seq += 1
        ledger.sync_if_due()
        assert seq < 2000
    assert seq > 100
    assert ledger.depth == 0
    ledger.resolve([line("archive", seq, seq + 1)])
    recovered = recover(disk.snapshot())
    assert recovered.state == ledger.state
    assert recovered.replayed_lines == 1
    assert ledger.size_bytes == sum(entry.size_bytes for entry in disk.list(LEDGER))


def test_closed_files_go_when_they_are_old() -> None:
    disk, clock = empty_disk(), JumpingClock(NOON_NS)
    ledger = begin(disk, config=LedgerConfig(flush_interval_s=3600.0, retain_s=60.0), clock=clock)
    for _ in range(3):
        clock.jump(30)
        ledger._rotate()
    ledger.sync_if_due()
    assert len(files(disk)) == 4
    clock.jump(15)
    ledger.sync_if_due()
    assert len(files(disk)) == 3
    clock.jump(1000)
    ledger.sync_if_due()
    assert len(files(disk)) == 1, "the open one stays, however old"
    assert ledger.size_bytes == disk.list(LEDGER)[0].size_bytes


def test_closed_files_go_when_they_are_too_many_bytes() -> None:
    disk = empty_disk()
    ledger = begin(disk, config=LedgerConfig(flush_interval_s=3600.0, retain_bytes=20 * KB))
    for _ in range(6):
        ledger._rotate()
    ledger.sync_if_due()
    assert len(files(disk)) == 3
    assert files(disk)[-1] == "0000000000000007.log"


def test_closed_files_of_earlier_processes_are_kept_and_go_by_the_same_rules() -> None:
    disk, clock = empty_disk(), JumpingClock(NOON_NS)
    for _ in range(3):
        begin(disk, clock=clock).close()
        clock.jump(30)
    ledger = begin(disk, config=LedgerConfig(flush_interval_s=3600.0, retain_s=75.0), clock=clock)
    ledger.sync_if_due()
    assert files(disk) == [f"000000000000000{number}.log" for number in (2, 3, 4)]


def test_a_closed_file_that_cannot_be_removed_is_tried_again() -> None:
    disk = empty_disk()
    ledger = begin(
        disk,
        [Fault(QuiverPoint.LEDGER_UNLINK, FaultKind.EIO)],
        LedgerConfig(flush_interval_s=3600.0, retain_bytes=0),
    )
    ledger._rotate()
    ledger.sync_if_due()
    assert len(files(disk)) == 2
    ledger.sync_if_due()
    assert len(files(disk)) == 1


def test_a_closed_file_somebody_else_removed_is_forgotten() -> None:
    disk = empty_disk()
    ledger = begin(disk, config=LedgerConfig(flush_interval_s=3600.0, retain_bytes=0))
    ledger._rotate()
    disk.unlink(LEDGER / files(disk)[0], "test")
    ledger.sync_if_due()
    assert ledger.size_bytes == disk.list(LEDGER)[0].size_bytes


def test_only_lines_that_wait_are_synced_and_only_when_due() -> None:
    disk = empty_disk()
    faulty = FaultyDisk(disk, (), disk.die)
    ledger = begin(disk, through=faulty)
    ledger.sync()
    ledger.sync_if_due()
    assert QuiverPoint.LEDGER_SYNC not in faulty.calls()
    ledger.register(subscriber("archive"))
    assert faulty.calls()[QuiverPoint.LEDGER_SYNC] == 1
    ledger.resolve([line("archive", 0, 1)])
    ledger.sync_if_due()
    assert faulty.calls()[QuiverPoint.LEDGER_SYNC] == 1
    ledger.sync()
    assert faulty.calls()[QuiverPoint.LEDGER_SYNC] == 2


def test_a_partial_bundle_keeps_its_place_over_checkpoints() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("stats"))
    ledger.resolve([line("stats", 0, 2, end_row=1)])
    ledger._rotate()
    found = recover(disk.power_loss()).state.subscribers["stats"]
    assert found.position == Position(2, 1)
    assert found.counts[Outcome.ACKED] == Totals(2, 5)


def test_the_newest_append_of_a_producer_is_remembered_whatever_segment_goes_last() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    for segment_seq, epoch in ((2, 9), (1, 4)):
        producers = {"p": [epoch, 10 * epoch, 1, 1, NOON_NS + epoch]}
        ledger.change("deleted", segment_seq=segment_seq, totals=[1, 1], producers=producers)
    assert ledger.state.producers["p"].epoch == 9
    assert recover(disk.snapshot()).state == ledger.state


def test_producers_whose_segments_are_gone_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.quiver.ledger.ledger.PRODUCERS_MAX", 3)
    disk = empty_disk()
    ledger = begin(disk)
    for number, name in enumerate(["a", "b", "c", "a", "d"], start=1):
        producers = {name: [number, number, 1, 1, NOON_NS + number]}
        ledger.change("deleted", segment_seq=number, totals=[1, 1], producers=producers)
    assert list(ledger.state.producers) == ["c", "a", "d"]
    assert recover(disk.snapshot()).state == ledger.state


def test_a_deletion_recorded_twice_counts_once() -> None:
    ledger = begin(empty_disk())
    for _ in range(2):  # the first time its sync failed, and the segment stayed
        ledger.change("deleted", segment_seq=4, totals=[2, 7], producers={})
    assert ledger.state.deleted == Totals(2, 7)
