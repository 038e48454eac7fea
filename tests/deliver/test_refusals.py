"""Runs of refusals: whose fault it is, and what becomes of the events meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.deliver.refusals import Refusals
from holdfast.deliver.window import Item, TrackedBundle, Verdict
from holdfast.quiver import Position, Range
from holdfast.quiver.segments.segment import Ref
from holdfast.signals.event import Event


def item(seq: int) -> Item:
    planned = Range(Position(seq), Position(seq + 1), 1, 1, (Ref(seq, 1, 1, 0, seq),))
    event = Event("q", Position(seq), "events", b"", {}, 0)
    return Item(event, "", TrackedBundle(planned, 0, 0))


def verdict(code: str) -> Verdict:
    return Verdict("permanent", code, "no")


def test_a_run_is_proven_by_different_events_only() -> None:
    refusals = Refusals(3, 10.0)
    same = item(0)
    for _ in range(5):
        assert refusals.refused(same, verdict("404"), 0.0) == []
        assert not refusals.is_proven
        refusals.take_back()
    refusals.refused(item(1), verdict("404"), 0.0)
    refusals.refused(item(2), verdict("404"), 0.0)
    assert refusals.is_proven


def test_taking_back_leaves_the_events_to_be_sent_and_the_next_refusal_tells_again() -> None:
    refusals = Refusals(2, 10.0)
    events = [item(0), item(1)]
    for event in events:
        refusals.refused(event, verdict("404"), 0.0)
    assert refusals.overdue(1000.0) == [], "a proven run never stands by time alone"
    refusals.take_back()
    assert [event.verdict for event in events] == [None, None]
    assert refusals.is_proven
    refusals.refused(events[0], verdict("404"), 0.0)
    assert refusals.is_proven
    assert refusals.broken() == [events[0]]
    assert not refusals.is_proven


def test_held_verdicts_stand_by_time_and_still_count() -> None:
    refusals = Refusals(3, 10.0)
    events = [item(seq) for seq in range(3)]
    refusals.refused(events[0], verdict("404"), 0.0)
    assert refusals.hold_left_s(4.0) == 6.0
    assert refusals.overdue(9.9) == []
    assert refusals.overdue(10.0) == [events[0]]
    assert refusals.hold_left_s(10.0) is None
    refusals.refused(events[1], verdict("404"), 50.0)
    refusals.refused(events[2], verdict("404"), 50.0)
    assert refusals.is_proven
    assert refusals.held == events[1:]


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["refuse", "deliver", "wait"]), st.sampled_from("45"))),
)
def test_every_event_stands_or_is_held_and_what_stands_in_a_run_is_bounded(
    run_max: int, moves: list[tuple[str, str]]
) -> None:
    refusals, now_s = Refusals(run_max, 10.0), 0.0
    refused: list[Item] = []
    stand: list[Item] = []
    # Those that stood by time alone, since anything else was heard.
    overdue, last_code = 0, ""
    for seq, (move, code) in enumerate(moves):
        if refusals.is_proven:
            break
        if move == "refuse":
            refused.append(item(seq))
            because = refusals.refused(refused[-1], verdict(code), now_s)
            overdue = 0 if because or code != last_code else overdue
            last_code = code
            stand += because
        elif move == "deliver":
            stand += refusals.broken()
            overdue = 0
        else:
            now_s += 20.0
            late = refusals.overdue(now_s)
            overdue += len(late)
            stand += late
        assert len(refusals.held) <= run_max
    assert sorted(id(i) for i in stand + refusals.held) == sorted(id(i) for i in refused)
    if refusals.is_proven:
        assert overdue < run_max
