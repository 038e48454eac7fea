"""The promise: the watermark never passes an event that waits, and every event is counted once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dataflow.world import STEP_US, World

from holdfast.dataflow.watermark.late import is_late, last_end_us, session_end_us
from holdfast.dataflow.watermark.settings import WatermarkSettings

_APPEND = st.tuples(st.just("append"), st.integers(0, 2), st.integers(-20, 5))
_BATCH = st.tuples(
    st.sampled_from(["batch", "batch", "crash"]), st.integers(1, 5), st.integers(0, 4)
)
_OTHER = st.one_of(
    st.tuples(st.just("tick"), st.integers(1, 10), st.just(0)),
    st.tuples(st.sampled_from(["hide", "show"]), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)
# Many short rounds: some events come, something happens, a batch runs.
ROUNDS = st.lists(
    st.tuples(st.lists(_APPEND, max_size=3), _OTHER, _BATCH).map(lambda r: [*r[0], r[1], r[2]]),
    min_size=5,
    max_size=20,
).map(lambda rounds: [step for steps in rounds for step in steps])


def play(world: World, kind: str, one: int, two: int) -> None:
    if kind == "append":
        event_us = max(0, world.clock_us + two * STEP_US)
        world.append(one % len(world.gateways), event_us)
    elif kind == "tick":
        world.clock_us += one * STEP_US
    elif kind in ("hide", "show"):
        world.gateways[one % len(world.gateways)].reachable = kind == "show"
    elif kind == "restart":
        world.restart()
    else:
        end = world.plan(one)
        failing = frozenset(n for n in range(world.accepted) if n % 5 == two)
        if kind == "crash":
            # The batch ran and was not committed: a new driver runs the same range again.
            world.run(end, failing)
            world.restart()
        world.commit(end, world.run(end, failing), no_data_batch=two % 2 == 0)
        if kind == "crash":
            world.restart()


@given(
    st.integers(1, 3),
    st.sampled_from([1, 5, 10]),
    st.integers(0, 12),
    st.booleans(),
    ROUNDS,
)
def test_the_watermark_never_passes_a_waiting_event_and_all_are_counted_once(
    gateways: int,
    window_steps: int,
    delay_steps: int,
    retries: bool,
    steps: list[tuple[str, int, int]],
) -> None:
    settings = WatermarkSettings(
        max_delay=delay_steps / 1000, idle_after=0.005, max_hold=0.03, unreachable="hold"
    )
    world = World(gateways, window_steps * STEP_US, settings, retries)
    before_us = 0
    for kind, one, two in steps:
        play(world, kind, one, two)
        assert world.start.claim_us >= before_us
        before_us = world.start.claim_us
    world.finish()
    state = world.state
    assert not state.open
    assert not state.lane
    assert sum(state.closed.values()) + state.late == world.accepted


@given(ROUNDS)
def test_a_gateway_that_is_left_out_costs_lateness_and_no_event(
    steps: list[tuple[str, int, int]],
) -> None:
    settings = WatermarkSettings(max_delay=0.0, idle_after=0.005, unreachable="release")
    world = World(2, 5 * STEP_US, settings, retries=False)
    world.check_promise = lambda state, watermark_us: None  # type: ignore[method-assign]
    for kind, one, two in steps:
        play(world, kind, one, two)
    world.finish()
    assert sum(world.state.closed.values()) + world.state.late == world.accepted


def test_a_claim_over_what_is_in_flight_would_break_the_promise() -> None:
    """The world can fail: without holding for rows in flight, one that fails is passed."""
    settings = WatermarkSettings(max_delay=0.0, idle_after=0.001)
    world = World(1, STEP_US, settings, retries=True)
    world.append(0, world.clock_us)
    world.append(0, world.clock_us + STEP_US)
    world.clock_us += 10 * STEP_US
    end = world.plan(5)
    world.commit(end, world.run(end, frozenset({0})), no_data_batch=True)
    too_far = end._replace(claim_us=world.clock_us)
    with pytest.raises(AssertionError, match="passed"):
        world.commit(too_far, world.run(too_far, frozenset({0})), no_data_batch=True)


def test_a_dead_gateway_with_unread_events_is_waited_for_and_nothing_is_late() -> None:
    settings = WatermarkSettings(max_delay=0.0, idle_after=0.005)
    world = World(2, 5 * STEP_US, settings, retries=False)
    for number in range(2):
        world.append(number, world.clock_us)
    end = world.plan(10)
    world.commit(end, world.run(end), no_data_batch=True)
    world.append(1, world.clock_us + STEP_US)  # accepted, unread, and then it dies
    world.gateways[1].reachable = False
    for _ in range(20):
        world.clock_us += 5 * STEP_US
        world.append(0, world.clock_us)
        end = world.plan(10)
        assert end.claim_us <= 101 * STEP_US
        world.commit(end, world.run(end), no_data_batch=True)
    world.gateways[1].reachable = True
    end = world.plan(10)
    world.commit(end, world.run(end), no_data_batch=True)
    assert world.start.claim_us > 101 * STEP_US
    assert world.state.late == 0
    world.finish()
    assert sum(world.state.closed.values()) == world.accepted


# ------------------------------------------------------------------- late, exactly


def test_a_window_is_closed_when_it_ends_at_the_watermark() -> None:
    assert last_end_us(10, size_us=10) == 20  # an event at the end of a window is in the next
    assert last_end_us(9, size_us=10) == 10
    assert is_late(10, watermark_us=10)
    assert not is_late(10, watermark_us=9)
    assert not is_late(10, watermark_us=14, allowed_lateness_us=5)
    assert is_late(10, watermark_us=15, allowed_lateness_us=5)
    assert session_end_us(7, gap_us=3) == 10


@given(st.integers(0, 10_000), st.integers(1, 100), st.integers(1, 100))
def test_the_last_window_is_the_last_that_holds_the_event(
    event_us: int, slides: int, slide_us: int
) -> None:
    size_us = slides * slide_us
    starts = range(0, event_us + 1, slide_us)
    ends = [start + size_us for start in starts if start <= event_us < start + size_us]
    assert last_end_us(event_us, size_us, slide_us) == max(ends)
