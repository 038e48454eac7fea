"""The cursor: ranges in order, planned durably, committed at any event."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import SEGMENTS
from tests.readers.setting import (
    StillMachine,
    append,
    calm,
    check_books,
    drain,
    keep,
    must_plan,
    sealed,
)

from holdfast.errors import BadInput, DataLoss, Fenced, StorageFailed, UnknownPosition
from holdfast.quiver import (
    AckLevel,
    Cursor,
    Outcome,
    Position,
    Quiver,
    Range,
    RetentionConfig,
    SubscriberOptions,
)
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.segments.data_file import READ_CACHE_BYTES
from holdfast.seam.faulty import Fault, FaultKind


def rows(cursor: Cursor, planned: Range) -> list[tuple[int, list[bytes]]]:
    return [(bundle.seq, bundle.payloads) for bundle in cursor.read(planned)]


# ---------------------------------------------------------------- planning and reading


def test_ranges_follow_each_other_without_gap_or_overlap(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    sealed(quiver, 2, bundles=3)
    append(quiver, 4)
    seen: list[int] = []
    end = Position(0)
    while (planned := cursor.plan(max_events=3)) is not None:
        assert planned.start == end
        assert planned.events == 3 or planned.end == Position(10)
        end = planned.end
        seen += [bundle.seq for bundle in cursor.read(planned)]
        cursor.commit(planned)
    assert seen == list(range(10))
    assert cursor.position == Position(10)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(10, 10)


def test_delivery_does_not_wait_for_a_seal_but_for_the_sync(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    quiver.append_raw(b"written", level=AckLevel.WRITTEN)
    assert cursor.plan() is None
    quiver.append_raw(b"synced")
    planned = must_plan(cursor)
    assert rows(cursor, planned) == [(0, [b"written"]), (1, [b"synced"])]
    assert quiver.segments() == ()


def test_batches_that_a_reader_keeps_stay_as_they_were_while_it_reads_on(tmp_path: Path) -> None:
    """Each block is read into memory of its own: more of them here than are kept for reading."""
    numbers = pa.array(range(20_100))
    batches = [pa.record_batch({"n": numbers.slice(n, 20_000)}) for n in range(64)]
    assert sum(batch.nbytes for batch in batches) > READ_CACHE_BYTES
    with Quiver.open(tmp_path / "quiver") as quiver, quiver.cursor("stats") as cursor:
        for batch in batches:
            quiver.append(batch, level=AckLevel.WRITTEN)
        quiver.flush()
        planned = must_plan(cursor, 20_000 * len(batches))
        kept = [batch for bundle in cursor.read(planned) for batch in bundle.slots.values()]
    assert kept == batches


def test_plans_may_be_made_ahead_and_committed_out_of_order(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 6)
    one, two, three = (must_plan(cursor, 2) for _ in range(3))
    assert cursor.plan() is None
    cursor.commit(three)
    lines = quiver.statistics().ledger_lines_total
    cursor.commit(three)
    assert quiver.statistics().ledger_lines_total == lines, "nothing new, and nothing written"
    cursor.commit(one)
    assert cursor.position == Position(2)
    check_books(quiver)
    cursor.commit(two)
    assert cursor.position == Position(6)
    assert check_books(quiver)["stats"].pending == Totals(0, 0)


def test_a_bundle_larger_than_the_limits_is_planned_alone(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 2, events=10, size_bytes=100)
    assert must_plan(cursor, 3).events == 10
    planned = cursor.plan(max_bytes=1)
    assert planned is not None
    assert (planned.start, planned.end) == (Position(1), Position(2))


@pytest.mark.parametrize("limits", [{"max_events": 0}, {"max_bytes": 0}, {"max_events": -1}])
def test_a_plan_without_room_is_refused(still: StillMachine, limits: dict[str, Any]) -> None:
    cursor = still.start().cursor("stats")
    with pytest.raises(BadInput, match="a plan needs room"):
        cursor.plan(**limits)


def test_heartbeats_are_part_of_ranges_and_count_as_bundles_without_events(
    still: StillMachine,
) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    quiver.heartbeat("p", 5)
    planned = must_plan(cursor)
    assert planned.events == 0
    assert [bundle.watermark_ns for bundle in cursor.read(planned)] == [5]
    cursor.commit(planned)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(1, 0)


def test_a_table_holds_the_rows_of_one_slot_without_those_committed_before(
    still: StillMachine,
) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    for first in (0, 10):
        quiver.append({"n": pa.record_batch({"a": [first, first + 1], "b": [1, 2]})})
    quiver.append_raw(b"another slot")
    planned = must_plan(cursor)
    cursor.commit(planned, through=Position(0, 1))
    cursor = quiver.cursor("stats")
    planned = must_plan(cursor)
    table = cursor.table(planned, "n", ["a"])
    assert table.to_pydict() == {"a": [1, 10, 11]}
    assert cursor.table(planned, "nothing").num_rows == 0


def test_a_coroutine_waits_for_a_plan(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")

    async def main() -> Range | None:
        planning = asyncio.create_task(cursor.plan_async(wait_s=PATIENCE_S))
        await quiver.append_raw_async(b"x")
        return await planning

    planned = asyncio.run(main())
    assert planned is not None
    assert planned.events == 1
    assert asyncio.run(cursor.plan_async(wait_s=0.01)) is None


@pytest.mark.parametrize("what", ["cursor", "quiver", "successor"])
def test_who_waits_for_a_plan_learns_at_once_that_there_will_be_none(
    still: StillMachine, what: str
) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    told: list[Fenced] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            cursor.plan(wait_s=PATIENCE_S)
        except Fenced as fenced:
            told.append(fenced)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait(PATIENCE_S)
    if what == "cursor":
        cursor.close()
    elif what == "quiver":
        still.stop()
    else:
        quiver.cursor("stats")
    thread.join(PATIENCE_S / 2)
    assert not thread.is_alive()
    assert len(told) == 1


# ------------------------------------------------------------------------ committing


def test_a_commit_stops_at_any_event(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 3, events=4)
    planned = must_plan(cursor)
    for through, acked in (
        (Position(0, 1), Totals(0, 1)),
        (Position(0, 3), Totals(0, 3)),
        (Position(1, 2), Totals(1, 6)),
        (Position(2, 0), Totals(2, 8)),
    ):
        cursor.commit(planned, through=through)
        assert cursor.position == through
        assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == acked
    cursor.commit(planned)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(3, 12)


def test_a_partial_commit_survives_a_restart_and_the_rest_is_planned(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 2, events=5)
    cursor.commit(must_plan(cursor), through=Position(1, 2))
    quiver._engine.ledger.sync()
    quiver = still.restart(power=True)
    check_books(quiver)
    cursor = quiver.cursor("stats")
    planned = must_plan(cursor)
    assert (planned.start, planned.events) == (Position(1, 2), 3)
    cursor.commit(planned)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(2, 10)


def test_a_lease_takes_over_where_a_cursor_stopped_inside_a_bundle(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 1, events=5)
    cursor.commit(must_plan(cursor), through=Position(0, 2))
    assert list(drain(quiver.lease("stats"))) == [0]
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(1, 5)


def test_committing_again_or_less_changes_nothing(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 4, events=2)
    planned = must_plan(cursor)
    cursor.commit(planned, through=Position(2, 1))
    lines = quiver.statistics().ledger_lines_total
    cursor.commit(planned, through=Position(2, 1))
    cursor.commit(planned, through=Position(1))
    assert quiver.statistics().ledger_lines_total == lines
    cursor.commit(planned)
    cursor.commit(planned)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(4, 8)


@pytest.mark.parametrize(
    "through", [Position(0), Position(3, 1), Position(4), Position(1, 4), Position(1, 9)]
)
def test_a_commit_outside_its_range_is_refused(still: StillMachine, through: Position) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 1, events=4)
    cursor.commit(must_plan(cursor))
    append(quiver, 2, events=4)
    planned = must_plan(cursor)
    with pytest.raises(UnknownPosition):
        cursor.commit(planned, through=through)
    assert check_books(quiver)["stats"].pending == Totals(2, 8)


def test_a_commit_inside_a_bundle_that_is_resolved_already_is_refused(
    still: StillMachine,
) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 3, events=4)
    planned = must_plan(cursor)
    cursor.commit(planned, through=Position(2))
    with pytest.raises(UnknownPosition, match="event 2 of bundle 1"):
        cursor.commit(planned, through=Position(1, 2))
    assert quiver._engine.ledger.subscriber("stats").partial == {}


def test_a_commit_inside_a_number_that_nobody_used_is_refused(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("stats")
    append(quiver, 1)
    quiver = still.restart()
    append(quiver, 1)
    cursor = quiver.cursor("stats")
    planned = must_plan(cursor)
    with pytest.raises(UnknownPosition, match="event 1 of bundle 7"):
        cursor.commit(planned, through=Position(7, 1))
    cursor.commit(planned, through=Position(7))
    assert check_books(quiver)["stats"].pending == Totals(1, 1)


def test_a_range_may_end_in_another_outcome(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 2)
    cursor.commit(must_plan(cursor, 1), outcome=Outcome.FILTERED, reason="not mine")
    cursor.commit(must_plan(cursor, 1), outcome=Outcome.DEAD_LETTERED)
    outcomes = check_books(quiver)["stats"].outcomes
    assert outcomes[Outcome.FILTERED] == outcomes[Outcome.DEAD_LETTERED] == Totals(1, 1)


@pytest.mark.parametrize("kind", [FaultKind.SHORT_WRITE, FaultKind.ENOSPC])
def test_a_commit_cut_off_by_a_full_disk_is_recorded_with_the_reserve(
    still: StillMachine, kind: FaultKind
) -> None:
    quiver = still.start(faults=[Fault(QuiverPoint.LEDGER_WRITE, kind, nth=4)])
    cursor = quiver.cursor("stats")
    append(quiver, 2)
    cursor.commit(must_plan(cursor))
    quiver = still.restart()
    assert quiver.recovery.damages == []
    assert check_books(quiver)["stats"].pending == Totals(0, 0)


def test_a_stale_cursor_accepts_no_losses(still: StillMachine) -> None:
    quiver = still.start()
    old, _ = quiver.cursor("stats"), quiver.cursor("stats")
    with pytest.raises(Fenced):
        old.accept_losses()


# ------------------------------------------------------------------ in any order


def test_bundles_of_a_range_are_committed_in_any_order_and_with_any_outcome(
    still: StillMachine,
) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 4, events=3)
    planned = must_plan(cursor)
    cursor.commit(planned, since=Position(2), through=Position(3))
    cursor.commit(planned, since=Position(1), through=Position(1, 2))
    cursor.commit(
        planned,
        since=Position(1, 2),
        through=Position(2),
        outcome=Outcome.DEAD_LETTERED,
        reason="no",
    )
    assert cursor.position == Position(0)
    assert cursor.rows_done(planned) == {0: 0, 3: 0}
    outcomes = check_books(quiver)["stats"].outcomes
    assert outcomes[Outcome.ACKED] == Totals(1, 5)
    assert outcomes[Outcome.DEAD_LETTERED] == Totals(1, 1)
    cursor.commit(planned, since=Position(3), through=Position(3, 1))
    quiver = still.restart()
    cursor = quiver.cursor("stats")
    planned = must_plan(cursor)
    assert [ref.seq for ref in planned.refs] == [0, 3]
    assert cursor.rows_done(planned) == {0: 0, 3: 1}
    cursor.commit(planned)
    assert check_books(quiver)["stats"].pending == Totals(0, 0)


def test_a_commit_in_the_middle_takes_unused_numbers_before_it_along(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 1)
    quiver = still.restart()
    last = append(quiver, 1)[-1]
    assert last > 1, "numbering goes on behind the block that was reserved"
    cursor = quiver.cursor("stats")
    planned = must_plan(cursor)
    cursor.commit(planned, since=Position(last), through=Position(last + 1))
    cursor.commit(planned, since=Position(0), through=Position(1))
    assert cursor.position == Position(last + 1)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(2, 2)


@pytest.mark.parametrize("since", [Position(1, 2), Position(1, 1), Position(9), Position(0, 1)])
def test_a_commit_that_would_leave_a_hole_inside_a_bundle_is_refused(
    still: StillMachine, since: Position
) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 3, events=3)
    planned = must_plan(cursor)
    with pytest.raises(UnknownPosition):
        cursor.commit(planned, since=since, through=planned.end)
    assert check_books(quiver)["stats"].pending == Totals(3, 9)


def test_a_plan_that_is_not_durable_costs_no_sync_and_outlives_a_kill(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("stats")
    append(quiver, 1)
    syncs = quiver.statistics().ledger_syncs_total
    assert cursor.plan(durable=False) is not None
    assert quiver.statistics().ledger_syncs_total == syncs
    assert len(still.restart()._engine.ledger.subscriber("stats").pins) == 1


# -------------------------------------------------------------------------- promises


def crowded() -> RetentionConfig:
    """Return retention under which a few segments are too many."""
    return RetentionConfig(max_segments=2, size_cap_policy="drop_oldest", max_age_s=600.0)


@pytest.mark.parametrize("power", [False, True])
def test_a_planned_range_reads_the_same_rows_after_a_crash(
    still: StillMachine, power: bool
) -> None:
    quiver = still.start(calm(crowded()))
    cursor = quiver.cursor("stats")
    sealed(quiver, 1, bundles=3)
    planned = must_plan(cursor)
    before = rows(cursor, planned)
    quiver = still.restart(calm(crowded()), power=power)
    sealed(quiver, 4)
    keep(quiver)  # too many segments, and only the planned one may not go
    assert len(quiver.segments()) == 2
    cursor = quiver.cursor("stats", on_data_loss="count")
    keep(quiver)
    sealed(quiver, 2)
    keep(quiver)
    assert rows(cursor, planned) == before
    cursor.commit(planned)
    assert check_books(quiver)["stats"].outcomes[Outcome.ACKED] == Totals(3, 3)


def test_a_plan_that_could_not_be_made_durable_is_not_given(still: StillMachine) -> None:
    faults = [Fault(QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=3)]  # register, attach, pin
    faults += [Fault(QuiverPoint.LEDGER_CREATE, FaultKind.EIO, nth=2)]
    quiver = still.start(faults=faults)
    cursor = quiver.cursor("stats")
    append(quiver, 2)
    with pytest.raises(StorageFailed):
        cursor.plan()
    planned = must_plan(cursor)
    assert planned.start == Position(0)


def test_age_and_drop_oldest_leave_a_planned_range_alone_until_max_pin(
    still: StillMachine,
) -> None:
    retention = RetentionConfig(max_age_s=60.0, max_pin_s=3600.0)
    quiver = still.start(calm(retention))
    cursor = quiver.cursor("stats")
    sealed(quiver, 2)
    planned = must_plan(cursor, 1)
    still.clock.pass_time(120)
    keep(quiver)
    assert [s.summary.first_seq for s in quiver.segments()] == [0]
    assert rows(cursor, planned) == [(0, [b"0xxxxxxxxxx"])]
    still.clock.pass_time(3600)
    keep(quiver)
    assert quiver.segments() == ()
    with pytest.raises(DataLoss) as told:
        rows(cursor, planned)
    assert told.value.ranges == [(0, 1, "expired")]
    assert check_books(quiver)["stats"].outcomes[Outcome.EXPIRED] == Totals(2, 2)


@pytest.mark.parametrize("jump_s", [30 * 86400.0, -30 * 86400.0])
def test_a_clock_that_jumps_does_not_end_a_pin(still: StillMachine, jump_s: float) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=60.0)))
    cursor = quiver.cursor("stats")
    sealed(quiver, 1)
    still.clock.jump(jump_s)
    planned = must_plan(cursor)
    still.clock.pass_time(120)
    keep(quiver)
    still.clock.jump(-jump_s)
    keep(quiver)
    assert rows(cursor, planned) == [(0, [b"0xxxxxxxxxx"])]
    check_books(quiver)


# ------------------------------------------------------------------------- data loss


def lossy(still: StillMachine) -> Quiver:
    """Return a quiver in which the two oldest of three segments were dropped for `stats`."""
    quiver = still.start(calm(RetentionConfig(max_segments=1)))
    quiver.register("stats", options=SubscriberOptions(on_full="drop_oldest"))
    sealed(quiver, 3, bundles=2)
    keep(quiver)
    return quiver


def test_lost_data_is_told_with_exact_seqs_until_it_is_accepted(still: StillMachine) -> None:
    quiver = lossy(still)
    cursor = quiver.cursor("stats")
    for _ in range(2):
        with pytest.raises(DataLoss) as loss:
            cursor.plan()
        assert loss.value.ranges == [(0, 4, "dropped")]
    cursor.accept_losses()
    planned = must_plan(cursor)
    assert (planned.start, planned.end) == (Position(4), Position(6))
    assert check_books(quiver)["stats"].outcomes[Outcome.DROPPED] == Totals(4, 4)


def test_accepted_losses_are_not_told_again_after_a_restart_and_others_are(
    still: StillMachine,
) -> None:
    quiver = lossy(still)
    quiver = still.restart(power=True)
    cursor = quiver.cursor("stats")
    with pytest.raises(DataLoss):
        cursor.plan()
    cursor.accept_losses()
    quiver = still.restart()
    must_plan(quiver.cursor("stats"))


def test_a_cursor_that_only_counts_goes_on_behind_a_loss(still: StillMachine) -> None:
    quiver = lossy(still)
    cursor = quiver.cursor("stats", on_data_loss="count")
    assert must_plan(cursor).start == Position(4)
    with pytest.raises(BadInput, match="on_data_loss is 'ignore'"):
        quiver.cursor("stats", on_data_loss="ignore")  # type: ignore[arg-type]


def test_a_bundle_found_damaged_while_reading_is_counted_and_the_rest_committed(
    still: StillMachine,
) -> None:
    quiver = still.start()
    quiver.register("stats")
    for payload in (b"first", b"second" * 10, b"third"):
        quiver.append_raw(payload)
        quiver.flush()
    still.stop()
    folder = still.disk.list(SEGMENTS)[1].name
    path = SEGMENTS / folder / "000-events.arrow"
    place = still.disk.read(path).index(b"second")
    still.disk.overwrite(path, place, b"\xff")
    quiver = still.start()
    cursor = quiver.cursor("stats")
    planned = must_plan(cursor)
    with pytest.raises(DataLoss) as told:
        rows(cursor, planned)
    assert told.value.ranges == [(1, 2, "damaged")]
    check_books(quiver)
    cursor.commit(planned)
    outcomes = check_books(quiver)["stats"].outcomes
    assert outcomes[Outcome.DAMAGED] == Totals(1, 1)
    assert outcomes[Outcome.ACKED] == Totals(2, 2)


def damaged_middle(still: StillMachine) -> Quiver:
    """Return a quiver with six bundles in two slots of one segment, one byte flipped in slot a."""
    quiver = still.start()
    quiver.register("c")
    for number in range(6):
        quiver.append_raw(b"A%d" % number, slot="a" if number % 2 else "b")
    quiver.flush()
    still.stop()
    folder = SEGMENTS / still.disk.list(SEGMENTS)[0].name
    (path,) = [
        folder / entry.name for entry in still.disk.list(folder) if entry.name.endswith("-a.arrow")
    ]
    content = still.disk.read(path)
    still.disk.overwrite(path, content.index(b"A3"), b"\xff")
    return still.start()


def test_bundles_behind_a_damaged_one_are_not_acked_unread(still: StillMachine) -> None:
    """Reading ended at the first damaged bundle, and the commit acked the sound ones behind it."""
    quiver = damaged_middle(still)
    cursor = quiver.cursor("c")
    planned = must_plan(cursor)
    seen: list[int] = []

    def handle_all() -> None:
        for bundle in cursor.read(planned):
            seen.append(bundle.seq)  # noqa: PERF401 - as anybody writes it

    with pytest.raises(DataLoss) as told:
        handle_all()
    lost = {seq for first, end, _ in told.value.ranges for seq in range(first, end)}
    assert {0, 2, 4} <= {*seen}
    assert {*seen} | lost == set(range(6))
    assert not {*seen} & lost
    cursor.commit(planned)
    outcomes = check_books(quiver)["c"].outcomes
    assert outcomes[Outcome.ACKED].bundles == len(seen)
    assert outcomes[Outcome.DAMAGED].bundles == len(lost) > 0
    cursor.accept_losses()
    assert cursor.plan() is None


def test_a_commit_of_what_was_not_read_is_refused(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("c")
    append(quiver, 5)
    planned = must_plan(cursor)
    reading = cursor.read(planned)
    assert [next(reading).seq, next(reading).seq] == [0, 1]
    with pytest.raises(UnknownPosition, match="from 2 to 4 were not read"):
        cursor.commit(planned)
    assert check_books(quiver)["c"].pending == Totals(5, 5)
    cursor.commit(planned, through=Position(2))
    assert [seq for seq, _ in rows(cursor, planned)] == [0, 1, 2, 3, 4]
    cursor.commit(planned)
    assert check_books(quiver)["c"].outcomes[Outcome.ACKED] == Totals(5, 5)
    assert cursor._handed == {}


def test_a_range_may_be_committed_that_somebody_else_reads(still: StillMachine) -> None:
    """A pipeline plans here, and reads sealed files elsewhere."""
    quiver = still.start()
    cursor = quiver.cursor("c")
    append(quiver, 5)
    cursor.commit(must_plan(cursor))
    assert check_books(quiver)["c"].outcomes[Outcome.ACKED] == Totals(5, 5)
