"""Idempotent producers: an epoch counts once, whatever happens in between, within stated bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.batches import column_of, numbers
from tests.quiver.machine import Machine, quiet
from tests.readers.setting import StillMachine
from tests.support.disk import GatedDisk

from holdfast.errors import DiskFull, StaleEpoch
from holdfast.quiver import ProducerConfig, Quiver, QuiverConfig, Receipt
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind

HOUR_S = 3600.0


def remembering(count: int = 10, ttl_s: float = HOUR_S) -> QuiverConfig:
    return replace(quiet(), producers=ProducerConfig(max_count=count, ttl_s=ttl_s))


def say(quiver: Quiver, producer: str, epoch: int, value: int = 0) -> Receipt:
    return quiver.append(numbers(value), producer=producer, epoch=epoch)


def seal(machine: Machine) -> None:
    assert machine.quiver is not None
    machine.quiver.flush()


def restart(machine: Machine) -> None:
    machine.stop()
    machine.start()


def kill(machine: Machine) -> None:
    machine.kill()
    machine.start()


def cut_power(machine: Machine) -> None:
    machine.cut_power()
    machine.start()


def seal_and_kill(machine: Machine) -> None:
    seal(machine)
    kill(machine)


def restart_twice(machine: Machine) -> None:
    restart(machine)
    restart(machine)


def nothing(machine: Machine) -> None:
    pass


BETWEEN = [nothing, seal, restart, kill, cut_power, seal_and_kill, restart_twice]
between_the_two = pytest.mark.parametrize("event", BETWEEN, ids=lambda event: event.__name__)


@between_the_two
def test_the_same_epoch_again_gets_the_receipt_of_the_first_time(
    machine: Machine, event: Callable[[Machine], None]
) -> None:
    quiver = machine.start()
    quiver.append(numbers(0))
    first = quiver.append(numbers(1, 2), producer="p", epoch=5)
    event(machine)
    assert machine.quiver is not None
    again = machine.quiver.append(numbers(1, 2), producer="p", epoch=5)
    assert again == first._replace(duplicate=True)
    assert not first.duplicate
    assert column_of(machine.quiver) == [0, 1, 2]


@between_the_two
def test_an_older_epoch_is_refused(machine: Machine, event: Callable[[Machine], None]) -> None:
    say(machine.start(), "p", 5, 1)
    event(machine)
    assert machine.quiver is not None
    with pytest.raises(StaleEpoch, match="epoch 4 after epoch 5") as caught:
        say(machine.quiver, "p", 4, 2)
    assert "taken over" in caught.value.hint
    assert column_of(machine.quiver) == [1]


@between_the_two
def test_a_transaction_repeated_gets_the_receipt_of_all_its_bundles(
    machine: Machine, event: Callable[[Machine], None]
) -> None:
    def commit(quiver: Quiver) -> Receipt:
        transaction = quiver.transaction(producer="p", epoch=3)
        for value in range(4):
            transaction.append(numbers(value, value))
        return transaction.commit()

    first = commit(machine.start())
    assert (first.bundles, first.events) == (4, 8)
    event(machine)
    assert machine.quiver is not None
    assert commit(machine.quiver) == first._replace(duplicate=True)
    assert column_of(machine.quiver) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_epochs_may_leave_gaps_and_go_on_after_a_restart(machine: Machine) -> None:
    quiver = machine.start()
    for epoch in (1, 2, 10):
        assert not say(quiver, "p", epoch, epoch).duplicate
    machine.stop()
    quiver = machine.start()
    assert not say(quiver, "p", 2**63 - 1, 99).duplicate
    assert column_of(quiver) == [1, 2, 10, 99]


def test_producers_do_not_know_each_others_epochs(machine: Machine) -> None:
    quiver = machine.start()
    say(quiver, "p", 7, 1)
    assert not say(quiver, "q", 1, 2).duplicate
    assert column_of(quiver) == [1, 2]


def test_a_producer_without_an_epoch_may_repeat_itself(machine: Machine) -> None:
    quiver = machine.start()
    for _ in range(2):
        assert not quiver.append(numbers(1), producer="p").duplicate
        quiver.heartbeat("p", 1)
    assert quiver.statistics().producers == 0
    assert column_of(quiver) == [1, 1]


def test_heartbeats_in_between_do_not_reset_the_epoch(machine: Machine) -> None:
    quiver = machine.start()
    first = say(quiver, "p", 4)
    quiver.heartbeat("p", 1)
    restart(machine)
    assert machine.quiver is not None
    assert say(machine.quiver, "p", 4) == first._replace(duplicate=True)


def test_raw_events_and_batches_of_one_producer_share_its_epochs(machine: Machine) -> None:
    quiver = machine.start()
    first = quiver.append_raw([b"a", b"b"], producer="p", epoch=1)
    assert say(quiver, "p", 1) == first._replace(duplicate=True)


def test_an_append_that_failed_is_not_remembered(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, FaultKind.ENOSPC)])
    with pytest.raises(DiskFull):
        say(quiver, "p", 1, 1)
    assert not say(quiver, "p", 1, 1).duplicate
    assert column_of(quiver) == [1]


# ------------------------------------------------------------------------ one group


class Group:
    """Appends that the writer takes together, because it was held at a sync before."""

    def __init__(self, machine: Machine) -> None:
        self.quiver = machine.start(through=self._through)

    def _through(self, disk: object) -> GatedDisk:
        self._gated = GatedDisk(disk, QuiverPoint.WAL_SYNC)  # type: ignore[arg-type]
        return self._gated

    def run(self, epochs: list[int]) -> list[Receipt | BaseException]:
        """Append one value for each epoch of one producer; return the answers in order."""
        return asyncio.run(self._run(epochs))

    async def _run(self, epochs: list[int]) -> list[Receipt | BaseException]:
        ahead = asyncio.create_task(self.quiver.append_async(numbers(-1)))
        await asyncio.to_thread(self._gated.reached.wait, PATIENCE_S)
        tasks = [
            asyncio.create_task(self.quiver.append_async(numbers(place), producer="p", epoch=epoch))
            for place, epoch in enumerate(epochs)
        ]
        await asyncio.sleep(0)  # now all of them are handed over
        self._gated.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await ahead
        assert self.quiver.statistics().writer.groups == 2
        return answers


def test_the_same_epoch_twice_in_one_group_is_stored_once(machine: Machine) -> None:
    group = Group(machine)
    first, *others = group.run([1, 1, 1])
    assert isinstance(first, Receipt)
    assert others == [first._replace(duplicate=True)] * 2
    assert column_of(group.quiver) == [-1, 0]


def test_an_older_epoch_behind_a_newer_one_in_one_group_is_refused(machine: Machine) -> None:
    group = Group(machine)
    newer, older = group.run([2, 1])
    assert isinstance(newer, Receipt)
    assert isinstance(older, StaleEpoch)
    assert column_of(group.quiver) == [-1, 0]


def test_growing_epochs_in_one_group_are_all_stored(machine: Machine) -> None:
    group = Group(machine)
    answers = group.run([1, 2, 2, 3])
    assert [isinstance(a, Receipt) and a.duplicate for a in answers] == [False, False, True, False]
    assert column_of(group.quiver) == [-1, 0, 1, 3]


# --------------------------------------------------------------------------- bounds


def test_over_the_count_the_producer_silent_longest_is_forgotten(machine: Machine) -> None:
    quiver = machine.start(remembering(count=3))
    for producer in "abc":
        say(quiver, producer, 1)
    say(quiver, "a", 2)
    say(quiver, "d", 1)
    assert quiver.statistics().producers == 3
    assert say(quiver, "a", 2).duplicate
    assert not say(quiver, "b", 1).duplicate


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_order_of_silence_survives_a_restart(machine: Machine, end: str) -> None:
    quiver = machine.start(remembering(count=3))
    for producer in "cab":
        machine.clock.jump(1)
        say(quiver, producer, 1)
    getattr(machine, end)()
    quiver = machine.start(remembering(count=3))
    say(quiver, "d", 1)
    assert say(quiver, "a", 1).duplicate
    assert say(quiver, "b", 1).duplicate
    assert not say(quiver, "c", 1).duplicate


def test_a_producer_silent_for_longer_than_its_ttl_is_forgotten(still: StillMachine) -> None:
    quiver = still.start(remembering(ttl_s=HOUR_S))
    say(quiver, "old", 1)
    still.clock.pass_time(HOUR_S)
    say(quiver, "young", 1)
    assert quiver.statistics().producers == 2
    still.clock.pass_time(1)
    say(quiver, "young", 2)
    assert quiver.statistics().producers == 1
    assert not say(quiver, "old", 1).duplicate


@pytest.mark.parametrize("sealed", [False, True])
def test_a_clock_that_is_days_ahead_at_the_start_forgets_nobody_for_its_grace(
    still: StillMachine, *, sealed: bool
) -> None:
    """One append dated by it, and every other producer's next repeat was stored again."""
    quiver = still.start(remembering(ttl_s=HOUR_S))
    say(quiver, "known", 1)
    if sealed:
        quiver.flush()
    still.kill()
    still.clock.jump(1000 * HOUR_S)
    quiver = still.start(remembering(ttl_s=HOUR_S))
    say(quiver, "other", 1)
    assert say(quiver, "known", 1).duplicate
    still.kill()
    still.clock.jump(-1000 * HOUR_S)  # what was dated wrongly forgets nobody either
    quiver = still.start(remembering(ttl_s=HOUR_S))
    assert say(quiver, "known", 1).duplicate
    still.clock.pass_time(2 * HOUR_S)
    say(quiver, "other", 2)
    assert not say(quiver, "known", 1).duplicate


def test_a_clock_that_jumps_ahead_forgets_nobody(machine: Machine) -> None:
    quiver = machine.start(remembering(ttl_s=HOUR_S))
    say(quiver, "p", 1)
    machine.clock.jump(10 * HOUR_S)
    say(quiver, "q", 1)
    assert say(quiver, "p", 1).duplicate


def test_a_start_forgets_what_is_over_the_bounds(machine: Machine) -> None:
    quiver = machine.start(remembering(count=10))
    for place in range(6):
        say(quiver, f"p{place}", 1)
        if place == 2:
            quiver.flush()
    machine.kill()
    quiver = machine.start(remembering(count=2))
    assert quiver.statistics().producers == 2
    assert say(quiver, "p5", 1).duplicate
    assert not say(quiver, "p0", 1).duplicate


def test_a_clock_that_goes_back_forgets_nobody(machine: Machine) -> None:
    quiver = machine.start(remembering(ttl_s=HOUR_S))
    say(quiver, "p", 1)
    machine.clock.jump(-10 * HOUR_S)
    say(quiver, "q", 1)
    assert say(quiver, "p", 1).duplicate
    assert say(quiver, "q", 1).duplicate
