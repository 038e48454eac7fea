"""A claim never passes an item of a request that was on time when it was accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.batches import seal
from tests.quiver.machine import START_NS
from tests.readers.setting import StillMachine, calm

from holdfast.quiver import Position, Quiver
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.registry import extractors

SLOT = OtlpKind.TRACES.slot
START_US = START_NS // 1000
SECOND_US = 10**6
DAY_S = 86400


def request_of(*ends_s: float | None) -> bytes:
    """Return a request of spans that ended so many seconds after the start; None: at 0."""
    made: Any = REQUESTS[OtlpKind.TRACES]()
    scope = made.resource_spans.add().scope_spans.add()
    for end_s in ends_s:
        time_us = 0 if end_s is None else START_US + int(end_s * SECOND_US)
        scope.spans.add(end_time_unix_nano=time_us * 1000)
    body: bytes = made.SerializeToString()
    return body


def opened(still: StillMachine) -> Quiver:
    return still.start(replace(calm(), extractors=extractors()))


def us(seconds: float) -> int:
    return START_US + int(seconds * SECOND_US)


@pytest.fixture
def still() -> Iterator[StillMachine]:
    with StillMachine() as machine:
        yield machine


@pytest.mark.parametrize("sealed", [False, True])
def test_a_request_that_a_claim_cuts_counts_by_its_items(still: StillMachine, sealed: bool) -> None:
    quiver = opened(still)
    quiver.append_raw(request_of(-30, -10, -20, -5), slot=SLOT)
    quiver.append_raw(request_of(-40, -3), slot=SLOT)
    if sealed:
        seal(quiver)
    expected = {None: -40, -40: -40, -39: -30, -25: -20, -20: -20, -19: -10, -9: -5, -4: -3}
    for claim_s, least_s in expected.items():
        claim_us = None if claim_s is None else us(claim_s)
        assert quiver.statement(Position(0), claim_us=claim_us).min_event_us == us(least_s), claim_s
    assert quiver.statement(Position(0), claim_us=us(-1)).min_event_us is None
    assert quiver.statement(Position(1), claim_us=us(-25)).min_event_us == us(-3)
    assert quiver.statement().max_event_us == us(-3)
    assert quiver.statement().pending_events == 2


@pytest.mark.parametrize("sealed", [False, True])
def test_items_without_a_time_or_of_the_future_are_clamped_one_by_one(
    still: StillMachine, sealed: bool
) -> None:
    quiver = opened(still)
    quiver.append_raw(request_of(None, -50, 400 * DAY_S), slot=SLOT)
    quiver.append_raw(request_of(), slot=SLOT)
    if sealed:
        seal(quiver)
    stated = quiver.statement()
    assert (stated.min_event_us, stated.max_event_us) == (us(-50), us(0))
    # The one without a time has that of its arrival; the one of the future is as far as may be.
    assert quiver.statement(Position(0), claim_us=us(-49)).min_event_us == us(0)
    skew_us = int(calm().max_skew_s * SECOND_US)
    assert quiver.statement(Position(0), claim_us=us(1)).min_event_us == us(0) + skew_us


# What one round appends, whether it seals, how far a claim stays behind, and what is read.
rounds = st.lists(
    st.tuples(
        st.lists(st.integers(-20, 20) | st.none(), min_size=1, max_size=4),
        st.booleans(),
        st.sampled_from([0, 0, 1, 10]),
        st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=2,
    max_size=6,
)


@given(rounds)
def test_no_item_that_was_on_time_is_ever_late(
    made: list[tuple[list[int | None], bool, int, int]],
) -> None:
    claim_us: int | None = None
    position = Position(0)
    # By seq: the times of the items that were on time when they came.
    waiting: dict[int, list[int]] = {}
    with StillMachine() as still:
        quiver = opened(still)
        for ends_s, is_sealed, delay_s, read in made:
            seq = quiver.append_raw(request_of(*ends_s), slot=SLOT).seq
            ends = [us(0 if end_s is None else end_s) for end_s in ends_s]
            waiting[seq] = [end for end in ends if claim_us is None or end >= claim_us]
            if is_sealed:
                quiver.flush()
            position = Position(min(position.seq + read, seq + 1))
            claim_us = claim(quiver, position, claim_us, delay_s)
            held = [end for seq, ends in waiting.items() if seq >= position.seq for end in ends]
            assert claim_us is None or all(end >= claim_us for end in held)


def claim(quiver: Quiver, position: Position, claim_us: int | None, delay_s: int) -> int | None:
    """Return the latest claim that a reader may make, as dataflow does."""
    stated = quiver.statement(position, claim_us=claim_us)
    if stated.max_event_us is None:
        return claim_us
    may_us = stated.max_event_us - delay_s * SECOND_US
    if stated.min_event_us is not None:
        may_us = min(may_us, stated.min_event_us)
    return may_us if claim_us is None else max(claim_us, may_us)
