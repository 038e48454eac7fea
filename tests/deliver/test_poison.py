"""The test that an event must fail before it is set aside as poison: what it asks, and of whom."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.deliver.backend import (
    BAD,
    BROKEN,
    DOWN,
    UNAUTHORIZED,
    Backend,
    fails_for,
    fails_whole,
)
from tests.deliver.stage import Stage

from holdfast.deliver.destination import DeliverySettings, Destination
from holdfast.deliver.exporter import Answer, Failure, all_failed
from holdfast.deliver.settings import REMOVED_KEYS
from holdfast.signals.event import Event

PAIRS = 10
BEHIND = tuple(b"%d" % number for number in range(30))


def settings(**poison: object) -> DeliverySettings:
    values = {"pairs": PAIRS, "held_s": 0, **poison}
    return DeliverySettings.model_validate({"retention_bytes": None, "poison": values})


def numbers(payloads: Sequence[bytes]) -> list[bytes]:
    """Return what was taken first, in order, without what was taken before."""
    return list(dict.fromkeys(payloads))


def test_an_event_that_is_always_refused_ends_as_a_dead_letter(stage: Stage) -> None:
    stage.append_each(b"a", b"bad", *BEHIND)
    stage.backend.otherwise = fails_whole({b"bad": BROKEN})
    stage.deliver_all(settings())
    (letter,) = stage.letters.stored
    assert (letter.payload, letter.reason, letter.destination) == (b"bad", "poison", "backend")
    # Five times alone, then in pairs: with what was taken before, then with what comes behind it.
    assert letter.attempts == 5 + 2 * PAIRS
    assert stage.backend.taken.count(b"a") == 1 + PAIRS
    assert numbers(stage.backend.taken) == [b"a", *BEHIND]
    assert all(stage.backend.taken.count(payload) == 1 for payload in BEHIND)


def test_nothing_overtakes_before_the_first_round_is_over(stage: Stage) -> None:
    stage.append_each(b"a", b"bad", *BEHIND)
    stage.backend.otherwise = fails_whole({b"bad": BROKEN})
    stage.deliver_all(settings())
    first = next(n for n, sent in enumerate(stage.backend.sends) if sent == [BEHIND[0]])
    before = stage.backend.sends[:first]
    assert before.count([b"a"]) == 1 + PAIRS
    assert before.count([b"bad"]) >= 5 + PAIRS


def test_without_poison_nothing_is_compared_and_nothing_repeated(stage: Stage) -> None:
    stage.append_each(b"a", b"bad", *BEHIND)
    stage.backend.otherwise = fails_whole({b"bad": BROKEN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(10_000.0)

    stage.run(play, DeliverySettings(retention_bytes=None))
    assert stage.backend.taken == [b"a"]
    assert stage.letters.stored == []


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([b"bad", *BEHIND], "nothing was taken yet that could be sent again"),
        ([b"a", b"bad"], "nothing is behind it, so it holds up nobody"),
        ([b"a", b"bad", *BEHIND[: PAIRS - 1]], "too little is behind it"),
    ],
)
def test_where_nothing_can_be_compared_it_waits(
    stage: Stage, events: list[bytes], why: str
) -> None:
    stage.append_each(*events)
    stage.backend.otherwise = fails_whole({b"bad": BROKEN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(10_000.0)

    stage.run(play, settings())
    assert stage.letters.stored == [], why


def test_it_takes_as_long_as_it_was_told_to(stage: Stage) -> None:
    stage.append_each(b"a", b"bad")
    stage.backend.otherwise = fails_whole({b"bad": BROKEN})

    async def play(destination: Destination) -> None:
        began_s = stage.timer.now_s()
        for payload in BEHIND:
            stage.append(payload)
        while not stage.letters.stored:
            stage.append(b"more")
            await stage.timer.pass_s(60.0)
        assert stage.timer.now_s() - began_s >= 7200.0

    stage.run(play, settings(held_s=7200))


@pytest.mark.parametrize("failure", [DOWN, UNAUTHORIZED, Failure(DOWN.kind, "no", code="timeout")])
def test_only_server_errors_are_suspect(stage: Stage, failure: Failure) -> None:
    stage.append_each(b"a", b"bad", *BEHIND)
    stage.backend.otherwise = fails_whole({b"bad": failure})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(10_000.0)

    stage.run(play, settings())
    assert stage.backend.taken == [b"a"]
    assert stage.letters.stored == []


def test_a_backend_that_remembers_what_it_has_cannot_make_poison_of_a_good_event(
    stage: Stage,
) -> None:
    """It takes what it knows without any work, and fails at everything new until it is mended."""
    stage.append_each(b"a", *BEHIND)
    seen: set[bytes] = {b"a"}

    def nothing_new(backend: Backend, events: Sequence[Event]) -> Answer:
        if all(event.payload in seen for event in events):
            return backend.take(events)
        return all_failed(len(events), BROKEN)

    stage.backend.otherwise = nothing_new

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(10_000.0)
        assert stage.letters.stored == []
        assert set(stage.backend.taken) == {b"a"}
        stage.backend.otherwise = lambda backend, events: backend.take(events)
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings())
    assert stage.letters.stored == []
    assert sorted(set(stage.backend.taken)) == sorted([b"a", *BEHIND])


def test_replicas_that_take_turns_cannot_make_poison_of_a_good_event(stage: Stage) -> None:
    """Every second request fails. Sent always first, or always second, the head would always."""
    stage.append_each(b"a", *BEHIND)
    requests = iter(range(1, 1_000_000))

    def every_second(backend: Backend, events: Sequence[Event]) -> Answer:
        # The first ten fail, so that the head is suspected.
        is_bad = 1 < (number := next(requests)) < 12 or number % 2
        return all_failed(len(events), BROKEN) if number > 1 and is_bad else backend.take(events)

    stage.backend.otherwise = every_second
    stage.deliver_all(settings())
    assert stage.letters.stored == []
    assert numbers(stage.backend.taken) == [b"a", *BEHIND]


@pytest.mark.parametrize("failure", [BAD, UNAUTHORIZED])
def test_an_event_to_compare_with_that_is_refused_itself_proves_nothing(
    stage: Stage, failure: Failure
) -> None:
    stage.append_each(b"a", b"bad", *BEHIND)
    stage.backend.otherwise = fails_for({b"bad": BROKEN, **dict.fromkeys(BEHIND, failure)})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(10_000.0)
        assert b"bad" not in stage.letters.payloads
        stage.backend.otherwise = lambda backend, events: backend.take(events)
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings())
    assert stage.backend.taken[-1] == b"bad" or failure is UNAUTHORIZED


def test_by_key_an_event_is_not_repeated_while_what_follows_it_is_under_way(stage: Stage) -> None:
    stage.append_each(b"x:0", b"b:bad")
    stage.backend.otherwise = fails_whole({b"b:bad": BROKEN})

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.backend.sends.count([b"b:bad"]) > 5)
        for number in range(1, 40):
            stage.append(b"x:%d" % number)
            stage.append(b"b:%d" % number)
            await stage.timer.pass_s(30.0)
        await stage.timer.until(lambda: stage.pending() == 0)

    changes = {"order": "key", "lanes": 3}
    stage.run(play, settings().model_copy(update=changes))
    assert stage.letters.payloads == [b"b:bad"]
    latest = 0
    for payload in stage.backend.taken:
        key, number = payload.split(b":")
        if key == b"x":
            assert int(number) >= latest, "an event came again after what follows it"
            latest = int(number)


def test_the_bound_holds_for_any_backend_that_does_not_look_at_events() -> None:
    """The worst that such a backend can do: the lot alone decides, and half of all is for the head.

    Ten pairs instead of twenty, and many heads: at most one in 1024 may be found guilty.
    """
    randomness, guilty, heads = random.Random(12), 0, 100_000
    for _ in range(heads):
        guilty += all(randomness.random() < 0.5 for _ in range(PAIRS))
    assert guilty / heads < 2 * 2**-PAIRS


@pytest.mark.parametrize("key", REMOVED_KEYS)
def test_keys_of_versions_before_are_read_and_have_no_effect(key: str) -> None:
    assert DeliverySettings.model_validate({key: 3}) == DeliverySettings()
