"""A world without Spark: gateways, a query whose rows may fail, and windows that close behind it.

The first query claims, sets rows aside that come again, and promises; the second has the windows,
which close by the promise as Spark's do. What is durable survives `restart`: the gateways' events,
the last planned offset (Spark's offset log), the retry lane, the promise, the open windows as of
the last committed batch. Times are small integers in
µs, but claims are whole milliseconds, so one step is one millisecond.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.dataflow.held import earliest_held_us

from holdfast.dataflow.watermark.claims import (
    Claims,
    EventTimeReport,
    Reach,
    Silence,
    WatermarkSettings,
)

STEP_US = 1000


class Event(NamedTuple):
    """One accepted event, and whether it came in time."""

    number: int
    event_us: int
    in_time: bool


@dataclass
class Gateway:
    """Accepts events, and speaks about them while it is reachable."""

    events: list[Event] = field(default_factory=list)
    reachable: bool = True
    appended_us: int = 0

    def statement(
        self, position: int, claimed_us: int, clock_us: int, idle_after_us: int
    ) -> EventTimeReport:
        waiting = [e.event_us for e in self.events[position:]]
        is_idle = not waiting and clock_us >= self.appended_us + idle_after_us
        newest = max((e.event_us for e in self.events), default=None)
        in_time = [time_us for time_us in waiting if time_us >= claimed_us]
        quiet_us = clock_us - self.appended_us
        return EventTimeReport(min(in_time, default=None), newest, is_idle, clock_us, quiet_us)


class Offset(NamedTuple):
    """How far every gateway is read, and the claim that goes with it."""

    positions: tuple[int, ...]
    claim_us: int


@dataclass
class State:
    """What Spark keeps: open windows, closed ones, late rows, rows to be tried again."""

    open: Counter[int] = field(default_factory=Counter)
    closed: dict[int, int] = field(default_factory=dict)
    late: int = 0
    lane: dict[int, tuple[Event, int]] = field(default_factory=dict)
    # How far the first query's results are complete.
    promised_us: int = 0
    # The watermark that the last batch evicted by: Spark's late filter of the next.
    evicted_by_us: int = 0
    processed: set[int] = field(default_factory=set)


class World:
    """Random gateways, delays, failures and restarts, with the promise checked at every step."""

    def __init__(
        self, gateways: int, window_us: int, settings: WatermarkSettings, retries: bool
    ) -> None:
        self.gateways = [Gateway() for _ in range(gateways)]
        self.settings = settings
        self.window_us = window_us
        self.retries = retries
        self.clock_us = 100 * STEP_US
        self.start = Offset((0,) * gateways, 0)
        self.state = State()
        self.accepted = 0
        # Windows are open for as long as they are.
        self.reach = Reach(None, window_us)
        self.claims = Claims(settings, reach=self.reach)

    def append(self, gateway: int, event_us: int) -> None:
        in_time = event_us >= self.claims.claimed_us
        self.gateways[gateway].events.append(Event(self.accepted, event_us, in_time))
        self.gateways[gateway].appended_us = self.clock_us
        self.accepted += 1

    def plan(self, limit: int) -> Offset:
        """Return where the next batch ends: what the source's `latestOffset` does."""
        ends = tuple(
            min(len(gateway.events), position + limit) if gateway.reachable else position
            for gateway, position in zip(self.gateways, self.start.positions, strict=True)
        )
        heard: dict[str, EventTimeReport | Silence] = {
            f"gateway {number}": gateway.statement(
                ends[number],
                self.claims.claimed_us,
                self.clock_us,
                int(self.settings.idle_after * 1e6),
            )
            if gateway.reachable
            else Silence(self.clock_us)
            for number, gateway in enumerate(self.gateways)
        }
        return Offset(ends, self.claims.update(heard).us)

    def _promise(self, state: State, claim_us: int) -> int:
        """Return what is promised behind a batch: what the lane holds, is not."""
        held_us = earliest_held_us(
            [(event.event_us, failed_us) for event, failed_us in state.lane.values()],
            now_us=self.clock_us,
            max_hold_us=int(self.settings.max_hold * 1e6),
            promised_us=state.promised_us,
        )
        reached_us = claim_us if held_us is None else min(claim_us, held_us)
        return max(state.promised_us, reached_us)

    def run(self, end: Offset, failing: frozenset[int] = frozenset()) -> State:
        """Return the state after the batch; nothing is kept until it is committed."""
        state = copy.deepcopy(self.state)
        rows = [
            event
            for gateway, first, last in zip(
                self.gateways, self.start.positions, end.positions, strict=True
            )
            for event in gateway.events[first:last]
        ]
        again = [event for event, _ in state.lane.values()]
        for event in (*rows, *again):
            if event.number in failing and self.retries:
                _, failed_us = state.lane.get(event.number, (event, self.clock_us))
                state.lane[event.number] = (event, failed_us)
                continue
            state.lane.pop(event.number, None)
            self._count(state, event)
        self._evict(state, state.promised_us)
        state.promised_us = self._promise(state, end.claim_us)
        return state

    def _count(self, state: State, event: Event) -> None:
        assert event.number not in state.processed, "an event was counted twice"
        state.processed.add(event.number)
        window_end = event.event_us // self.window_us * self.window_us + self.window_us
        if window_end <= state.promised_us:
            state.late += 1
            return
        assert window_end > state.evicted_by_us, "Spark would have dropped the row silently"
        state.open[window_end] += 1

    def _evict(self, state: State, watermark_us: int) -> None:
        self.check_promise(state, watermark_us)
        for window_end in [end for end in state.open if end <= watermark_us]:
            assert window_end not in state.closed, "a window was emitted twice"
            state.closed[window_end] = state.open.pop(window_end)
        state.evicted_by_us = watermark_us

    def commit(self, end: Offset, state: State, *, no_data_batch: bool) -> None:
        self.start, self.state = end, state
        if no_data_batch:
            self._evict(self.state, self.state.promised_us)

    def restart(self) -> None:
        """Forget what only the process knew; the last claim is in the offset log."""
        self.claims = Claims(self.settings, self.start.claim_us, self.reach)

    def check_promise(self, state: State, watermark_us: int) -> None:
        """No event that came in time is passed while it waits, unless it was held too long."""
        overdue_us = self.clock_us - int(self.settings.max_hold * 1e6)
        for gateway in self.gateways:
            for event in gateway.events:
                waits = event.in_time and event.number not in state.processed
                _, failed_us = state.lane.get(event.number, (event, self.clock_us))
                if waits and failed_us > overdue_us:
                    assert watermark_us <= event.event_us, f"{watermark_us} passed {event}"

    def finish(self) -> None:
        """Read everything, then claim the end of time: all windows close."""
        for gateway in self.gateways:
            gateway.reachable = True
        end = Offset(tuple(len(g.events) for g in self.gateways), self.start.claim_us)
        self.commit(end, self.run(end), no_data_batch=False)
        closing = end._replace(claim_us=self.claims.close().us)
        self.commit(closing, self.run(closing), no_data_batch=True)
