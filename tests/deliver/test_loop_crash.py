"""A kill at each named moment of a delivery: only what was in flight comes again."""

from __future__ import annotations

import asyncio

import pytest
from tests.deliver.backend import BAD, fails_for
from tests.deliver.stage import Stage

from holdfast.deliver.context import DeliveryPoint
from holdfast.deliver.destination import DeliverySettings, Destination
from holdfast.quiver import Outcome
from holdfast.seam.simulated import SimulatedCrash


def settings(**values: object) -> DeliverySettings:
    return DeliverySettings.model_validate({"retention_bytes": None, **values})


def run_until_killed(stage: Stage, at: DeliveryPoint, nth: int, delivery: DeliverySettings) -> None:
    """Run a destination until a point is reached for the nth time, and kill it there."""
    left = nth

    def reached(point: str) -> None:
        nonlocal left
        left -= point == at
        if left == 0:
            stage.machine.disk.kill()
            raise SimulatedCrash

    async def main() -> None:
        destination = stage.make(delivery)
        task = asyncio.get_running_loop().create_task(destination.run())
        await stage.timer.until(task.done)
        task.result()

    stage.reached = reached
    with pytest.raises(SimulatedCrash):
        asyncio.run(main())
    stage.kill()
    stage.reached = lambda point: None
    stage.check()


def test_every_point_is_described_and_reached(stage: Stage) -> None:
    assert all(point.description for point in DeliveryPoint)
    seen: set[str] = set()
    stage.reached = seen.add
    stage.append_each(b"a", b"bad", b"b")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    stage.deliver_all()
    assert seen == set(DeliveryPoint)


@pytest.mark.parametrize("order", ["received", "key"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_when_the_backend_has_it_and_the_ledger_has_not(
    stage: Stage, order: str, nth: int
) -> None:
    stage.append_each(b"k:0", b"k:1", b"k:2", b"k:3")
    run_until_killed(stage, DeliveryPoint.SENT, nth, settings(order=order))
    stage.deliver_all(settings(order=order))
    events = [b"k:0", b"k:1", b"k:2", b"k:3"]
    assert stage.backend.taken == events[:nth] + events[nth - 1 :]


@pytest.mark.parametrize("order", ["received", "key"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_when_the_ledger_has_it(stage: Stage, order: str, nth: int) -> None:
    stage.append_each(b"k:0", b"k:1", b"k:2", b"k:3")
    run_until_killed(stage, DeliveryPoint.COMMITTED, nth, settings(order=order))
    stage.deliver_all(settings(order=order))
    assert stage.backend.taken == [b"k:0", b"k:1", b"k:2", b"k:3"]


def test_killed_inside_a_request_only_its_last_send_comes_again(stage: Stage) -> None:
    stage.backend.max_batch_events = 2
    stage.append(b"a", b"b", b"c", b"d", b"e")
    run_until_killed(stage, DeliveryPoint.SENT, 2, settings())
    stage.deliver_all()
    assert stage.backend.sends == [[b"a", b"b"], [b"c", b"d"], [b"c", b"d"], [b"e"]]


def test_killed_when_the_letter_is_stored_and_the_ledger_does_not_know(stage: Stage) -> None:
    stage.append_each(b"a", b"bad", b"b", b"c")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    run_until_killed(stage, DeliveryPoint.DEAD_LETTER_STORED, 1, settings())
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b", b"c"]
    assert stage.letters.payloads == [b"bad", b"bad"], "as the letter was"
    assert len({letter.position for letter in stage.letters.stored}) == 1
    assert stage.outcomes() == {Outcome.ACKED: (3, 3), Outcome.DEAD_LETTERED: (1, 1)}


def test_a_power_cut_costs_no_more_than_outcomes_that_were_not_synced(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.deliver_all()
    stage.machine.cut_power()
    stage.deliver_all()
    # The keeper of this machine sleeps: nothing was synced since the destination attached.
    assert stage.backend.taken == [b"a", b"b", b"c"] * 2
    assert stage.outcomes() == {Outcome.ACKED: (3, 3)}


def test_a_bug_in_the_loop_itself_ends_the_run_and_loses_nothing(stage: Stage) -> None:
    stage.append_each(b"a", b"b")

    def reached(point: str) -> None:
        raise AssertionError("BUG: of a test")

    stage.reached = reached

    async def main() -> None:
        destination: Destination = stage.make()
        with pytest.raises(AssertionError, match="BUG: of a test"):
            await destination.run()
        assert stage.backend.closed

    asyncio.run(main())
    stage.reached = lambda point: None
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"a", b"b"]
