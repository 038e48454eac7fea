"""A backend that answers 500 now and then, whatever it is sent: nothing is skipped, and in order.

It was otherwise once: five failures of an event and one success of the next were taken for a proof
that the event is at fault, and of a backend that fails six times out of ten every fortieth event
became a dead letter.
"""

from __future__ import annotations

import pytest
from tests.deliver.flaky import MODES, FlakyBackend, Mode, deliver_all
from tests.deliver.stage import Stage

from holdfast.deliver.destination import DeliverySettings
from holdfast.deliver.settings import PoisonSettings

# `make test` tries some, `make test-all` as many as the promise speaks of.
FEW, MANY = 200, 2000
FEW_WITH_POISON, MANY_WITH_POISON = 120, 5000

SETTINGS = DeliverySettings(retention_bytes=None, retention_time_s=3.6e9)
POISON = SETTINGS.model_copy(update={"poison": PoisonSettings(held_s=0)})
BAD = b"always refused"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_event_is_skipped_because_a_backend_fails_at_random(stage: Stage, count: int) -> None:
    backend, events = FlakyBackend("request", 0.6, seed=count), numbered(count)
    stage.append_each(*events)
    deliver_all(stage, backend, SETTINGS)
    assert stage.letters.stored == []
    assert backend.taken == events


def check_only_the_bad_one_is_set_aside(stage: Stage, mode: Mode, share: float, count: int) -> None:
    backend = FlakyBackend(mode, share, seed=count, refused=[BAD])
    good = numbered(count)
    stage.append_each(*good[: count // 2], BAD, *good[count // 2 :])
    deliver_all(stage, backend, POISON)
    assert [(letter.payload, letter.reason) for letter in stage.letters.stored] == [(BAD, "poison")]
    assert list(dict.fromkeys(backend.taken)) == good, "in order, but for what came twice"


@pytest.mark.parametrize("mode", MODES)
def test_with_poison_one_that_is_always_refused_is_told_from_those_that_fail_by_chance(
    stage: Stage, mode: Mode
) -> None:
    check_only_the_bad_one_is_set_aside(stage, mode, 0.6, FEW_WITH_POISON)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_with_poison_not_one_of_many_good_events_is_set_aside(
    stage: Stage, mode: Mode, share: float
) -> None:
    check_only_the_bad_one_is_set_aside(stage, mode, share, MANY_WITH_POISON)
