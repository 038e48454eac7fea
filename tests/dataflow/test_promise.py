"""The promise: the watermark never passes an event that waits, and every event is counted once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dataflow.world import STEP_US, World

from holdfast.dataflow.watermark.claims import WatermarkSettings

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


YEARS_US = 10**14
_PAUSES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=20)


def replay(world: World, pauses: list[tuple[int, int]]) -> int:
    """Send history in order, one event at a time; return how many rows came for closed windows.

    Each comes so many steps after the one before, in event time, and after so long a pause.
    """
    world.clock_us += YEARS_US
    event_us, expected, closed = 0, 0, -1
    for step, pause in pauses:
        if world.accepted and pause * STEP_US > _patience_us(world):
            closed = event_us // world.window_us
        event_us += step * STEP_US
        expected += event_us // world.window_us == closed
        world.clock_us += pause * STEP_US
        settle(world)
        world.append(0, event_us)
        settle(world)
    return expected


def _patience_us(world: World) -> int:
    return int(world.settings.max_delay * 1e6)


def settle(world: World) -> None:
    """Let everything be read, and the claim be carried."""
    for _ in range(2):
        end = world.plan(100)
        world.commit(end, world.run(end), no_data_batch=True)


@given(st.integers(1, 3), st.sampled_from([1, 5, 10]), st.integers(0, 20), _PAUSES)
def test_a_pause_in_a_backfill_makes_nothing_late_that_comes_within_the_delay(
    gateways: int, window_steps: int, delay_steps: int, pauses: list[tuple[int, int]]
) -> None:
    """Also beside others that never had an event. And a new window is never late, however long."""
    settings = WatermarkSettings(max_delay=delay_steps / 1000, idle_after=0.001)
    world = World(gateways, window_steps * STEP_US, settings, retries=False)
    may_be_late = replay(world, pauses)
    assert world.state.late <= may_be_late
    within = World(gateways, window_steps * STEP_US, settings, retries=False)
    replay(within, [(step, min(pause, delay_steps)) for step, pause in pauses])
    assert within.state.late == 0


@given(st.integers(1, 3), st.sampled_from([1, 5, 10]), st.integers(0, 20), _PAUSES)
def test_an_idle_backfill_closes_its_windows_in_the_end(
    gateways: int, window_steps: int, delay_steps: int, pauses: list[tuple[int, int]]
) -> None:
    settings = WatermarkSettings(max_delay=delay_steps / 1000, idle_after=0.001)
    world = World(gateways, window_steps * STEP_US, settings, retries=False)
    replay(world, pauses)
    world.clock_us += (window_steps + delay_steps) * STEP_US
    settle(world)
    assert not world.state.open


def test_a_promise_over_what_comes_again_would_be_broken() -> None:
    """The world can fail: where the lane held nothing, a row that fails would be passed."""
    settings = WatermarkSettings(max_delay=0.0, idle_after=0.001)
    world = World(1, STEP_US, settings, retries=True)
    world.append(0, world.clock_us)
    world.append(0, world.clock_us + STEP_US)
    world.clock_us += 10 * STEP_US
    end = world.plan(5)
    state = world.run(end, frozenset({0}))
    assert state.promised_us == 100 * STEP_US
    world.commit(end, state, no_data_batch=True)
    state.promised_us = world.clock_us
    with pytest.raises(AssertionError, match="passed"):
        world.commit(end, state, no_data_batch=True)


def test_a_row_that_comes_again_is_held_for_max_hold_and_is_late_after_that() -> None:
    """Hole H2 of Numaflow: a nacked message is forgotten by the tracker, and dropped as late."""
    settings = WatermarkSettings(max_delay=0.0, idle_after=0.001, max_hold=0.02)
    for waits_ms, late in ((19, 0), (21, 1)):
        world = World(1, STEP_US, settings, retries=True)
        world.append(0, world.clock_us)
        world.append(0, world.clock_us + 5 * STEP_US)
        end = world.plan(5)
        world.commit(end, world.run(end, frozenset({0})), no_data_batch=True)
        world.clock_us += waits_ms * STEP_US
        for failing in (frozenset({0}), frozenset[int]()):
            end = world.plan(5)
            world.commit(end, world.run(end, failing), no_data_batch=True)
        world.finish()
        assert (world.state.late, sum(world.state.closed.values())) == (late, 2 - late)


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
