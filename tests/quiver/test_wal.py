"""The write-ahead log as it is written and read: what was appended is what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, until
from tests.quiver.machine import NO_SEAL, START_NS, Machine, payloads, quiet
from tests.quiver.waiting import in_thread
from tests.support.disk import GatedDisk

from holdfast.errors import BadInput
from holdfast.quiver import AckLevel, Quiver, SegmentConfig
from holdfast.quiver.base.bundle import SLOTS_MAX
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.frame import STAGED, FrameKind
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log import writer
from holdfast.quiver.log.wal import HEADER_BYTES, SEQ_BLOCK, decode_header, walk

# Round trips.


def slots_of(quiver: Quiver, seq: int) -> dict[str, pa.RecordBatch]:
    bundle = quiver.bundle(seq)
    assert bundle is not None
    return bundle.slots


def assert_recovered(machine: Machine, bundle: dict[str, pa.RecordBatch]) -> None:
    """Append, kill, and find the same again: out of the WAL, and then out of the segment."""
    seq = machine.start().append(bundle).seq
    machine.kill()
    quiver = machine.start()
    assert slots_of(quiver, seq) == bundle
    quiver.flush()
    assert slots_of(quiver, seq) == bundle


def test_a_bundle_of_several_slots_comes_back_identical(machine: Machine) -> None:
    assert_recovered(
        machine,
        {
            "logs": pa.record_batch({"body": ["a", None, "c"], "severity": [1, 2, 3]}),
            "log_attrs": pa.record_batch({"parent_id": pa.array([0, 2], pa.uint16())}),
            "resource.attrs-1": pa.record_batch({"nested": [{"k": [1, 2]}]}),
        },
    )


def test_a_bundle_with_all_64_slots_comes_back_identical(machine: Machine) -> None:
    bundle = {f"slot-{n}": pa.record_batch({"n": [n] * (n + 1)}) for n in range(SLOTS_MAX)}
    assert_recovered(machine, bundle)


def test_a_large_bundle_of_three_slots_comes_back_identical(machine: Machine) -> None:
    bundle = {f"s{n}": pa.record_batch({"n": range(n, 40_000 + n)}) for n in range(3)}
    assert_recovered(machine, bundle)


def test_a_slot_without_rows_comes_back_beside_one_that_has_some(machine: Machine) -> None:
    empty = pa.record_batch({"n": pa.array([], pa.int64())})
    seq = machine.start().append({"empty": empty, "full": pa.record_batch({"n": [1]})}).seq
    machine.kill()
    assert slots_of(machine.start(), seq) == {"empty": empty, "full": pa.record_batch({"n": [1]})}


def test_raw_events_come_back_with_their_headers(machine: Machine) -> None:
    quiver = machine.start()
    seq = quiver.append_raw([b"\0\xff", b"", b"x" * 1000], headers=[{"k": "v"}, None, {}]).seq
    machine.kill()
    rows = slots_of(machine.start(), seq)["events"].to_pylist()
    assert [row["payload"] for row in rows] == [b"\0\xff", b"", b"x" * 1000]
    assert [row["headers"] for row in rows] == ['{"k": "v"}', None, None]


def test_a_file_holds_frames_of_every_kind_with_their_producers_times_and_flags(
    machine: Machine,
) -> None:
    quiver = machine.start(faults=[NO_SEAL])
    quiver.append(pa.record_batch({"n": [1, 2]}), producer="p", epoch=7, watermark_ns=-5)
    machine.clock.jump(1.0)
    quiver.append_raw([b"a", b"b", b"c"])
    quiver.heartbeat("q", 99)
    with quiver.transaction(producer="t", epoch=1) as transaction:
        transaction.append_raw(b"d")
        transaction.append_raw(b"e")
    machine.stop()
    frames = machine.wal().frames
    assert [(f.kind, f.seq, f.flags, f.events) for f in frames] == [
        (FrameKind.ARROW, 0, 0, 2),
        (FrameKind.RAW, 1, 0, 3),
        (FrameKind.CONTROL, 2, 0, 0),
        (FrameKind.RAW, 3, STAGED, 1),
        (FrameKind.RAW, 4, STAGED, 1),
        (FrameKind.COMMIT, 4, 0, 0),
        (FrameKind.CLOSE, 5, 0, 0),
    ]
    assert [(f.producer, f.epoch) for f in frames[:4]] == [
        ("p", 7), (None, 0), ("q", 0), ("t", 1),
    ]  # fmt: skip
    assert (frames[0].watermark_ns, frames[2].watermark_ns) == (-5, 99)
    assert frames[0].ingestion_ns == START_NS
    assert frames[1].ingestion_ns == START_NS + 1_000_000_000
    assert [frame.before.bundles for frame in frames] == [0, 1, 2, 3, 4, 5, 5]
    assert [frame.before.events for frame in frames] == [0, 2, 5, 5, 6, 7, 7]


def test_every_frame_says_how_far_the_file_was_synced_when_it_was_written(
    machine: Machine,
) -> None:
    quiver = machine.start()
    for level in (AckLevel.FSYNCED, AckLevel.WRITTEN, AckLevel.WRITTEN, AckLevel.FSYNCED):
        quiver.append_raw(b"x", level=level)
    quiver.append_raw(b"x")
    wal = machine.wal()
    starts = wal.starts
    assert [frame.synced_through for frame in wal.frames] == [
        HEADER_BYTES, starts[1], starts[1], starts[1], starts[4],
    ]  # fmt: skip


@pytest.mark.parametrize("wall_ns", [-1, -(10**18), 0, 4 * 10**18])
def test_a_clock_before_1970_or_far_ahead_harms_nothing(machine: Machine, wall_ns: int) -> None:
    machine.clock.jump((wall_ns - START_NS) / 1e9)
    machine.start().append_raw(b"x")
    machine.kill()
    quiver = machine.start()
    bundle = quiver.bundle(0)
    assert bundle is not None
    assert abs(bundle.ingestion_ns - wall_ns) < 1000
    quiver.flush()
    assert payloads(quiver) == {0: [b"x"]}


def test_order_is_by_seq_when_the_clock_jumps_back(machine: Machine) -> None:
    quiver = machine.start()
    for n in range(5):
        quiver.append_raw(b"%d" % n)
        machine.clock.jump(-3600)
    machine.kill()
    assert payloads(machine.start()) == {n: [b"%d" % n] for n in range(5)}


# What is refused leaves no trace.


@pytest.mark.parametrize(
    "append",
    [
        lambda q: q.append({}),
        lambda q: q.append({f"s{n}": pa.record_batch({"n": [1]}) for n in range(65)}),
        lambda q: q.append(pa.record_batch({"n": pa.array([], pa.int64())})),
        lambda q: q.append({"no/slot": pa.record_batch({"n": [1]})}),
        lambda q: q.append_raw([]),
        lambda q: q.append_raw(bytes(2_000_000)),
        lambda q: q.append_raw(b"x", producer="p", epoch=0),
        lambda q: q.append_raw(b"x", epoch=1),
        lambda q: q.append_raw(b"x", producer="p" * 2000),
        lambda q: q.append_raw(b"x", watermark_ns=2**63),
        lambda q: q.heartbeat("", 5),
    ],
)
def test_a_bundle_that_cannot_be_stored_is_refused_before_a_byte_is_written(
    machine: Machine, append: Callable[[Quiver], object]
) -> None:
    quiver = machine.start()
    before = machine.disk.read(machine.wal_paths()[0])
    with pytest.raises(BadInput):
        append(quiver)
    assert machine.disk.read(machine.wal_paths()[0]) == before
    assert quiver.append_raw(b"x").seq == 0


# Numbers.


def test_reopening_after_a_clean_end_continues_with_the_next_number(machine: Machine) -> None:
    quiver = machine.start()
    assert [quiver.append_raw(b"x").seq for _ in range(3)] == [0, 1, 2]
    machine.stop()
    quiver = machine.start()
    assert quiver.recovery.clean_shutdown
    assert quiver.append_raw(b"x").seq == 3


def test_reopening_continues_when_the_newest_file_is_empty_and_older_ones_hold_bundles(
    machine: Machine,
) -> None:
    machine.start(faults=[NO_SEAL]).append_raw(b"x")
    machine.stop()
    for _ in range(3):
        quiver = machine.start(faults=[NO_SEAL])
        assert payloads(quiver) == {0: [b"x"]}
        machine.stop()
    assert [len(machine.wal(place).frames) for place in (0, 1)] == [2, 1]
    assert machine.wal(1).frames[0].kind == FrameKind.CLOSE
    assert machine.start().append_raw(b"y").seq == 1


def test_no_number_is_used_twice_over_clean_and_unclean_ends(machine: Machine) -> None:
    given: list[int] = []
    for ending in (machine.stop, machine.kill, machine.cut_power) * 3:
        quiver = machine.start(quiet(AckLevel.WRITTEN))
        given += [quiver.append_raw(b"x").seq for _ in range(2)]
        ending()
    assert sorted(set(given)) == given


@pytest.fixture(params=[300, pytest.param(SEQ_BLOCK, marks=pytest.mark.slow)])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many numbers a WAL file takes at once; so many as are really taken take seconds."""
    monkeypatch.setattr(writer, "SEQ_BLOCK", request.param)
    return int(request.param)


def test_a_transaction_with_more_bundles_than_a_block_of_numbers_is_stored(
    machine: Machine, block: int
) -> None:
    quiver = machine.start()
    with quiver.transaction() as transaction:
        for _ in range(block + 10):
            transaction.append_raw(b"")
    machine.cut_power()
    quiver = machine.start()
    assert quiver.recovery.replayed_bundles == block + 10
    assert quiver.append_raw(b"x").seq >= block + 10


def test_a_file_is_left_when_its_block_of_numbers_is_used_up(machine: Machine, block: int) -> None:
    large = SegmentConfig(target_size_bytes=64 * MB, max_open_duration_s=3600.0)
    quiver = machine.start(replace(quiet(file_size_bytes=64 * MB), segment=large))
    for _ in range(2):
        with quiver.transaction() as transaction:
            for _ in range(block // 2 + 1):
                transaction.append_raw(b"")
    first, second = machine.wal(0), machine.wal(1)
    assert first.header.seq_limit == block
    assert max(frame.seq for frame in first.frames) < block
    assert max(frame.seq for frame in second.frames) < second.header.seq_limit


# Groups.


def test_appends_that_wait_together_share_one_write_and_one_sync(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    first = in_thread(lambda: quiver.append_raw(b"first"))
    assert gated.reached.wait(PATIENCE_S)
    others = [in_thread(lambda: quiver.append_raw(b"12345")) for _ in range(20)]
    until(lambda: quiver.statistics().pending_bytes >= 21 * 25)
    gated.gate.set()
    for waiting in (first, *others):
        waiting.result(PATIENCE_S)
    statistics = quiver.statistics()
    assert (statistics.writer.appends, statistics.writer.groups, statistics.writer.syncs) == (
        21,
        2,
        2,
    )
    assert gated.calls()[QuiverPoint.WAL_WRITE] == 2
    assert gated.calls()[QuiverPoint.WAL_SYNC] == 2


def test_many_producers_at_once_lose_and_double_nothing(machine: Machine) -> None:
    quiver = machine.start(quiet(file_size_bytes=64 * 1024))

    def work(worker: int) -> list[int]:
        return [quiver.append_raw(b"%d-%d" % (worker, n)).seq for n in range(50)]

    with ThreadPoolExecutor(8) as workers:
        seqs = [seq for found in workers.map(work, range(8)) for seq in found]
    machine.kill()
    stored = payloads(machine.start())
    assert sorted(stored) == sorted(seqs)
    expected = {b"%d-%d" % (w, n) for w in range(8) for n in range(50)}
    assert {events[0] for events in stored.values()} == expected


# Walking a file.


def test_a_walk_ends_at_the_end_of_the_file_and_stays_there(machine: Machine) -> None:
    machine.start().append_raw(b"x")
    view = memoryview(machine.disk.read(machine.wal_paths()[0]))
    steps = walk(view, decode_header(view).salt)
    assert len(list(steps)) == 1
    assert next(steps, None) is None
    assert next(steps, None) is None


def test_a_file_with_nothing_but_its_header_has_nothing_to_walk(machine: Machine) -> None:
    machine.start()
    view = memoryview(machine.disk.read(machine.wal_paths()[0]))
    assert len(view) == HEADER_BYTES
    assert list(walk(view, decode_header(view).salt)) == []


def test_every_file_has_a_salt_of_its_own(machine: Machine) -> None:
    salts = set()
    for _ in range(3):
        machine.start(faults=[NO_SEAL]).append_raw(b"x")
        machine.kill()
        salts.add(machine.wal(-1).header.salt)
    assert len(salts) == 3
