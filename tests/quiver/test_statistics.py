"""Statistics: totals count what happened, gauges what is there, and both add up."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.quiver.batches import numbers, seal
from tests.quiver.machine import WAL, Machine, quiet
from tests.support.disk import GatedDisk

from holdfast.errors import BadInput, DiskFull, StorageFailed
from holdfast.quiver import AckLevel, Quiver, Statistics
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.statistics import FORMER_NAMES, SignalStatistics
from holdfast.seam.faulty import Fault, FaultKind


def reconcile(machine: Machine, quiver: Quiver) -> Statistics:
    """Check that the picture fits the disk, the segments and itself; return it."""
    idle = threading.Event()
    quiver._writer.inbox.request(idle.set)  # a flush may be answered before its WAL file is left
    assert idle.wait(PATIENCE_S)
    with quiver._engine.sealer.wal_files._lock:  # nor are its files removed by then
        statistics = quiver.statistics()
        files = [entry.size_bytes for entry in machine.disk.list(WAL)]
    assert statistics.wal_bytes == sum(files)
    assert statistics.wal_files == len(files)
    summaries = [segment.summary for segment in quiver.segments()]
    assert statistics.segments == len(summaries)
    assert statistics.segment_events == sum(summary.events for summary in summaries)
    assert statistics.segment_bytes == sum(summary.size_bytes for summary in summaries)
    open_events = sum(held.events for held in quiver._writer.buffer.bundles)
    assert statistics.accepted_events == statistics.segment_events + open_events
    assert statistics.pending_bytes == 0
    assert statistics.writer.appends <= statistics.writer.bundles
    assert (statistics.open_bytes > 0) == (statistics.open_bundles > 0)
    return statistics


def test_a_fresh_quiver_has_counted_nothing(machine: Machine) -> None:
    statistics = reconcile(machine, machine.start())
    for counters in (statistics.writer, statistics.sealer, statistics.retention):
        assert counters == type(counters)()
    assert not any(v for name, v in vars(statistics).items() if name.endswith("_total"))
    assert statistics.accepting
    assert (statistics.next_seq, statistics.synced_seq) == (0, -1)


def test_appends_bundles_events_and_bytes_are_counted(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append_raw([b"abc", b"de"], slot="raw")
    quiver.append(numbers(1, 2, 3))
    quiver.heartbeat("p", 1)
    with quiver.transaction() as transaction:
        transaction.append(numbers(4))
        transaction.append(numbers(5))
    statistics = reconcile(machine, quiver)
    assert (statistics.writer.appends, statistics.writer.bundles) == (4, 5)
    assert statistics.writer.events == 7
    assert statistics.open_bundles == 5
    assert (statistics.next_seq, statistics.synced_seq) == (5, 4)
    assert statistics.writer.groups == statistics.writer.syncs == 4
    assert statistics.writer.payload_bytes == seal(quiver).summary.payload_bytes


def test_segments_are_counted_by_the_signal_that_extractors_say(machine: Machine) -> None:
    class Reader:
        def __init__(self, signal: str) -> None:
            self.signal = signal

        def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch(
                {"event_time": pa.nulls(rows.num_rows, pa.timestamp("us", "UTC"))}
            )

    extractors = {"a": Reader("traces"), "b": Reader("traces"), "c": Reader("")}
    quiver = machine.start(replace(quiet(), extractors=extractors))
    for slot in ("a", "b", "c", "d", "a"):
        quiver.append_raw([b"x", b"y"], slot=slot)
    files = seal(quiver).summary.files
    size_bytes = sum(file.size_bytes for file in files if file.slot in "ab")
    assert quiver.statistics().signals == {"traces": SignalStatistics(6, size_bytes)}
    assert {file.slot: file.signal for file in files} == {
        "a": "traces", "b": "traces", "c": "", "d": "",
    }  # fmt: skip


def test_counters_are_found_by_their_former_names_too(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1, 2, 3))
    statistics = quiver.statistics()
    assert getattr(statistics, "events_total") == 3  # noqa: B009
    for name, (group, counter) in FORMER_NAMES.items():
        assert getattr(statistics, name) == getattr(getattr(statistics, group), counter)
    with pytest.raises(AttributeError):
        getattr(statistics, "no_such_total")  # noqa: B009


def test_a_seal_moves_everything_from_the_buffer_to_the_segments(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1, 2))
    before = reconcile(machine, quiver)
    quiver.flush()
    quiver.append(numbers(3))
    after = reconcile(machine, quiver)
    assert (before.segment_events, after.segment_events) == (0, 2)
    assert (before.open_bundles, after.open_bundles) == (1, 1)
    assert after.sealer.segments == 1
    assert after.sealer.seconds > 0
    assert after.sealing_bytes == 0


def test_what_is_being_sealed_is_neither_lost_nor_counted_twice(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.SEAL_RENAME)
    quiver = machine.start(through=lambda _: gated)
    quiver.append(numbers(1))
    open_bytes = quiver.statistics().open_bytes
    quiver._writer.flush(lambda error: None)
    assert gated.reached.wait(PATIENCE_S)
    during = quiver.statistics()
    assert (during.open_bundles, during.sealing_bytes, during.segments) == (0, open_bytes, 0)
    gated.gate.set()
    quiver.flush()
    assert reconcile(machine, quiver).segment_events == 1


def test_repeats_and_refusals_are_not_counted_as_accepted(machine: Machine) -> None:
    quiver = machine.start()
    for _ in range(3):
        quiver.append(numbers(1), producer="p", epoch=1)
    with pytest.raises(BadInput):
        quiver.append(numbers())
    statistics = reconcile(machine, quiver)
    assert (statistics.writer.appends, statistics.writer.events, statistics.producers) == (1, 1, 1)


def test_totals_begin_again_with_each_start_and_gauges_do_not(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1, 2), producer="p", epoch=1)
    machine.stop()
    quiver = machine.start()
    quiver.append(numbers(3))
    statistics = reconcile(machine, quiver)
    assert (statistics.writer.appends, statistics.writer.events) == (1, 1)
    assert (statistics.segments, statistics.segment_events) == (1, 2)
    assert (statistics.accepted_bundles, statistics.accepted_events) == (2, 3)
    assert statistics.producers == 1


def test_failures_are_counted_where_they_happen(machine: Machine) -> None:
    faults = [
        Fault(QuiverPoint.WAL_WRITE, FaultKind.ENOSPC),
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC, nth=2),
        Fault(QuiverPoint.SEAL_RENAME, FaultKind.EIO, times=2),
    ]
    quiver = machine.start(faults=faults)
    with pytest.raises(DiskFull):
        quiver.append(numbers(0))
    quiver.append(numbers(1))
    quiver.append(numbers(2))
    quiver.flush()
    statistics = quiver.statistics()
    assert statistics.writer.write_failures == 1
    assert statistics.writer.sync_failures == 1
    assert statistics.sealer.failures == 2
    assert statistics.sealer.segments == 1
    assert "injected" in str(statistics.last_seal_error)
    assert statistics.writer.events == statistics.segment_events == 2


def test_a_quiver_that_stopped_accepting_says_so(machine: Machine) -> None:
    faults = [
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC),
        Fault(QuiverPoint.WAL_CREATE, FaultKind.EIO, nth=2, times=1000),
    ]
    quiver = machine.start(faults=faults)
    with pytest.raises(StorageFailed):
        quiver.append(numbers(1))
    assert not quiver.statistics().accepting


def test_a_closed_quiver_is_not_accepting_and_holds_nothing_open(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1))
    machine.stop()
    statistics = quiver.statistics()
    assert not statistics.accepting
    assert (statistics.open_bundles, statistics.open_bytes, statistics.sealing_bytes) == (0, 0, 0)
    assert statistics.segment_events == 1


def test_bytes_set_aside_are_a_gauge(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(1))
    path = seal(quiver).path / "manifest"
    machine.stop()
    machine.disk.unlink(path, "test")
    assert machine.start().statistics().quarantined_bytes > 0


def test_staged_bytes_are_a_gauge(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append_raw(bytes(1000))
    assert quiver.statistics().staged_bytes > 1000
    transaction.abort()
    assert quiver.statistics().staged_bytes == 0


STEPS = st.lists(
    st.sampled_from(["append", "raw", "transaction", "repeat", "heartbeat", "seal", "restart"]),
    max_size=12,
)


@given(steps=STEPS, level=st.sampled_from([AckLevel.WRITTEN, AckLevel.FSYNCED]))
def test_totals_and_gauges_reconcile_after_any_steps(steps: list[str], level: AckLevel) -> None:
    with Machine() as machine:
        quiver, epoch, events = machine.start(quiet(level)), 0, 0
        for step in steps:
            if step == "append":
                events += quiver.append(numbers(1, 2)).events
            elif step == "raw":
                events += quiver.append_raw([b"x"], slot="raw").events
            elif step == "transaction":
                with quiver.transaction() as transaction:
                    transaction.append(numbers(1))
                    transaction.append(numbers(2))
                events += 2
            elif step == "repeat":
                epoch += 1
                events += quiver.append(numbers(1), producer="p", epoch=epoch).events
                assert quiver.append(numbers(1), producer="p", epoch=epoch).duplicate
            elif step == "heartbeat":
                quiver.heartbeat("q", 1)
            elif step == "seal":
                quiver.flush()
            else:
                machine.stop()
                quiver = machine.start(quiet(level))
            assert reconcile(machine, quiver).accepted_events == events
