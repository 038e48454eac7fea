"""Sealing: what starts it, and what a failed seal keeps."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S
from tests.quiver.batches import (
    column_of,
    numbers,
    own_rows,
    quiet_segments,
)
from tests.quiver.machine import ROOT, SEGMENTS, Machine, quiet
from tests.support.disk import GatedDisk

from holdfast.errors import Overloaded, StorageFailed
from holdfast.quiver import AckLevel, Quiver, QuiverConfig
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

SEAL_POINTS = [point for point in QuiverPoint if point.startswith("seal.")]
FOREVER = 1_000_000
RESERVE = ROOT / "reserve"


def names_on_disk(machine: Machine) -> list[str]:
    return [entry.name for entry in machine.disk.list(SEGMENTS)]


def wait_until_sealed(quiver: Quiver) -> None:
    """Wait until no buffer is at the sealer."""
    while quiver._engine.sealer.sealing():
        quiver._engine.sealer.wait_idle(PATIENCE_S)


class Watch:
    """Starts a quiver and tells when the first seal begins."""

    def __init__(self, machine: Machine, config: QuiverConfig) -> None:
        self.quiver = machine.start(config, through=self._through)

    def _through(self, disk: SimulatedDisk) -> GatedDisk:
        self._gated = GatedDisk(disk, QuiverPoint.SEAL_MAKE_DIR)
        self._gated.gate.set()
        return self._gated

    def wait_for_a_segment(self) -> None:
        assert self._gated.reached.wait(PATIENCE_S)
        wait_until_sealed(self.quiver)


# ------------------------------------------------------------------------ triggers


def test_a_full_buffer_is_sealed(machine: Machine) -> None:
    watch = Watch(machine, quiet(file_size_bytes=64 * MB))
    for place in range(17):
        watch.quiver.append_raw(bytes([place]) * (64 * KB))
    watch.wait_for_a_segment()
    (segment,) = watch.quiver.segments()
    assert segment.summary.payload_bytes >= MB - 16 * KB
    assert len(column_of(watch.quiver, "payload")) == 17


def test_a_million_rows_that_take_no_bytes_fill_a_buffer_too(machine: Machine) -> None:
    watch = Watch(machine, quiet())
    watch.quiver.append(pa.record_batch({"n": pa.nulls(100_000)}))
    watch.wait_for_a_segment()
    assert watch.quiver.segments()[0].summary.events == 100_000


def test_an_old_buffer_is_sealed_however_small_it_is(machine: Machine) -> None:
    watch = Watch(machine, quiet_segments(max_open_duration_s=0.001))
    watch.quiver.append(numbers(1))
    watch.wait_for_a_segment()
    assert watch.quiver.segments()[0].summary.events == 1


def test_a_flush_seals_and_an_empty_flush_makes_no_segment(machine: Machine) -> None:
    with machine.start() as quiver:
        quiver.flush()
        assert quiver.segments() == ()
        quiver.append(numbers(1))
        quiver.flush()
        quiver.flush()
        assert len(quiver.segments()) == 1
        assert names_on_disk(machine) == [quiver.segments()[0].path.name]


def test_an_append_at_level_segment_is_answered_once_it_is_sealed(machine: Machine) -> None:
    with machine.start(quiet_segments(max_open_duration_s=0.001)) as quiver:
        receipt = quiver.append(numbers(1), level=AckLevel.SEGMENT)
        assert [s.summary.first_seq for s in quiver.segments()] == [receipt.seq]


def test_a_shutdown_seals_what_there_is_and_leaves_no_wal_to_replay(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1))
    quiver.append(numbers(2))
    machine.stop()
    assert len(names_on_disk(machine)) == 1
    quiver = machine.start()
    assert quiver.recovery.replayed_bundles == 0
    assert quiver.recovery.clean_shutdown
    assert column_of(quiver) == [1, 2]


def test_an_empty_quiver_leaves_no_segment_behind(machine: Machine) -> None:
    machine.start()
    machine.stop()
    assert names_on_disk(machine) == []


def test_a_full_wal_seals_before_the_buffer_is_full(machine: Machine) -> None:
    config = quiet(file_size_bytes=64 * KB, max_size_bytes=128 * KB)
    with machine.start(config) as quiver:
        for value in range(100):
            quiver.append_raw(value.to_bytes(2, "big") + bytes(4 * KB))
            assert quiver.statistics().wal_bytes < 256 * KB
        wait_until_sealed(quiver)
        summaries = [segment.summary for segment in quiver.segments()]
        assert len(summaries) >= 2
        assert all(summary.payload_bytes < MB // 2 for summary in summaries)
        found = [payload[:2] for payload in column_of(quiver, "payload")]
        assert found == [value.to_bytes(2, "big") for value in range(100)]


# ------------------------------------------------------------------------ failures


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC])
@pytest.mark.parametrize("point", SEAL_POINTS)
def test_a_seal_that_fails_is_tried_again_and_stores_nothing_twice(
    machine: Machine, point: QuiverPoint, kind: FaultKind
) -> None:
    quiver = machine.start(faults=[Fault(point, kind, times=3)])
    seq = quiver.append(numbers(1, 2)).seq
    quiver.flush()
    statistics = quiver.statistics()
    assert statistics.sealer.failures >= 1
    assert statistics.last_seal_error is not None
    assert statistics.sealer.segments == 1
    assert names_on_disk(machine) == [quiver.segments()[0].path.name]
    assert column_of(quiver) == [1, 2]
    machine.stop()
    quiver = machine.start()
    assert column_of(quiver) == [1, 2]
    assert own_rows(quiver, seq) == [(1,), (2,)]
    assert quiver.recovery.damages == []


def test_the_pause_between_tries_doubles_up_to_its_bound(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quiet_segments(retry_min_s=1.0, retry_max_s=10.0)
    quiver = machine.start(config, faults=[Fault(QuiverPoint.SEAL_RENAME, FaultKind.EIO, times=6)])
    pauses: list[float] = []
    changed = quiver._engine.sealer._changed
    wait = changed.wait

    def impatient(timeout: float | None = None) -> bool:
        if timeout is None or threading.current_thread() is not quiver._engine.sealer._thread:
            return wait(timeout)
        pauses.append(timeout)
        return True

    monkeypatch.setattr(changed, "wait", impatient)
    quiver.append(numbers(1))
    quiver.flush()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


class FailingSeals(FaultyDisk):
    """A disk on which no segment gets its name until it is healed."""

    def __init__(self, inner: SimulatedDisk) -> None:
        super().__init__(
            inner, [Fault(QuiverPoint.SEAL_RENAME, FaultKind.EIO, times=FOREVER)], inner.die
        )
        self.wal_synced = threading.Event()

    def sync(self, handle: Handle, at: str) -> None:
        super().sync(handle, at)
        if at == QuiverPoint.WAL_SYNC:
            self.wal_synced.set()


@pytest.fixture
def failing(machine: Machine) -> FailingSeals:
    """The disk below a quiver whose seals fail."""
    disk = FailingSeals(machine.disk)
    machine.start(through=lambda _: disk)
    return disk


def flush_in_vain(quiver: Quiver) -> None:
    with pytest.raises(Overloaded, match="not sealed in time") as caught:
        quiver.flush(timeout_s=0.01)
    assert caught.value.hint
    # On a busy machine the writer may not have seen the request yet, and takes later appends first.
    seen = threading.Event()
    quiver._writer.inbox.request(seen.set)
    assert seen.wait(PATIENCE_S)


def test_a_failed_seal_keeps_its_data_while_later_data_arrives_and_seals_in_order(
    machine: Machine, failing: FailingSeals
) -> None:
    """Upstream dropped the failed segment and truncated the log past it (2c.2)."""
    quiver = machine.quiver
    assert quiver is not None
    quiver.append(numbers(1))
    flush_in_vain(quiver)
    quiver.append(numbers(2))
    assert column_of(quiver) == [1, 2]
    assert quiver.segments() == ()
    failing.heal()
    quiver.flush()
    assert [s.summary.first_seq for s in quiver.segments()] == [0, 1]
    assert column_of(quiver) == [1, 2]


def test_a_flush_behind_a_failing_seal_does_not_stop_the_appends(
    machine: Machine, failing: FailingSeals
) -> None:
    quiver = machine.quiver
    assert quiver is not None
    for value in range(4):
        quiver.append(numbers(value))
        flush_in_vain(quiver)
    assert quiver.statistics().writer.stall_seconds == 0
    failing.heal()
    quiver.flush()
    assert [s.summary.bundles for s in quiver.segments()] == [1, 3]
    assert column_of(quiver) == [0, 1, 2, 3]


def test_a_flush_behind_a_busy_sealer_is_answered_when_its_own_buffer_is_sealed(
    machine: Machine,
) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.SEAL_RENAME)
    quiver = machine.start(through=lambda _: gated)
    flushing = []
    for value in range(3):
        quiver.append(numbers(value))
        flushing.append(threading.Thread(target=quiver.flush))
        flushing[-1].start()
        assert gated.reached.wait(PATIENCE_S)
    gated.gate.set()
    for thread in flushing:
        thread.join()
    assert quiver.statistics().segment_events == 3
    assert column_of(quiver) == [0, 1, 2]


@pytest.mark.parametrize("end", ["kill", "cut_power", "stop"])
def test_nothing_is_truncated_past_a_failed_seal(
    machine: Machine, failing: FailingSeals, end: str
) -> None:
    quiver = machine.quiver
    assert quiver is not None
    for value in range(3):
        quiver.append(numbers(value))
        if value == 0:
            flush_in_vain(quiver)
    getattr(machine, end)()
    quiver = machine.start()
    assert column_of(quiver) == [0, 1, 2]
    assert quiver.recovery.replayed_bundles == 3
    assert quiver.recovery.damages == []
    quiver.flush()
    assert column_of(quiver) == [0, 1, 2]


def test_whoever_waits_for_a_segment_that_fails_until_the_end_is_told_so(
    machine: Machine, failing: FailingSeals
) -> None:
    quiver = machine.quiver
    assert quiver is not None
    errors: list[BaseException] = []

    def append() -> None:
        try:
            quiver.append(numbers(1), level=AckLevel.SEGMENT)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=append)
    waiting.start()
    assert failing.wal_synced.wait(PATIENCE_S)
    machine.stop()
    waiting.join()
    (error,) = errors
    assert "write-ahead log" in str(error)
    assert column_of(machine.start()) == [1]


def test_a_segment_whose_parent_sync_failed_is_not_stored_twice(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.SEAL_SYNC_PARENT, FaultKind.FAILED_SYNC)])
    quiver.append(numbers(1))
    quiver.flush()
    assert quiver.statistics().sealer.failures == 1
    assert len(names_on_disk(machine)) == 1
    machine.cut_power()
    assert column_of(machine.start()) == [1]


def test_a_segment_that_could_not_be_taken_back_is_still_read_once(machine: Machine) -> None:
    """The parent sync fails, and so does the rename that would undo the first try."""
    faults = [
        Fault(QuiverPoint.SEAL_SYNC_PARENT, FaultKind.FAILED_SYNC),
        Fault(QuiverPoint.SEAL_RENAME, FaultKind.EIO, nth=2),
    ]
    quiver = machine.start(faults=faults)
    seq = quiver.append(numbers(1, 2)).seq
    quiver.flush()
    assert len(names_on_disk(machine)) == 2
    assert column_of(quiver) == [1, 2]
    machine.kill()
    quiver = machine.start()
    assert column_of(quiver) == [1, 2]
    assert own_rows(quiver, seq) == [(1,), (2,)]
    assert quiver.statistics().segment_events == 2


@pytest.mark.parametrize("end", ["kill", "cut_power"])
@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER])
def test_a_crash_between_the_rename_and_the_sync_of_the_parent_loses_and_repeats_nothing(
    machine: Machine, kind: FaultKind, end: str
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.SEAL_SYNC_PARENT, kind)])
    quiver.append(numbers(1, 2))
    with pytest.raises((StorageFailed, SimulatedCrash)):
        quiver.flush()
    getattr(machine, end)()
    quiver = machine.start()
    assert column_of(quiver) == [1, 2]
    quiver.flush()
    assert column_of(quiver) == [1, 2]
    assert quiver.statistics().segment_events == 2


def test_a_sealed_segment_is_visible_at_once_also_if_its_wal_cannot_be_removed(
    machine: Machine,
) -> None:
    """Upstream forgot to register it, and stored it again after a restart (2c.3)."""
    fault = Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO, times=FOREVER)
    quiver = machine.start(faults=[fault])
    quiver.append(numbers(1))
    quiver.flush()
    assert len(quiver.segments()) == 1
    machine.kill()
    quiver = machine.start()
    assert quiver.recovery.skipped_bundles == 1
    assert quiver.recovery.replayed_bundles == 0
    assert column_of(quiver) == [1]


def test_a_full_disk_delays_the_seal_and_the_data_is_sealed_once_there_is_space() -> None:
    disk = SimulatedDisk(capacity_bytes=10 * MB)
    with Machine(disk) as machine:
        quiver = machine.start()
        quiver.append(numbers(1))
        for entry in disk.list(RESERVE):
            disk.unlink(RESERVE / entry.name, "test")
        disk.fill()
        flush_in_vain(quiver)
        while "space" not in str(quiver.statistics().last_seal_error):
            quiver._engine.sealer.wait_idle(0.01)
        disk.capacity_bytes = 10 * MB
        quiver.flush()
        assert len(quiver.segments()) == 1
        assert column_of(quiver) == [1]
