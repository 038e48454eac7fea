"""Whatever a destination answers, and wherever the gateway dies: nothing is lost, order is kept.

One example is a gateway's whole life: what it accepts, what the backend answers to one send after
another, whether the dead letters take what they get, and after how many steps the process is
killed, each time. The backend's own journal is compared with what was accepted and with the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.deliver.backend import (
    BAD,
    BROKEN,
    DOWN,
    NOT_FOUND,
    TOO_LARGE,
    UNAUTHORIZED,
    Backend,
    Behaviour,
    fails,
    hangs,
    raises,
)
from tests.deliver.stage import EVENTS, NAME, Stage
from tests.deliver.tuned import tuned_settings
from tests.support.examples import examples

from holdfast.deliver.destination import DeliverySettings
from holdfast.deliver.exporter import Answer, Failure, all_failed
from holdfast.quiver import Outcome
from holdfast.seam.simulated import SimulatedCrash
from holdfast.signals import registry
from holdfast.signals.event import Event

FAILURES = {
    "down": DOWN,
    "broken": BROKEN,
    "bad": BAD,
    "missing": NOT_FOUND,
    "auth": UNAUTHORIZED,
    "huge": TOO_LARGE,
}
# What an event does by itself, whatever the script says.
NATURES = ("good", "good", "good", "bad", "huge", "poison", "filtered", "fragile")
# As soon as it may be; the first round of it sends what was taken before.
POISON = {"attempts": 1, "pairs": 10, "held_s": 0}
# So much time passes in one life; then it is stopped as it should be.
LIFE_S = 3000.0


@dataclass(frozen=True)
class Case:
    order: str
    # Of each request: the key and the nature of its events.
    requests: list[list[tuple[str, str]]]
    batch_events: int
    script: list[str]
    letter_refusals: int
    # After so many steps a process dies.
    deaths: list[int]
    poison: bool
    lanes: int
    window_events: int
    # After an outage; where it is on, order is not promised.
    newest_first: bool = False

    @property
    def may_be_partial(self) -> bool:
        return any(step.startswith("part") for step in self.script)

    def events(self) -> list[list[bytes]]:
        """Return the payloads, request by request; each is unique."""
        numbers = iter(range(1_000_000))
        return [
            [f"{key}:{next(numbers)}:{nature}".encode() for key, nature in request]
            for request in self.requests
        ]

    def delivery(self) -> DeliverySettings:
        return tuned_settings(
            order=self.order,
            poison=POISON if self.poison else None,
            lanes=self.lanes,
            after_outage="newest_first" if self.newest_first else "oldest_first",
            window_events=self.window_events,
        )


steps = st.sampled_from(["ok", *FAILURES, "hang", "hang taken", "raise", "raise taken"])
partial_steps = st.builds(
    lambda kind, mask: f"part {kind} {mask}", st.sampled_from(sorted(FAILURES)), st.integers(1, 15)
)
cases = st.builds(
    Case,
    order=st.sampled_from(["received", "key"]),
    requests=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(NATURES)), min_size=1, max_size=3
        )
        | st.lists(st.tuples(st.sampled_from("abc"), st.just("good")), min_size=1, max_size=1),
        min_size=1,
        max_size=12,
    ),
    batch_events=st.integers(1, 4),
    script=st.lists(steps, max_size=12) | st.lists(steps | partial_steps, max_size=12),
    letter_refusals=st.integers(0, 2),
    deaths=st.lists(st.integers(0, 12), max_size=3),
    poison=st.booleans(),
    lanes=st.integers(1, 3),
    window_events=st.sampled_from([1, 3, 50]),
)


def by_nature(backend: Backend, events: Sequence[Event], at_last: bool) -> Answer:
    """Answer as the events' natures demand: of several, the first that fails decides for all."""
    for event in events:
        nature = event.payload.rpartition(b":")[2]
        failure = {b"bad": BAD, b"huge": TOO_LARGE, b"poison": BROKEN}.get(nature)
        if failure is not None and not (nature == b"poison" and at_last):
            return all_failed(len(events), failure)
    return backend.take(events)


def partly(kind: str, mask: int) -> Behaviour:
    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        failed: dict[int, Failure] = {
            index: FAILURES[kind] for index in range(len(events)) if mask >> index & 1
        }
        backend.take(event for index, event in enumerate(events) if index not in failed)
        return Answer(failed)

    return behave


def behaviour_of(step: str) -> Behaviour:
    kind, *words = step.split()
    if kind == "part":
        return partly(words[0], int(words[1]))
    if kind == "hang":
        return hangs(taken=bool(words))
    if kind == "raise":
        return raises(taken=bool(words))
    if kind == "ok":
        return lambda backend, events: backend.take(events)
    return fails(FAILURES[kind])


def processed(event: Event) -> Event | None:
    nature = event.payload.rpartition(b":")[2]
    if nature == b"fragile":
        raise ValueError
    return None if nature == b"filtered" else event


class Life:
    """All lives of one gateway, and the account of what may have come twice."""

    def __init__(self, case: Case, stage: Stage) -> None:
        self.case = case
        self.stage = stage
        self.requests = case.events()
        self.accepted = [payload for request in self.requests for payload in request]
        self.excused: Counter[bytes] = Counter()
        self.deaths = 0
        self._steps_left: int | None = None
        stage.paths = [processed]
        stage.backend = Backend(max_batch_events=case.batch_events)
        stage.backend.script = [behaviour_of(step) for step in case.script]
        stage.letters.refusals = case.letter_refusals
        stage.reached = self._reached
        self.at_last = False
        stage.backend.otherwise = lambda backend, events: by_nature(backend, events, self.at_last)
        stage.quiver.register(NAME)
        self.seqs = {stage.append(*request): request for request in self.requests}

    def _reached(self, point: str) -> None:
        if self._steps_left is None:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self.stage.machine.disk.kill()
            raise SimulatedCrash

    def live(self, steps: int | None) -> None:
        """Run until everything has an outcome, the time is over, or the process dies."""
        self._steps_left = steps
        stage, deadline_s = self.stage, self.stage.timer.now_s() + LIFE_S

        async def main() -> None:
            destination = stage.make(self.case.delivery())
            task = asyncio.get_running_loop().create_task(destination.run())

            def is_over() -> bool:
                is_late = stage.timer.now_s() > deadline_s and not self.at_last
                return task.done() or is_late or stage.pending() == 0

            await stage.timer.until(is_over)
            if not task.done():
                await stage.stop(destination, task)
            task.result()

        try:
            asyncio.run(main())
        except SimulatedCrash:
            self.deaths += 1
            stage.kill()
            self._count_in_flight()
        else:
            self._count_left_behind()
        stage.check()

    def _unresolved(self) -> Iterator[list[bytes]]:
        """Yield, of each request, the events that the ledger does not know of."""
        subscriber = self.stage.quiver._engine.ledger.subscriber(NAME)
        for seq, request in self.seqs.items():
            if seq not in subscriber.resolved:
                yield request[subscriber.partial.get(seq, 0) :]

    def _count_in_flight(self) -> None:
        """Note what may come again after a crash: the ledger does not know what became of it."""
        known = self._known()
        in_flight = [p for events in self._unresolved() for p in events if p in known]
        self.excused.update(in_flight)
        told = set(in_flight) & set(self.stage.backend.taken) - set(self.stage.backend.untold)
        if all(len(request) == 1 for request in self.requests) and not self.case.may_be_partial:
            sends = self.case.lanes if self.case.order == "key" else 1
            # The send, and one that it is compared with.
            assert len(told) <= sends * (self.case.batch_events + 1), "more than was in flight"

    def _count_left_behind(self) -> None:
        """Note what may come again after a stop: it is behind an undecided event of its request.

        And what is behind that, or it would come again after later events.
        """
        known, untold = self._known(), self.stage.backend.untold
        is_any_left = False
        for first, *behind in self._unresolved():
            is_single = all(len(request) == 1 for request in self.requests)
            if is_single or (self.case.order == "received" and not is_any_left):
                assert first not in known or first in untold or self.excused[first], "not recorded"
            is_any_left = is_any_left or bool(behind)
            self.excused.update(payload for payload in (first, *behind) if payload in known)

    def _known(self) -> set[bytes]:
        """What was delivered, or set aside, so far."""
        return {*self.stage.backend.taken, *self.stage.letters.payloads}

    def finish(self) -> None:
        """Let the backend be well, and every refusal stand."""
        self.at_last = True
        self.stage.backend.script.clear()
        self.live(None)

    # ------------------------------------------------------------------ the verdict

    def check(self) -> None:
        """Compare the backend's journal, the letters and the ledger with what was accepted."""
        stage = self.stage
        taken, letters = Counter(stage.backend.taken), Counter(stage.letters.payloads)
        filtered = {p for p in self.accepted if p.endswith(b":filtered")}
        assert stage.pending() == 0
        for payload in self.accepted:
            assert payload in taken or payload in letters or payload in filtered, "lost"
        assert stage.events(Outcome.FILTERED) == len(filtered)
        dead = stage.events(Outcome.DEAD_LETTERED)
        assert stage.events(Outcome.ACKED) == len(self.accepted) - len(filtered) - dead
        assert dead <= len(letters)
        untold = Counter(stage.backend.untold)
        for payload in self.accepted:
            again = self.excused[payload]
            # What was taken is sent once more to compare another one with it.
            if not self.case.poison:
                assert taken[payload] <= 1 + untold[payload] + again, "delivered again"
            assert letters[payload] <= 1 + again, "set aside again"
            if payload in letters and not again:
                assert taken[payload] <= untold[payload], "delivered, and set aside"
        if not self.case.may_be_partial and not self.case.newest_first:
            for lane in self._lanes():
                # What was taken without our knowing, and refused when it came again, has no place.
                # And what all but certainly was poison is overtaken, and taken in the end.
                gone = {payload for payload in lane if payload.endswith(b":poison")}
                gone = letters.keys() | (gone if self.case.poison else set())
                kept = [payload for payload in lane if payload not in gone]
                last = {p: place for place, p in enumerate(stage.backend.taken) if p in kept}
                came = sorted(last, key=last.__getitem__)
                assert came == [payload for payload in kept if payload in last], "out of order"

    def _lanes(self) -> Iterator[list[bytes]]:
        if self.case.order == "received":
            yield self.accepted
            return
        for key in (b"a", b"b", b"c"):
            yield [payload for payload in self.accepted if payload.startswith(key)]


def play(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(patch)
        if case.newest_first:
            registry.register(replace(EVENTS, promises_order=False))
        try:
            life = Life(case, stage)
            for steps in case.deaths:
                life.live(steps)
            life.live(None)
            life.finish()
            life.check()
        finally:
            stage.close()


def test_what_overtook_a_poisonous_event_does_not_come_again_after_later_ones() -> None:
    # The third event overtakes the second one, of its own request, and so is not recorded; the last
    # one is a request of its own. A restart sent the third event again, behind the last one.
    first, last = [("a", "good"), ("a", "poison"), ("a", "good")], [("a", "good")]
    case = Case(
        order="received",
        requests=[first, last],
        batch_events=1,
        script=[],
        letter_refusals=0,
        deaths=[],
        poison=True,
        lanes=1,
        window_events=3,
    )
    play(case)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_nothing_is_lost_and_order_is_kept(case: Case) -> None:
    note(repr(case))
    play(case)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_nothing_is_lost_or_sent_twice_newest_first(case: Case) -> None:
    case = replace(case, order="received", poison=False, newest_first=True)
    note(repr(case))
    play(case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_nothing_is_lost_or_sent_twice_newest_first_over_many_lives(case: Case) -> None:
    case = replace(case, order="received", poison=False, newest_first=True)
    note(repr(case))
    play(case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_nothing_is_lost_and_order_is_kept_over_many_lives(case: Case) -> None:
    note(repr(case))
    play(case)
