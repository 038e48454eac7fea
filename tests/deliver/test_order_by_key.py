"""Order by key: each key in order, keys in parallel, and no key holds the others up for nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.deliver.backend import DOWN, NOT_FOUND, Backend, fails, fails_for
from tests.deliver.stage import EVENTS, Stage, key_of
from tests.deliver.tuned import tuned_settings
from tests.deliver.virtual import really
from tests.patience import PATIENCE_S

from holdfast.deliver.delivery import PREPARED_INLINE_BYTES
from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.deliver.exporter import Answer
from holdfast.deliver.sending import BreakerState
from holdfast.quiver import Outcome
from holdfast.signals import registry
from holdfast.signals.event import Event


def settings(**values: object) -> DeliverySettings:
    return tuned_settings(**{"retention_size": None, "order": "key", **values})


def of_key(payloads: Sequence[bytes], key: bytes) -> list[bytes]:
    return [payload for payload in payloads if payload.startswith(key + b":")]


def numbered(keys: bytes, count: int) -> list[bytes]:
    """Return `count` events for each key, taking turns."""
    return [b"%c:%d" % (key, number) for number in range(count) for key in keys]


def test_each_key_is_in_order_and_keys_run_in_parallel(stage: Stage) -> None:
    events = numbered(b"abcdef", 10)
    stage.append_each(*events)
    stage.deliver_all(settings(lanes=3))
    for key in (b"a", b"b", b"f"):
        assert of_key(stage.backend.taken, key) == of_key(events, key)
    assert stage.backend.most_in_send == 3
    assert stage.events(Outcome.ACKED) == 60


def test_a_batch_holds_one_key(stage: Stage) -> None:
    stage.backend.max_batch_events = 4
    stage.append_each(*numbered(b"ab", 8))
    stage.deliver_all(settings())
    assert all(len({payload[:1] for payload in sent}) == 1 for sent in stage.backend.sends)
    assert max(map(len, stage.backend.sends)) == 4


def test_a_stuck_key_lets_the_others_go_on_and_they_are_in_the_ledger(stage: Stage) -> None:
    events = numbered(b"ab", 10)
    stage.append_each(*events)
    stage.backend.otherwise = fails_for({b"a:3": DOWN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(600.0)
        assert of_key(stage.backend.taken, b"a") == [b"a:0", b"a:1", b"a:2"]
        assert len(of_key(stage.backend.taken, b"b")) == 10
        assert stage.events(Outcome.ACKED) == 13

    stage.run(play, settings())
    stage.kill()
    stage.backend.otherwise = fails_for({})
    stage.backend.taken.clear()
    stage.deliver_all(settings())
    assert stage.backend.taken == [b"a:%d" % number for number in range(3, 10)]


def test_the_others_run_ahead_of_a_stuck_key_only_so_far(stage: Stage) -> None:
    stage.append(b"a:0")
    stage.append_each(*(b"b:" + b"x" * 1000 for _ in range(40)))
    stage.backend.otherwise = fails_for({b"a:0": DOWN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(600.0)
        ahead = len(stage.backend.taken)
        assert 5 <= ahead <= 9, "10 000 bytes of payload at most"
        found = stage.statistics()
        assert (found.state, found.stuck_key) == (State.STALLED, "a")
        assert "'a'" in str(found.stalled_by)
        await stage.timer.pass_s(600.0)
        assert len(stage.backend.taken) == ahead
        stage.backend.otherwise = fails_for({})
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.statistics().stuck_key is None

    stage.run(play, settings(read_ahead_size=10_000, breaker_failures=1000))


def test_a_dead_destination_is_tried_by_one_key_at_a_time(stage: Stage) -> None:
    stage.append_each(*numbered(b"abcdefghij", 2))
    stage.backend.otherwise = fails(DOWN)

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(100.0)
        before = len(stage.backend.sends)
        await stage.timer.pass_s(1000.0)
        assert len(stage.backend.sends) - before <= 1000 / 50 + 1
        stage.backend.otherwise = fails_for({})
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings(breaker_open_s=50.0, lanes=10))


def test_an_event_that_fails_holds_up_its_own_key_alone(stage: Stage) -> None:
    stage.append_each(b"a:0", b"a:1", *numbered(b"b", 3))
    stage.backend.otherwise = fails_for({b"a:0": NOT_FOUND})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(3600.0)
        assert stage.backend.taken == numbered(b"b", 3)
        held = stage.statistics().held
        assert held is not None
        assert (held.seq, held.code) == (0, "404")

    stage.run(play, settings())
    assert stage.letters.stored == []


def test_events_without_a_key_share_a_lane(stage: Stage) -> None:
    def broken_key_of(event: Event) -> str:
        raise ValueError

    stage.append_each(b"a", b"b", b"c")
    registry.register(replace(EVENTS, order_keys={"name": broken_key_of}))
    stage.deliver_all(settings())
    assert stage.backend.taken == [b"a", b"b", b"c"]


def test_one_request_with_many_keys_is_recorded_event_by_event_as_far_as_it_goes(
    stage: Stage,
) -> None:
    stage.append(b"a:0", b"b:0", b"c:0", b"b:1")
    stage.append(b"c:1", b"a:1")
    stage.backend.otherwise = fails_for({b"b:0": DOWN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(100.0)
        assert sorted(stage.backend.taken) == [b"a:0", b"a:1", b"c:0", b"c:1"]
        # c:0 is behind b:0 in its request, and c:1 waits for it, and a:1 is behind c:1.
        assert stage.events(Outcome.ACKED) == 1

    stage.run(play, settings())
    stage.kill()
    stage.backend.otherwise = fails_for({})
    stage.backend.taken.clear()
    stage.deliver_all(settings())
    assert sorted(stage.backend.taken) == [b"a:1", b"b:0", b"b:1", b"c:0", b"c:1"]
    assert of_key(stage.backend.taken, b"c") == [b"c:0", b"c:1"]


def test_a_window_full_of_one_stuck_key_is_bounded_too(stage: Stage) -> None:
    stage.append_each(*numbered(b"a", 50))
    stage.backend.otherwise = fails(DOWN)

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(100.0)
        delivery = destination._delivery
        assert delivery is not None
        assert delivery.window.pending_events <= 10

    stage.run(play, settings(window_events=10, breaker_failures=1000))


def test_a_slow_key_does_not_keep_a_slot_while_it_backs_off(stage: Stage) -> None:
    stage.append_each(b"a:0", *numbered(b"b", 10))

    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        assert key_of(events[0]) in "ab"
        return fails_for({b"a:0": DOWN})(backend, events)

    stage.backend.otherwise = behave

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: len(stage.backend.taken) == 10)

    stage.run(play, settings(lanes=1))


def test_the_breaker_may_open_while_a_large_event_is_prepared(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_signals", [replace(EVENTS, count=len)])
    prepared, is_open = threading.Event(), threading.Event()

    def process(event: Event) -> Event:
        if event.payload.startswith(b"large:"):
            assert is_open.wait(PATIENCE_S)
            prepared.set()
        return event

    stage.paths = [process]
    stage.append_each(b"large:" + bytes(PREPARED_INLINE_BYTES), b"b:0")
    stage.backend.otherwise = fails(DOWN)

    async def play(destination: Destination) -> None:
        await really(lambda: destination.statistics().breaker is BreakerState.OPEN)
        is_open.set()
        assert await asyncio.to_thread(prepared.wait, PATIENCE_S)
        await stage.timer.quiet()
        stage.backend.otherwise = fails_for({})
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings(lanes=2, breaker_failures=1))
    assert len(stage.backend.taken) == 2
