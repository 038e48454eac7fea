"""When the log is synced: by level, by timer, by size, at a seal and at the end; and when not."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.patience import until
from tests.quiver.machine import Machine, payloads, quiet
from tests.support.disk import WatchedDisk

from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.points import QuiverPoint


def watched_start(
    machine: Machine, level: AckLevel, flush_interval_s: float = 3600.0
) -> tuple[Quiver, WatchedDisk]:
    disk = WatchedDisk(machine.disk)
    return machine.start(
        quiet(level, flush_interval_s=flush_interval_s), through=lambda _: disk
    ), disk


def log_syncs(disk: WatchedDisk) -> Counter[str]:
    """Return how often the log was synced, by step, without the headers of new files."""
    steps = Counter(at for name, ats in disk.syncs.items() if name.endswith(".wal") for at in ats)
    del steps[QuiverPoint.WAL_HEADER_SYNC]
    return steps


def test_every_fsynced_append_that_comes_alone_is_synced_for_real(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.FSYNCED)
    for n in range(1, 4):
        quiver.append_raw(b"x")
        assert log_syncs(disk) == {QuiverPoint.WAL_SYNC: n}
    assert quiver.statistics().writer.syncs == 3


@pytest.mark.parametrize("level", [AckLevel.MEMORY, AckLevel.WRITTEN])
def test_nothing_is_synced_before_the_interval_or_the_size_is_reached(
    machine: Machine, level: AckLevel
) -> None:
    quiver, disk = watched_start(machine, level)
    for _ in range(20):
        quiver.append_raw(b"x", level=level)
    assert log_syncs(disk) == {}
    assert quiver.statistics().synced_seq == -1


def test_the_log_is_synced_when_the_interval_has_passed(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.WRITTEN, flush_interval_s=0.01)
    quiver.append_raw(b"x")
    until(lambda: log_syncs(disk) == {QuiverPoint.WAL_SYNC: 1})


def test_one_sync_by_interval_covers_everything_written_before_it(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.WRITTEN, flush_interval_s=0.2)
    began_s = machine.clock.monotonic_s()
    last = [quiver.append_raw(b"x").seq for _ in range(5)][-1]
    until(lambda: quiver.statistics().synced_seq == last)
    passed_s = machine.clock.monotonic_s() - began_s
    assert sum(log_syncs(disk).values()) <= 1 + passed_s / 0.2


def test_the_log_is_synced_when_a_file_is_full(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.WRITTEN)
    quiver.append_raw(bytes(40_000))
    assert log_syncs(disk) == {}
    quiver.append_raw(bytes(40_000))
    assert log_syncs(disk) == {QuiverPoint.WAL_ROTATE_SYNC: 1}
    assert quiver.statistics().synced_seq == 0


def test_the_log_is_synced_before_its_bundles_are_sealed(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.WRITTEN)
    quiver.append_raw(b"x")
    quiver.flush()
    assert log_syncs(disk) == {QuiverPoint.WAL_SYNC: 1}


def test_closing_syncs_what_is_pending(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.WRITTEN)
    quiver.append_raw(b"x")
    machine.stop()
    assert log_syncs(disk) == {QuiverPoint.WAL_SYNC: 1, QuiverPoint.WAL_CLOSE_SYNC: 1}
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_leaving_the_context_syncs_what_is_pending(machine: Machine) -> None:
    with watched_start(machine, AckLevel.WRITTEN)[0] as quiver:
        quiver.append_raw(b"x")
    machine.quiver = None
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_a_crash_does_not_sync_what_is_pending(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.WRITTEN)
    quiver.append_raw(b"x")
    assert log_syncs(disk) == {}
    machine.cut_power()
    assert payloads(machine.start()) == {}


def test_a_start_syncs_what_the_last_process_only_wrote_before_serving_it(
    machine: Machine,
) -> None:
    """Readers saw it; a power cut afterwards must not take it back."""
    machine.start(quiet(AckLevel.WRITTEN)).append_raw(b"x")
    machine.kill()
    assert payloads(machine.start()) == {0: [b"x"]}
    machine.cut_power()
    assert payloads(machine.start()) == {0: [b"x"]}


def test_a_heartbeat_and_a_transaction_are_synced_like_any_append(machine: Machine) -> None:
    quiver, disk = watched_start(machine, AckLevel.FSYNCED)
    quiver.heartbeat("p", 1)
    with quiver.transaction() as transaction:
        transaction.append_raw(b"a")
        transaction.append_raw(b"b")
    assert log_syncs(disk) == {QuiverPoint.WAL_SYNC: 2}
