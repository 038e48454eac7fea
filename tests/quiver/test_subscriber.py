"""A subscriber's state: plain data that lines of the ledger change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.ledgers import NOON_NS, line, subscriber

from holdfast.errors import BadInput
from holdfast.quiver import SubscriberOptions
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.ledger import subscriber as subscriber_module
from holdfast.quiver.ledger.subscriber import (
    LOSSES,
    Outcome,
    Pin,
    Position,
    Resolution,
    Subscriber,
    check_name,
)

LINES = st.lists(
    st.builds(
        lambda start, length, row, outcome: line("x", start, start + length, outcome, end_row=row),
        st.integers(0, 50),
        st.integers(0, 6),
        st.integers(0, 4),
        st.sampled_from(Outcome),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", ["a", "archive", "A-1_b.c", "_", "x" * 64, "0"])
def test_a_good_name_is_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "../up", ".hidden", "-x", "x" * 65, "ä", "a b", "a\n", "a\\b", "a\0"]
)
def test_a_name_with_a_slash_or_another_strange_sign_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="is not a subscriber's name"):
        check_name(name)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_bytes", 0), ("max_bytes", -5), ("max_age_s", 0.0), ("max_age_s", -1.0)],
)
def test_a_cap_that_is_not_positive_is_refused(field: str, value: float) -> None:
    with pytest.raises(BadInput, match=field):
        SubscriberOptions(**{field: value})  # type: ignore[arg-type]


def test_an_unknown_choice_at_the_cap_is_refused() -> None:
    with pytest.raises(BadInput, match="on_full is 'explode'"):
        SubscriberOptions(on_full="explode")  # type: ignore[arg-type]


@given(LINES)
def test_the_high_water_mark_is_the_first_seq_that_is_not_resolved(lines: list[Resolution]) -> None:
    state, done = subscriber("x", 3), set[int]()
    for one in lines:
        state.apply(one)
        done.update(range(one.start.seq, one.end.seq))
    high_water = next(seq for seq in range(3, 200) if seq not in done)
    assert state.high_water_seq == high_water
    assert state.unresolved(0, high_water) is False
    assert state.unresolved(0, high_water + 1) is True
    assert not set(state.partial) & done, "a bundle is resolved, or in part, but not both"


@given(LINES)
def test_the_outcomes_add_up_to_what_is_no_longer_pending(lines: list[Resolution]) -> None:
    state = subscriber("x")
    state.accepted_before = Totals(7, 70)
    total = NOTHING
    for one in lines:
        state.apply(one)
        total = total.plus(*one.counts)
    assert state.resolved_totals == total
    assert state.pending(Totals(1007, 10_070)) == Totals(1000 - total[0], 10_000 - total[1])


@given(LINES)
def test_its_state_comes_back_from_a_checkpoint(lines: list[Resolution]) -> None:
    state = subscriber("x", 2)
    state.options = SubscriberOptions(5_000_000, 2.5, "drop_oldest")
    state.pins.append(Pin(60, 70, NOON_NS))
    for one in lines:
        state.apply(one)
    assert Subscriber.from_fields(state.to_fields()) == state


def test_a_bundle_resolved_in_part_holds_the_position_inside_it() -> None:
    state = subscriber("x")
    state.apply(line("x", 0, 2, end_row=3))
    assert state.position == Position(2, 3)
    assert state.unresolved(2, 3)
    state.apply(line("x", 2, 3))
    assert state.position == Position(3)
    assert state.partial == {}


def test_a_pin_goes_with_the_last_of_its_bundles() -> None:
    state = subscriber("x")
    state.pins = [Pin(0, 3, NOON_NS), Pin(3, 5, NOON_NS)]
    state.apply(line("x", 0, 2))
    state.apply(line("x", 3, 5))
    assert state.pins == [Pin(0, 3, NOON_NS)]
    state.apply(line("x", 2, 3))
    assert state.pins == []


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_was_taken_away_is_a_loss(outcome: Outcome) -> None:
    state = subscriber("x")
    state.apply(line("x", 0, 2, outcome))
    assert state.losses == ([(0, 2, outcome)] if outcome in LOSSES else [])


def test_losses_name_nothing_that_arrived() -> None:
    """Of 250 separate drops 100 ranges were left, and the first went over what had been read."""
    state = subscriber("x")
    for seq in range(500):
        state.apply(line("x", seq, seq + 1, Outcome.DROPPED if seq % 2 else Outcome.ACKED))
    assert state.losses == [(seq, seq + 1, Outcome.DROPPED) for seq in range(1, 500, 2)]
    assert state.losses_left_out == 0


def test_what_was_resolved_before_is_not_lost_with_its_segment() -> None:
    state = subscriber("x")
    state.apply(line("x", 2, 4))
    state.apply(line("x", 7, 8, Outcome.FILTERED))
    state.apply(line("x", 0, 10, Outcome.DROPPED))
    state.apply(line("x", 10, 12, Outcome.DROPPED))
    state.apply(line("x", 12, 13, Outcome.EXPIRED))
    assert state.losses == [
        (0, 2, Outcome.DROPPED),
        (4, 7, Outcome.DROPPED),
        (8, 12, Outcome.DROPPED),
        (12, 13, Outcome.EXPIRED),
    ]


def test_losses_nobody_was_told_of_are_bounded_and_those_left_out_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriber_module, "LOSSES_MAX", 3)
    state = subscriber("x")
    for seq in range(0, 10, 2):
        state.apply(line("x", seq, seq + 1, Outcome.DROPPED))
    assert [first for first, _, _ in state.losses] == [4, 6, 8]
    assert state.losses_left_out == 2
    assert Subscriber.from_fields(state.to_fields()) == state
    state.accept_losses()
    assert (state.losses, state.losses_left_out) == ([], 0)
