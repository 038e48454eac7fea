"""The window: what is decided in any order, and written in the order that a ledger takes."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.readers.setting import StillMachine, must_plan

from holdfast.deliver.window import (
    BUNDLE_OVERHEAD_BYTES,
    DELIVERED,
    Decision,
    DeliveryWindow,
    Item,
    LedgerLine,
    TrackedBundle,
)
from holdfast.quiver import Cursor, Outcome, Position, Range
from holdfast.quiver.segments.segment import BundleRef
from holdfast.signals.event import Event

DEAD = Decision(Outcome.DEAD_LETTERED, "no")
FILTERED = Decision(Outcome.FILTERED)


def tracked(planned: Range, rows_done: dict[int, int]) -> list[TrackedBundle]:
    bundles = []
    for place, ref in enumerate(planned.refs):
        bundle = TrackedBundle(planned, place, rows_done.get(ref.seq, 0))
        for row in range(bundle.recorded, ref.events):
            event = Event("q", Position(ref.seq, row), "events", b"", {}, 0)
            bundle.items.append(Item(event, "", bundle))
        bundle.whole = None if bundle.items else DELIVERED
        bundles.append(bundle)
    return bundles


def range_of(sizes: list[int]) -> Range:
    refs = tuple(BundleRef(seq, events, 10, 0, seq) for seq, events in enumerate(sizes))
    return Range(Position(0), Position(len(sizes)), sum(sizes), 10 * len(sizes), refs)


def test_consecutive_bundles_with_the_same_outcome_are_one_piece() -> None:
    window = DeliveryWindow()
    items = window.add(tracked(range_of([1, 2, 1, 3]), {}))
    for item, decision in zip(items, [DELIVERED] * 4 + [DEAD, DEAD], strict=False):
        window.decide(item, decision)
    assert [(p.since, p.through, p.decision) for p in window.pieces()] == [
        (Position(0), Position(3), DELIVERED),
        (Position(3), Position(3, 2), DEAD),
    ]
    window.recorded(window.pieces())
    assert window.pieces() == []


def test_a_piece_that_was_not_written_is_given_again() -> None:
    window = DeliveryWindow()
    (item,) = window.add(tracked(range_of([1]), {}))
    window.decide(item, DELIVERED)
    pieces = window.pieces()
    assert window.pieces() == pieces
    window.recorded(pieces)
    assert window.pieces() == []


def test_later_events_of_a_key_wait_for_one_that_is_left_behind() -> None:
    window = DeliveryWindow()
    items = window.add(tracked(range_of([2, 1, 1, 2]), {}))
    for item, key in zip(items, "abcbcb", strict=True):
        item.key = key
        if item is not items[0]:
            window.decide(item, DELIVERED)
    # Of the first request a is missing; so b is left behind, and the later ones of b wait.
    expected = [(Position(1), Position(2)), (Position(3), Position(3, 1))]
    found = [(piece.since, piece.through) for piece in window.pieces()]
    assert found == expected
    window.recorded(window.pieces())
    window.decide(items[0], DELIVERED)
    window.recorded(window.pieces())
    assert window.ahead_bytes == 0


def test_bytes_ahead_are_counted_from_the_oldest_undecided_event() -> None:
    window = DeliveryWindow()
    items = window.add(tracked(range_of([1, 1, 1]), {}))
    each = 10 + BUNDLE_OVERHEAD_BYTES
    assert (window.ahead_bytes, window.pending_events) == (3 * each, 3)
    window.decide(items[1], DELIVERED)
    window.recorded(window.pieces())
    assert (window.ahead_bytes, window.pending_events) == (3 * each, 2)
    assert window.oldest() is items[0]
    window.decide(items[0], DELIVERED)
    window.recorded(window.pieces())
    assert (window.ahead_bytes, window.pending_events) == (each, 1)


def test_a_bundle_that_is_there_already_is_not_taken_twice() -> None:
    window = DeliveryWindow()
    assert len(window.add(tracked(range_of([2, 1]), {}))) == 3
    assert window.add(tracked(range_of([2, 1]), {})) == []
    assert window.pending_events == 3


def test_what_others_decided_is_forgotten() -> None:
    window = DeliveryWindow()
    planned = range_of([2, 1, 1])
    items = window.add(tracked(planned, {}))
    window.decide(items[0], DELIVERED)
    window.forget_all_but({2}, of=[planned])
    assert window.pieces() == []
    assert [item.decision is None for item in items] == [False, False, False, True]
    assert window.oldest() is items[3]
    assert window.pending_events == 1


def write(cursor: Cursor, pieces: list[LedgerLine]) -> None:
    for piece in pieces:
        outcome, reason = piece.decision
        cursor.commit(
            piece.planned, since=piece.since, through=piece.through, outcome=outcome, reason=reason
        )


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.integers(),
    st.integers(1, 4),
)
def test_whatever_is_decided_when_ends_up_in_the_ledger_once(
    sizes: list[int], seed: int, at_once: int
) -> None:
    chance = random.Random(seed)
    with StillMachine() as machine:
        quiver = machine.start()
        cursor = quiver.cursor("reader")
        for events in sizes:
            if events:
                quiver.append_raw([b"x"] * events)
            else:
                quiver.heartbeat("p", 1)
        window, expected = DeliveryWindow(), Counter[Outcome]()
        planned = must_plan(cursor, chance.randint(1, 10))
        waiting = window.add(tracked(planned, cursor.rows_done(planned)))
        while True:
            chance.shuffle(waiting)
            for item in [waiting.pop() for _ in range(min(at_once, len(waiting)))]:
                decision = chance.choice([DELIVERED, DEAD, FILTERED])
                expected[decision.outcome] += 1
                window.decide(item, decision)
            pieces = window.pieces()
            cut = chance.randint(0, len(pieces))
            write(cursor, pieces[:cut])
            window.recorded(pieces[:cut])
            assert quiver.balance("reader").holds
            more = cursor.plan(max_events=chance.randint(1, 10))
            if more is not None:
                waiting += window.add(tracked(more, cursor.rows_done(more)))
            elif not waiting and not pieces:
                break
        account = quiver.balance("reader")
        assert account.pending == (0, 0)
        found = {outcome: counts.events for outcome, counts in account.outcomes.items()}
        assert +Counter(found) == expected
        assert window.ahead_bytes == 0
