"""The keeper: what is due by time is done, and a failure is told and tried again."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import ROOT, Machine, quiet
from tests.readers.setting import append, check_books, drain, sealed

from holdfast.quiver import LedgerConfig, QuiverConfig, RetentionConfig
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk


def config(flush_interval_s: float = 0.005, tick_s: float = 0.005) -> QuiverConfig:
    return replace(
        quiet(),
        ledger=LedgerConfig(flush_interval_s=flush_interval_s),
        retention=RetentionConfig(tick_s=tick_s),
    )


class Watching(FaultyDisk):
    """Lets a test wait until a step was reached so often."""

    def __init__(self, inner: SimulatedDisk, faults: list[Fault]) -> None:
        super().__init__(inner, faults, inner.die)
        self._reached = threading.Condition()

    def _enter(self, at: str) -> FaultKind | None:
        try:
            return super()._enter(at)
        finally:
            with self._reached:
                self._reached.notify_all()

    def wait_for(self, satisfied: Callable[[], bool]) -> None:
        with self._reached:
            assert self._reached.wait_for(satisfied, PATIENCE_S), "it never happened"

    def wait_reached(self, at: str, times: int = 1) -> None:
        self.wait_for(lambda: self.calls().get(at, 0) >= times)


def watch(machine: Machine, settings: QuiverConfig, *faults: Fault) -> Watching:
    disk = Watching(machine.disk, list(faults))
    machine.start(settings, through=lambda _: disk)
    return disk


def test_an_ack_is_synced_within_the_flush_interval_though_nobody_asks(machine: Machine) -> None:
    disk = watch(machine, config(tick_s=3600.0))
    assert machine.quiver is not None
    lease = machine.quiver.lease("one")
    append(machine.quiver, 1)
    before = disk.calls().get(QuiverPoint.LEDGER_SYNC, 0)
    assert list(drain(lease)) == [0]
    disk.wait_reached(QuiverPoint.LEDGER_SYNC, before + 1)


def test_what_was_acked_goes_without_waiting_for_the_next_tick(machine: Machine) -> None:
    disk = watch(machine, config(tick_s=3600.0))
    assert machine.quiver is not None
    lease = machine.quiver.lease("one")
    sealed(machine.quiver, 1)
    list(drain(lease))
    disk.wait_reached(QuiverPoint.TRASH_UNLINK)


def test_looking_after_every_ack_does_not_take_all_the_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of segments one look takes long, and a busy reader acks all the time."""
    watch(machine, config(tick_s=3600.0))
    quiver = machine.quiver
    assert quiver is not None
    clock = quiver._engine.clock
    times: list[tuple[float, float]] = []
    real_tick = quiver._engine.retention.tick

    def slow_tick() -> None:
        began_s = clock.monotonic_s()
        time.sleep(0.02)
        real_tick()
        times.append((began_s, clock.monotonic_s()))

    monkeypatch.setattr(quiver._engine.retention, "tick", slow_tick)
    lease = quiver.lease("one")
    give_up_s = time.monotonic() + PATIENCE_S
    while len(times) < 4:
        append(quiver, 1)
        list(drain(lease))
        assert time.monotonic() < give_up_s, "what was acked is looked at late, but it is"
    for (began_s, ended_s), (next_s, _) in itertools.pairwise(times):
        assert next_s - ended_s >= 8 * (ended_s - began_s)


def test_a_failing_disk_is_told_once_and_the_work_done_when_it_heals(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault(QuiverPoint.LEDGER_WRITE, FaultKind.EIO, nth=4, times=1_000_000)
    disk = watch(machine, config(), fault)
    quiver = machine.quiver
    assert quiver is not None
    with caplog.at_level(logging.WARNING):
        lease = quiver.lease("one")  # two lines
        sealed(quiver, 1)
        list(drain(lease))  # the third; the deletion would be the fourth
        disk.wait_reached(QuiverPoint.LEDGER_WRITE, 6)
        assert "the ledger could not be written" in str(quiver.statistics().last_keeper_error)
    told = [r for r in caplog.records if "the keeper failed" in r.message]
    assert len(told) == 1
    assert len(quiver.segments()) == 1
    check_books(quiver)
    disk.heal()
    disk.wait_reached(QuiverPoint.TRASH_UNLINK)
    check_books(quiver)


def test_a_bug_in_one_tick_does_not_end_the_keeper(machine: Machine) -> None:
    disk = watch(machine, config(tick_s=3600.0))
    quiver = machine.quiver
    assert quiver is not None
    lease = quiver.lease("one")
    real_tick = quiver._engine.retention.tick
    failed = threading.Event()

    def fail_once() -> None:
        quiver._engine.retention.tick = real_tick  # type: ignore[method-assign]
        failed.set()
        raise AssertionError("BUG: for this test")

    quiver._engine.retention.tick = fail_once  # type: ignore[method-assign]
    sealed(quiver, 1)
    list(drain(lease))
    assert failed.wait(PATIENCE_S)
    append(quiver, 1)
    list(drain(lease))
    disk.wait_reached(QuiverPoint.TRASH_UNLINK)
    assert "BUG: for this test" in str(quiver.statistics().last_keeper_error)


def test_the_keeper_does_not_spin_while_the_ledger_cannot_be_synced(machine: Machine) -> None:
    faults = [
        Fault(QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=3, times=1_000_000),
        Fault(QuiverPoint.LEDGER_CREATE, FaultKind.EIO, nth=2, times=1_000_000),
    ]
    disk = watch(machine, config(), *faults)
    quiver = machine.quiver
    assert quiver is not None
    ticks = 0
    real_tick = quiver._engine.retention.tick

    def count() -> None:
        nonlocal ticks
        ticks += 1
        real_tick()

    quiver._engine.retention.tick = count  # type: ignore[method-assign]
    lease = quiver.lease("one")
    append(quiver, 1)
    list(drain(lease))
    disk.wait_reached(QuiverPoint.LEDGER_CREATE, 4)
    attempts = disk.calls()[QuiverPoint.LEDGER_CREATE]
    assert ticks > attempts, "ticks go on while the sync is retried at its own pace"
    check_books(quiver)


def test_the_keeper_ends_with_the_quiver_also_when_the_disk_is_dead(machine: Machine) -> None:
    machine.start(config())
    assert machine.quiver is not None
    thread = machine.quiver._engine.keeper._thread
    assert thread.is_alive()
    machine.kill()
    assert not thread.is_alive()


def test_the_account_of_used_bytes_is_corrected_by_looking_at_the_disk(machine: Machine) -> None:
    quiver = machine.start(config(tick_s=3600.0))
    before = quiver.statistics().used_bytes
    machine.disk.put(ROOT / "something else", bytes(100_000))
    assert quiver.statistics().used_bytes == before
    quiver._engine.keeper._looked_s -= 3600
    quiver._engine.keeper._tick()
    assert quiver.statistics().used_bytes >= 100_000
