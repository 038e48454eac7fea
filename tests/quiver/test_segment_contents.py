"""What a sealed segment holds, how it is read, and how little of it a start reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.batches import (
    column_of,
    data_paths,
    numbers,
    own_rows,
    plain_rows,
    quiet_segments,
    seal,
)
from tests.quiver.machine import START_NS, Machine, quiet

from holdfast.quiver import Bundle, Quiver
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.frame import FrameKind
from holdfast.quiver.segments.rows import BundleRows, position_columns
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk


def test_two_schemas_of_one_slot_make_two_files_and_bundles_are_whole_again(
    machine: Machine,
) -> None:
    quiver = machine.start()
    batches = [numbers(1), numbers(2, column="m"), numbers(3), numbers(4, column="m")]
    seqs = [quiver.append({"a": batch, "b": numbers(9)}).seq for batch in batches]
    summary = seal(quiver).summary
    assert sorted((file.slot, file.rows) for file in summary.files) == [
        ("a", 2),
        ("a", 2),
        ("b", 4),
    ]
    fingerprints = {file.schema_fingerprint for file in summary.files if file.slot == "a"}
    assert len(fingerprints) == 2
    for seq, batch in zip(seqs, batches, strict=True):
        bundle = quiver.bundle(seq)
        assert bundle is not None
        assert bundle.slots["a"].equals(batch)
        assert bundle.slots["b"].equals(numbers(9))


def test_all_64_slots_of_a_bundle_come_back(machine: Machine) -> None:
    quiver = machine.start()
    data = {f"slot-{n}": numbers(n) for n in range(64)}
    seq = quiver.append(data).seq
    summary = seal(quiver).summary
    assert len(summary.files) == 64
    bundle = quiver.bundle(seq)
    assert bundle is not None
    assert bundle.slots == data


def test_schemas_beyond_max_files_share_one_opaque_file_and_lose_nothing(machine: Machine) -> None:
    quiver = machine.start(quiet(max_files=3))
    quiver.append_raw([b"x", b"y"], headers=[None, {"k": "v"}], slot="raw")
    seqs = [
        quiver.append({"common": numbers(n), f"rare-{n}": numbers(n, n, column=f"c{n}")}).seq
        for n in range(6)
    ]
    before = {f"rare-{n}": plain_rows(quiver.scan(slot=f"rare-{n}").read_all()) for n in range(6)}
    before["raw"] = plain_rows(quiver.scan(slot="raw").read_all())
    summary = seal(quiver).summary
    assert [file.kind for file in summary.files].count("opaque") == 1
    assert len(summary.files) == 3
    assert quiver.statistics().opaque_rows_total > 0
    machine.stop()
    quiver = machine.start()
    after = {slot: plain_rows(quiver.scan(slot=slot).read_all()) for slot in before}
    assert after == before
    for n, seq in enumerate(seqs):
        bundle = quiver.bundle(seq)
        assert bundle is not None
        assert bundle.slots == {"common": numbers(n), f"rare-{n}": numbers(n, n, column=f"c{n}")}


def test_a_slot_without_rows_beside_others_with_rows_comes_back_empty(machine: Machine) -> None:
    quiver = machine.start()
    empty = numbers(column="none")
    seqs = [
        quiver.append({"a": numbers(1), "b": empty}).seq,
        quiver.append({"a": numbers(), "b": numbers(2)}).seq,
        quiver.append({"a": numbers(3), "b": empty, "c": numbers()}).seq,
    ]
    for _ in range(2):
        slots = [bundle.slots for bundle in map(quiver.bundle, seqs) if bundle]
        assert slots[0] == {"a": numbers(1), "b": empty}
        assert slots[1] == {"a": numbers(), "b": numbers(2)}
        assert slots[2] == {"a": numbers(3), "b": empty, "c": numbers()}
        assert column_of(quiver, slot="a") == [1, 3]
        assert column_of(quiver, slot="b") == [2]
        assert quiver.scan(slot="c").read_all().num_rows == 0
        quiver.flush()


def test_control_bundles_alone_make_a_segment_with_watermarks_and_no_rows(
    machine: Machine,
) -> None:
    quiver = machine.start()
    seqs = [quiver.heartbeat("p", watermark).seq for watermark in (-5, 0, -3)]
    quiver.heartbeat("q", 7)
    summary = seal(quiver).summary
    assert (summary.events, summary.bundles, summary.files) == (0, 4, ())
    assert (summary.clamped_min_event_us, summary.clamped_max_event_us) == (None, None)
    assert summary.producers["p"].watermark_ns == 0
    assert summary.producers["q"].watermark_ns == 7
    machine.stop()
    quiver = machine.start()
    found = [bundle for bundle in map(quiver.bundle, seqs) if bundle]
    assert [(b.kind, b.producer, b.watermark_ns, b.slots) for b in found] == [
        (FrameKind.CONTROL, "p", -5, {}),
        (FrameKind.CONTROL, "p", 0, {}),
        (FrameKind.CONTROL, "p", -3, {}),
    ]
    assert quiver.scan().read_all().num_rows == 0


def described(bundle: Bundle) -> tuple[object, ...]:
    """Return what a bundle says about itself, without its content."""
    return (
        bundle.seq,
        bundle.kind,
        bundle.ingestion_ns,
        bundle.watermark_ns,
        bundle.producer,
        bundle.epoch,
    )


def test_a_bundle_keeps_its_producer_epoch_watermark_and_time(machine: Machine) -> None:
    quiver = machine.start()
    seq = quiver.append(numbers(1), producer="p", epoch=7, watermark_ns=-1).seq
    plain = quiver.append(numbers(2)).seq
    for _ in range(2):
        bundle = quiver.bundle(seq)
        assert bundle is not None
        assert described(bundle) == (seq, FrameKind.ARROW, START_NS, -1, "p", 7)
        other = quiver.bundle(plain)
        assert other is not None
        assert described(other) == (plain, FrameKind.ARROW, START_NS, None, None, 0)
        quiver.flush()


def test_raw_events_keep_their_bytes_and_headers(machine: Machine) -> None:
    quiver = machine.start()
    payloads = [b"", b"\0\xff" * 100, "ü".encode()]
    headers = [{"content-type": "text/plain", "é": "\n"}, None, {}]
    seq = quiver.append_raw(payloads, headers=headers).seq
    for _ in range(2):
        assert own_rows(quiver, seq) == [
            (payloads[0], '{"content-type": "text/plain", "\\u00e9": "\\n"}'),
            (payloads[1], None),
            (payloads[2], None),
        ]
        quiver.flush()


def test_an_unknown_seq_is_no_bundle(machine: Machine) -> None:
    quiver = machine.start()
    seq = quiver.append(numbers(1)).seq
    for _ in range(2):
        assert quiver.bundle(seq + 1) is None
        assert quiver.bundle(-1) is None
        assert quiver.bundle(2**70) is None
        quiver.flush()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_segments_are_smaller_and_hold_the_same_rows(
    machine: Machine, codec: Literal["lz4", "zstd"]
) -> None:
    rows = pa.record_batch({"n": range(20_000), "text": ["the same text again"] * 20_000})
    sizes = {}
    for compression in ("none", codec):
        quiver = machine.start(quiet_segments(compression=compression))
        seq = quiver.append(rows).seq
        sizes[compression] = seal(quiver).summary.size_bytes
        bundle = quiver.bundle(seq)
        assert bundle is not None
        assert bundle.slots["events"].equals(rows)
        machine.stop()
    assert sizes[codec] < sizes["none"] / 2
    quiver = machine.start()
    assert quiver.scan(["n"]).read_all().num_rows == 40_000


@pytest.mark.parametrize("count", [10_000, pytest.param(70_000, marks=pytest.mark.slow)])
def test_a_segment_of_many_tiny_bundles_stays_readable_and_its_manifest_small(
    machine: Machine, count: int
) -> None:
    """Upstream's bitmap ended at 65,536 bundles a segment (2c.10)."""
    quiver = machine.start(quiet_segments(target_size_bytes=256 * MB))
    for first in range(0, count, 10_000):
        with quiver.transaction() as transaction:
            for value in range(first, first + 10_000):
                transaction.append_raw(value.to_bytes(4, "big"))
    segment = seal(quiver)
    assert segment.summary.bundles == count
    machine.stop()
    quiver = machine.start()
    (segment,) = quiver.segments()
    assert len(machine.disk.read(segment.path / "manifest")) < 16 * KB
    for seq in (0, count - 4_465, count - 4_464, count - 1):
        assert own_rows(quiver, seq) == [(seq.to_bytes(4, "big"), None)]
    assert segment.bundle_table.num_rows == count
    assert quiver.scan(["_seq"]).read_all().num_rows == count


# 14 MB in blocks of 256 kB. Where they are compressed, each has room for one of the bundles.
@pytest.mark.parametrize(
    ("compression", "blocks_min", "blocks_max"), [("none", 55, 62), ("zstd", 20, 20)]
)
def test_large_files_hold_several_record_batches_and_bundles_across_them_are_whole(
    machine: Machine, compression: Any, blocks_min: int, blocks_max: int
) -> None:
    quiver = machine.start(quiet_segments(target_size_bytes=64 * MB, compression=compression))
    batches = [
        pa.record_batch({"n": [place] * 700, "fill": [bytes([place]) * 1000] * 700})
        for place in range(20)
    ]
    seqs = [quiver.append(batch).seq for batch in batches]
    (file,) = seal(quiver).summary.files
    assert blocks_min <= len(file.batches) <= blocks_max
    assert sum(batch.rows for batch in file.batches) == 20 * 700
    for seq, batch in zip(seqs, batches, strict=True):
        bundle = quiver.bundle(seq)
        assert bundle is not None
        assert bundle.slots["events"].equals(batch)


def views(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.string_view())


def binary_views(texts: list[str]) -> pa.Array:
    return pa.array([text.encode() for text in texts], pa.binary_view())


def list_views(texts: list[str]) -> pa.Array:
    return pa.array([[text] for text in texts], pa.list_view(pa.string()))


def views_in_lists(texts: list[str]) -> pa.Array:
    return pa.array([[text] for text in texts], pa.list_(pa.string_view()))


def dense_unions(texts: list[str]) -> pa.Array:
    codes = pa.array([0] * len(texts), pa.int8())
    return pa.UnionArray.from_dense(
        codes, pa.array(range(len(texts)), pa.int32()), [pa.array(texts)]
    )


@pytest.mark.parametrize(
    "make",
    [pa.array, views, binary_views, list_views, views_in_lists, dense_unions],
    ids=lambda make: make.__name__,
)
def test_a_segment_is_not_much_larger_than_what_was_appended(
    machine: Machine, make: Callable[[list[str]], pa.Array]
) -> None:
    """Arrow writes the values behind views once for each record batch, so there is only one."""
    quiver = machine.start(quiet_segments(target_size_bytes=64 * MB))
    batch = pa.record_batch({"c": make([f"{n:09d}" * 20 for n in range(4_000)])})
    seqs = [quiver.append(batch).seq for _ in range(6)]
    summary = seal(quiver).summary
    assert summary.size_bytes < 1.5 * summary.payload_bytes
    assert own_rows(quiver, seqs[3]) == plain_rows(batch)


def test_the_size_in_the_summary_is_the_size_on_disk(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append({"a": numbers(1), "b": numbers(2)})
    segment = seal(quiver)
    files = {entry.name: entry.size_bytes for entry in machine.disk.list(segment.path)}
    assert segment.summary.size_bytes == sum(files.values()) - files["manifest"]


def test_buffers_of_mapped_batches_are_aligned(tmp_path: PurePath) -> None:
    with Quiver.open(tmp_path, quiet()) as quiver:
        quiver.append(pa.record_batch({"a": ["x", "yy", None], "b": [1.5, 2.5, 3.5], "c": [1] * 3}))
        quiver.append_raw([b"odd", b"lengths!!"], slot="raw")
        segment = seal(quiver)
        addresses = [
            buffer.address
            for file in segment.files
            for column in file.batch(0).columns
            for buffer in column.buffers()
            if buffer is not None
        ]
    assert addresses
    assert all(address % 8 == 0 for address in addresses)


class CountingDisk(RealDisk):
    """Counts what is read."""

    def __init__(self) -> None:
        self.read_paths: list[PurePath] = []
        self.read_bytes = 0

    def read(self, path: PurePath) -> bytes:
        return bytes(self._count(path, super().read(path)))

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        return bytes(self._count(path, super().read_range(path, offset_bytes, size_bytes)))

    def map(self, path: PurePath) -> memoryview:
        return memoryview(self._count(path, super().map(path)))

    def _count(self, path: PurePath, content: Any) -> Any:
        self.read_paths.append(path)
        self.read_bytes += len(content)
        return content


def reads_at_start(root: PurePath, event_bytes: int) -> CountingDisk:
    """Return what a start reads after three segments of so many bytes were sealed."""
    with Quiver.open(root, quiet_segments(target_size_bytes=16 * MB)) as quiver:
        for _ in range(3):
            for _ in range(50):
                quiver.append_raw(bytes(event_bytes))
            quiver.flush()
    counting = CountingDisk()
    with Quiver.open(root, quiet(), seam=Seam(disk=counting)) as quiver:
        assert len(quiver.segments()) == 3
    return counting


def test_a_start_reads_summaries_only_however_many_bytes_the_segments_hold(
    tmp_path: PurePath,
) -> None:
    """Upstream checked every byte of every segment at start (2c.9)."""
    small = reads_at_start(tmp_path / "small", 100)
    large = reads_at_start(tmp_path / "large", 100_000)
    in_segments = [path for path in large.read_paths if "segments" in path.parts]
    assert [path.name for path in in_segments] == ["manifest"] * 3
    # Of the reserve, which grew, only the last bytes of each file are looked at.
    beside = [
        [path.name for path in disk.read_paths if "reserve" not in path.parts]
        for disk in (small, large)
    ]
    assert len(beside[0]) == len(beside[1])
    # The manifest has a line for each record batch.
    assert large.read_bytes < small.read_bytes + 30 * KB
    assert large.read_bytes < 100 * KB


def test_the_bundle_table_is_read_when_a_bundle_is_first_asked_for(tmp_path: PurePath) -> None:
    with Quiver.open(tmp_path, quiet()) as quiver:
        seq = quiver.append(numbers(1)).seq
    counting = CountingDisk()
    with Quiver.open(tmp_path, quiet(), seam=Seam(disk=counting)) as quiver:
        assert column_of(quiver) == [1]
        assert "bundles.arrow" not in read_names(counting.read_paths)
        own_rows(quiver, seq)
        own_rows(quiver, seq)
        assert read_names(counting.read_paths).count("bundles.arrow") == 1


def read_names(paths: Iterable[PurePath]) -> list[str]:
    return [path.name for path in paths]


def test_data_files_are_named_after_their_slots(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append({"spans": numbers(1), "logs": numbers(2)})
    paths = data_paths(seal(quiver))
    assert sorted(path.name[3:] for path in paths) == ["-logs.arrow", "-spans.arrow"]
    assert all(machine.disk.exists(path) for path in paths)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=8))
def test_position_columns_say_of_every_row_where_it_came_from(
    shares: list[tuple[int, int]],
) -> None:
    given_shares = [
        BundleRows(7 * place, 1_000 * place + 999, 0, first_row, rows)
        for place, (first_row, rows) in enumerate(shares)
    ]
    expected = [
        (share.seq, share.first_row + row, share.ingestion_ns // 1000)
        for share in given_shares
        for row in range(share.rows)
    ]
    seqs, rows, times = position_columns(given_shares)
    assert [str(column.type) for column in (seqs, rows)] == ["int64", "int32"]
    found = zip(*(c.cast(pa.int64()).to_pylist() for c in (seqs, rows, times)), strict=True)
    assert list(found) == expected
