"""The equation holds at any moment: also between write and sync, also while others append."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import Machine, quiet

from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.frame import Totals


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Let threads take turns all the time."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def test_registering_oldest_between_write_and_sync_counts_what_is_not_synced_yet(
    machine: Machine,
) -> None:
    quiver = machine.start(quiet())
    quiver.append_raw(b"synced")
    quiver.append_raw(b"written", level=AckLevel.WRITTEN)
    quiver.register("archive")
    quiver.append_raw(b"synced too")
    assert quiver.balance("archive").accepted == Totals(3, 3)
    assert quiver.balance("archive").holds


def test_registering_latest_between_write_and_sync_misses_nothing_later(machine: Machine) -> None:
    quiver = machine.start(quiet())
    quiver.append_raw(b"synced")
    quiver.append_raw(b"written", level=AckLevel.WRITTEN)
    quiver.register("archive", start="latest")
    quiver.append_raw(b"synced too")
    balance = quiver.balance("archive")
    assert balance.holds
    # What was not readable when it registered comes later.
    assert balance.pending == Totals(2, 2)


def append_until(stop: threading.Event, quiver: Quiver, level: AckLevel) -> None:
    while not stop.is_set():
        quiver.append_raw(b"event", level=level)


@pytest.mark.parametrize("level", [AckLevel.WRITTEN, AckLevel.FSYNCED])
@pytest.mark.usefixtures("many_switches")
def test_the_equation_holds_while_others_append(machine: Machine, level: AckLevel) -> None:
    quiver = machine.start(quiet(flush_interval_s=0.001))
    quiver.register("archive")
    stop = threading.Event()
    arguments = (stop, quiver, level)
    threads = [threading.Thread(target=append_until, args=arguments) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        broken = [b for b in (quiver.balance("archive") for _ in range(300)) if not b.holds]
        told = [quiver.statistics().subscribers[0] for _ in range(100)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert broken == []
    assert [s for s in told if s.accepted != s.pending] == []
