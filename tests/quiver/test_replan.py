"""Ranges that are planned again after a crash, plans of sealed data only, resumed generations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.patience import PATIENCE_S, until
from tests.quiver.waiting import in_thread
from tests.readers.setting import (
    NEVER_S,
    StillMachine,
    append,
    calm,
    check_books,
    keep,
    must_plan,
    sealed,
)

from holdfast.errors import BadInput, DataLoss, Fenced, UnknownPosition
from holdfast.quiver import (
    Cursor,
    Outcome,
    Position,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    SubscriberOptions,
)
from holdfast.quiver.base.config import MB


def seqs(cursor: Cursor, start: Position, end: Position) -> list[int]:
    return [bundle.seq for bundle in cursor.read(cursor.replan(start, end))]


def sealing_after(seconds: float) -> QuiverConfig:
    config = calm()
    return replace(config, segment=replace(config.segment, min_open_duration_s=seconds))


# -------------------------------------------------------------------------- planning again


@pytest.mark.parametrize("power", [False, True])
def test_a_range_is_the_same_after_a_crash(still: StillMachine, power: bool) -> None:
    quiver = still.start()
    sealed(quiver, 2, bundles=3)
    cursor = quiver.cursor("spark")
    cursor.commit(must_plan(cursor, 1))
    planned = must_plan(cursor, 3)
    assert (planned.start, planned.end) == (Position(1), Position(4))
    quiver = still.restart(power=power)
    append(quiver, 3)
    cursor = quiver.cursor("spark")
    again = cursor.replan(planned.start, planned.end)
    assert again == planned
    assert must_plan(cursor).start == planned.end, "the next plan goes on behind it"
    cursor.commit(again)
    check_books(quiver)


def test_a_range_that_is_planned_again_is_pinned_anew_and_once(still: StillMachine) -> None:
    config = calm(RetentionConfig(max_pin_s=60, max_age_s=10))
    quiver = still.start(config)
    sealed(quiver, 2)
    cursor = quiver.cursor("spark")
    planned = must_plan(cursor)
    still.clock.pass_time(50)
    cursor.replan(planned.start, planned.end)
    still.clock.pass_time(50)
    keep(quiver)
    assert len(quiver.segments()) == 2, "pinned for another minute"
    assert quiver.statistics().subscribers[0].pins == 1
    still.clock.pass_time(20)
    keep(quiver)
    assert quiver.segments() == (), "the pin is too old"


def test_what_was_lost_meanwhile_is_told_by_its_seqs(still: StillMachine) -> None:
    config = calm(RetentionConfig(max_pin_s=60, max_age_s=100))
    quiver = still.start(config)
    sealed(quiver, 2)
    cursor = quiver.cursor("spark")
    planned = must_plan(cursor)
    still.clock.pass_time(101)
    sealed(quiver, 1)
    keep(quiver)
    with pytest.raises(DataLoss) as lost:
        cursor.replan(planned.start, planned.end)
    assert lost.value.ranges == [(0, 2, "expired")]
    assert seqs(cursor, Position(2), Position(3)) == [2], "the loss is not in this range"
    counting = quiver.cursor("spark", on_data_loss="count")
    assert seqs(counting, planned.start, planned.end) == []
    assert seqs(counting, planned.start, Position(3)) == [2]


def test_what_is_committed_is_not_planned_again(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 4, events=3)
    cursor = quiver.cursor("spark", on_data_loss="count")
    planned = must_plan(cursor, 6)
    cursor.commit(planned, through=Position(1, 2))
    for start in (Position(0), Position(1), Position(1, 1)):
        with pytest.raises(UnknownPosition, match=r"all before Position\(seq=1, row=2\)"):
            cursor.replan(start, planned.end)
    rest = cursor.replan(Position(1, 2), planned.end)
    assert (rest.events, [ref.seq for ref in rest.refs]) == (1, [1])
    cursor.commit(rest)
    assert check_books(quiver)["spark"].outcomes[Outcome.ACKED].events == 6


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (Position(2), Position(1)),
        (Position(0), Position(1, 1)),
        (Position(0, -1), Position(1)),
        (Position(0), Position(4)),
        (Position(7), Position(9)),
        (Position(0, 4), Position(2)),
    ],
)
def test_a_range_that_was_never_handed_out_is_refused(
    still: StillMachine, start: Position, end: Position
) -> None:
    quiver = still.start()
    append(quiver, 3, events=3)
    with pytest.raises(UnknownPosition, match="to plan again"):
        quiver.cursor("spark").replan(start, end)


def test_an_empty_range_is_empty_wherever_it_is(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 2)
    cursor = quiver.cursor("spark")
    cursor.commit(must_plan(cursor))
    for seq in (0, 1, 2):
        assert cursor.replan(Position(seq), Position(seq)).refs == ()


def test_numbers_that_nobody_used_do_no_harm(still: StillMachine) -> None:
    quiver = still.start()
    sealed(quiver, 1)
    quiver = still.restart()  # an unclean end skips a block of numbers
    (seq,) = append(quiver, 1)
    assert seq > 1
    cursor = quiver.cursor("spark")
    planned = must_plan(cursor)
    assert seqs(cursor, planned.start, planned.end) == [0, seq]
    assert cursor.replan(Position(1), Position(seq)).events == 0


def test_a_plan_may_begin_where_the_caller_says(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 6)
    cursor = quiver.cursor("spark")
    first = must_plan(cursor, 2)
    assert cursor.plan(max_events=2, start=first.start) == first, "its answer was lost"
    assert must_plan(cursor, 2).start == first.end
    cursor.commit(first)
    behind = cursor.plan(start=Position(0))
    assert behind is not None
    assert behind.start == Position(2), "never before the position"


# ------------------------------------------------------------------------------ sealed data


def test_a_plan_of_sealed_data_ends_where_segments_do(still: StillMachine) -> None:
    quiver = still.start(sealing_after(NEVER_S))
    cursor = quiver.cursor("spark")
    append(quiver, 2)
    assert cursor.plan(sealed_only=True) is None
    quiver.flush()
    append(quiver, 2)
    planned = cursor.plan(sealed_only=True)
    assert planned is not None
    assert planned.end == Position(2)
    assert must_plan(cursor).start == Position(2)


def test_a_waiting_reader_has_the_open_buffer_sealed_early(still: StillMachine) -> None:
    quiver = still.start(sealing_after(0.0))
    cursor = quiver.cursor("spark")
    append(quiver, 2)
    assert quiver.segments() == (), "nobody waits: it would stay open"
    planned = cursor.plan(sealed_only=True, wait_s=PATIENCE_S)
    assert planned is not None
    assert planned.end == Position(2)
    waiting = in_thread(lambda: cursor.plan(sealed_only=True, wait_s=PATIENCE_S))
    append(quiver, 1)
    assert waiting.result(PATIENCE_S).end == Position(3)


def test_a_reader_that_only_looks_has_it_sealed_too(still: StillMachine) -> None:
    quiver = still.start(sealing_after(0.0))
    cursor = quiver.cursor("spark")
    append(quiver, 1)
    assert cursor.plan(sealed_only=True) is None
    until(lambda: len(quiver.segments()) == 1)
    assert cursor.plan(sealed_only=True) is not None


def test_an_early_seal_waits_for_the_least_age(still: StillMachine) -> None:
    quiver = still.start(sealing_after(3600.0))
    cursor = quiver.cursor("spark")
    append(quiver, 1)
    assert cursor.plan(sealed_only=True, wait_s=0.05) is None
    still.clock.pass_time(3600.0)
    append(quiver, 1)  # wakes the writer, whose clock made a leap
    planned = cursor.plan(sealed_only=True, wait_s=PATIENCE_S)
    assert planned is not None
    assert planned.end == Position(2)


def test_a_writer_that_ended_does_not_keep_a_reader_from_sealed_data(still: StillMachine) -> None:
    quiver = still.start(sealing_after(0.0))
    cursor = quiver.cursor("spark")
    sealed(quiver, 1)
    append(quiver, 1)
    quiver._engine.writer.inbox.close()
    planned = cursor.plan(sealed_only=True)
    assert planned is not None
    assert planned.end == Position(1)
    assert cursor.plan(sealed_only=True) is None


def test_the_least_age_is_checked() -> None:
    with pytest.raises(BadInput, match=r"segment\.min_open_duration_s"):
        SegmentConfig(min_open_duration_s=-1.0)
    assert SegmentConfig(target_size_bytes=MB, max_open_duration_s=0.01).min_open_duration_s > 0.01


# ------------------------------------------------------------------------------- generations


def test_a_generation_is_resumed_across_a_restart(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 2)
    generation = quiver.cursor("spark").generation
    quiver = still.restart()
    cursor = quiver.cursor("spark", generation=generation)
    assert cursor.generation == generation
    cursor.commit(must_plan(cursor))
    check_books(quiver)


def test_a_generation_that_was_replaced_is_not_resumed(still: StillMachine) -> None:
    quiver = still.start()
    older = quiver.cursor("spark").generation
    newer = quiver.cursor("spark")
    with pytest.raises(Fenced):
        quiver.cursor("spark", generation=older)
    append(quiver, 1)
    assert newer.plan() is not None, "and it is not disturbed"


def test_a_subscriber_with_a_cap_can_be_resumed_as_it_is(still: StillMachine) -> None:
    quiver: Quiver = still.start()
    options = SubscriberOptions(max_age_s=5.0)
    generation = quiver.cursor("spark", options=options).generation
    quiver.cursor("spark", generation=generation)
    assert quiver._engine.ledger.subscriber("spark").options == options
