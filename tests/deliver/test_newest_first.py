"""`after_outage: newest_first`: what is new, then what waited back to its oldest, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from pydantic import ValidationError
from tests.deliver.backend import DOWN, fails
from tests.deliver.stage import EVENTS, NAME, Stage
from tests.deliver.test_loop_crash import run_until_killed
from tests.deliver.tuned import tuned_settings

from holdfast.deliver.context import DeliveryPoint
from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.quiver import Outcome
from holdfast.signals import registry


@pytest.fixture(autouse=True)
def _unordered(stage: Stage) -> None:
    registry.register(replace(EVENTS, promises_order=False))


def newest_first(**values: object) -> DeliverySettings:
    """Return settings under which one event is in memory at a time."""
    return tuned_settings(after_outage="newest_first", window_events=1, **values)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_what_waited_comes_from_its_newest_end_and_what_is_new_before_it(stage: Stage) -> None:
    stage.quiver.register(NAME)
    stage.append_each(*numbered(0, 1, 2))
    stage.quiver.flush()
    stage.append_each(*numbered(3, 4))
    new = iter(numbered(5, 6))

    def behave(backend: object, events: object) -> object:
        for payload in [next(new, None)]:
            if payload is not None:
                stage.append(payload)
        return stage.backend.take(events)  # type: ignore[arg-type]

    stage.backend.otherwise = behave  # type: ignore[assignment]
    stage.deliver_all(newest_first())
    assert stage.backend.taken == numbered(4, 5, 6, 3, 2, 1, 0)
    assert stage.quiver.balance(NAME).pending.bundles == 0
    assert stage.quiver._engine.ledger.subscriber(NAME).high_water_seq == 7


def test_several_at_once_keep_their_order_among_themselves(stage: Stage) -> None:
    stage.quiver.register(NAME)
    stage.append_each(*numbered(*range(6)))
    stage.deliver_all(tuned_settings(after_outage="newest_first"))
    assert stage.backend.taken == numbered(*range(6))


def test_after_an_outage_of_the_destination_what_waited_comes_last(stage: Stage) -> None:
    settings = newest_first(breaker_failures=2)

    async def play(destination: Destination) -> None:
        stage.append_each(*numbered(0, 1))
        await stage.timer.until(lambda: stage.pending() == 0)
        stage.backend.script = [fails(DOWN)] * 3
        stage.append_each(*numbered(2, 3, 4, 5))
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings)
    # The third was in memory, and is what the destination was tried with.
    assert stage.backend.taken[2:] == numbered(2, 5, 4, 3)


@pytest.mark.parametrize("point", [DeliveryPoint.SENT, DeliveryPoint.COMMITTED])
@pytest.mark.parametrize("nth", [1, 3, 5])
def test_a_kill_loses_nothing_and_repeats_only_what_was_in_flight(
    stage: Stage, point: DeliveryPoint, nth: int
) -> None:
    settings = newest_first()
    stage.quiver.register(NAME)
    for number in range(6):
        stage.append(b"%d a" % number, b"%d b" % number)
    run_until_killed(stage, point, nth, settings)
    before = list(stage.backend.taken)
    stage.append_each(b"new")
    stage.deliver_all(settings)
    everything = {b"%d %s" % (n, half) for n in range(6) for half in (b"a", b"b")} | {b"new"}
    counts = Counter(stage.backend.taken)
    assert counts.keys() == everything
    twice = [payload for payload, count in counts.items() if count > 1]
    assert twice == (before[-1:] if point is DeliveryPoint.SENT else [])
    assert stage.outcomes() == {Outcome.ACKED: (7, 13)}


def test_a_pause_and_a_replay_forget_nothing(stage: Stage) -> None:
    stage.quiver.register(NAME)
    stage.append_each(*numbered(0, 1, 2))

    async def play(destination: Destination) -> None:
        destination.pause()
        stage.append_each(*numbered(3))
        destination.resume()
        await stage.timer.until(lambda: stage.pending() == 0)
        assert sorted(stage.backend.taken) == numbered(0, 1, 2, 3)
        stage.quiver.replay(NAME, 1, 3)
        stage.append(b"4")
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, newest_first())
    assert sorted(stage.backend.taken[4:]) == numbered(1, 2, 4)


def test_what_promises_an_order_is_held(stage: Stage) -> None:
    registry.register(EVENTS)
    stage.append_each(*numbered(0))

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: destination.statistics().state is State.STALLED)
        assert "events promises an order" in str(destination.statistics().stalled_by)

    stage.run(play, newest_first())
    assert stage.backend.taken == []


def test_an_order_by_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="keeps an order"):
        newest_first(order="key")
