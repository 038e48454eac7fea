"""What a program does with data that a newer one wrote, and after one lost sector.

The rule is in docs/format/README.md: what is newer is refused before anything is touched; what a
later program may add without a new version is read as if it were not there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import PurePath

import pyarrow as pa
import pytest
from tests.quiver.machine import contents
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from holdfast.errors import UnknownFormat
from holdfast.quiver import Quiver
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import NO_WATERMARK, NOTHING, FrameKind, decode, encode
from holdfast.quiver.log.wal import decode_header
from holdfast.quiver.segments import manifest
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data")
WAL = ROOT / names.WAL_DIR
SEGMENTS = ROOT / names.SEGMENTS_DIR
BATCH = pa.record_batch({"n": [1, 2, 3]})
# What modern disks lose at once; they only pretend to have sectors of 512 bytes.
PHYSICAL_SECTOR_BYTES = 4096


def open_quiver(disk: Disk) -> Quiver:
    clock = JumpingClock(1_700_000_000_000_000_000)
    return Quiver.open(ROOT, seam=Seam(disk, clock, seeded_randomness(2)))


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a sealed segment, and one bundle that only the WAL of a killed process has."""
    running = SimulatedDisk()
    with open_quiver(running) as quiver:
        quiver.append(BATCH)
        quiver.flush()
        quiver.append(BATCH)
        return running.snapshot()


def newest_wal(disk: Disk) -> PurePath:
    return WAL / [e.name for e in disk.list(WAL) if names.parse_wal_file(e.name)][-1]


def manifest_path(disk: Disk) -> PurePath:
    return SEGMENTS / disk.list(SEGMENTS)[0].name / names.MANIFEST


def with_checksum(line: bytes) -> bytes:
    return line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"


def rewrite_json(line: bytes, **changes: object) -> bytes:
    return json.dumps({**json.loads(line), **changes}).encode()


# Newer data is refused, and left as it was.


def make_format_newer(disk: SimulatedDisk) -> None:
    line = disk.read(ROOT / names.FORMAT).split(b"\n")[0]
    disk.put(ROOT / names.FORMAT, with_checksum(rewrite_json(line, version=2)))


def make_wal_newer(disk: SimulatedDisk) -> None:
    """Write a header with a field more, as a later version may."""
    path = newest_wal(disk)
    content = bytearray(disk.read(path))
    for start in (0, PHYSICAL_SECTOR_BYTES):
        content[start + 8 : start + 10] = struct.pack("<H", 3)
        content[start + 1000 : start + 1003] = b"new"
        end = start + PHYSICAL_SECTOR_BYTES - 8
        content[end : end + 8] = struct.pack("<Q", xxh3_64_intdigest(bytes(content[start:end])))
    disk.put(path, bytes(content))


def make_manifest_newer(disk: SimulatedDisk) -> None:
    path = manifest_path(disk)
    line = rewrite_json(disk.read(path).split(b"\n")[0], version=3, files="elsewhere")
    disk.put(path, with_checksum(line) * 2)


def append_frame(disk: SimulatedDisk, kind: int, flags: int) -> None:
    path = newest_wal(disk)
    content = disk.read(path)
    salt = decode_header(memoryview(content)).salt
    header, _ = encode(salt, len(content), kind, 7, 0, 0, NO_WATERMARK, b"", NOTHING, flags=flags)
    disk.put(path, content + header)


def append_frame_of_newer_kind(disk: SimulatedDisk) -> None:
    append_frame(disk, kind=200, flags=0)


def append_frame_with_newer_flag(disk: SimulatedDisk) -> None:
    append_frame(disk, kind=FrameKind.CONTROL, flags=0x80)


@pytest.mark.parametrize(
    "make_newer",
    [
        make_format_newer,
        make_wal_newer,
        make_manifest_newer,
        append_frame_of_newer_kind,
        append_frame_with_newer_flag,
    ],
)
def test_newer_data_is_refused_and_nothing_of_it_is_touched(
    disk: SimulatedDisk, make_newer: Callable[[SimulatedDisk], None]
) -> None:
    # Names only a newer program knows, and an unfinished seal: neither is ours to tidy up.
    disk.put(WAL / "0000000000000009.wal2", b"of a newer program")
    disk.make_dir(SEGMENTS / names.building_dir(9, 1), "test")
    disk.put(SEGMENTS / names.building_dir(9, 1) / "new", b"of a newer program")
    make_newer(disk)
    before = contents(disk)
    with pytest.raises(UnknownFormat):
        open_quiver(disk)
    assert contents(disk) == before


@pytest.mark.parametrize(
    "make_newer", [make_format_newer, append_frame_of_newer_kind, append_frame_with_newer_flag]
)
def test_looking_into_newer_data_is_refused_too(
    disk: SimulatedDisk, make_newer: Callable[[SimulatedDisk], None]
) -> None:
    make_newer(disk)
    with pytest.raises(UnknownFormat):
        inspect(disk, ROOT)


# What may be added without a new version.


def test_manifest_fields_added_later_are_passed_over(disk: SimulatedDisk) -> None:
    path = manifest_path(disk)
    fields = json.loads(disk.read(path).split(b"\n")[0])
    for part in (fields, fields["files"][0], fields["files"][0]["batches"][0]):
        part["added_later"] = [1, 2]
    disk.put(path, with_checksum(json.dumps(fields).encode()) * 2)
    with open_quiver(disk) as quiver:
        assert quiver.recovery.damages == []
        assert quiver.scan(["n"]).read_all().num_rows == 6


def test_producer_parts_may_grow_and_may_name_no_producer() -> None:
    salt = 77
    name = b"edge"
    for named, producer in ((name, "edge"), (b"", None)):
        part = struct.pack("<QH", 5, len(named)) + named + b"added later"
        part += bytes(-len(part) % 8)
        body = part + b"payload"
        header, padding = encode(
            salt, 0, FrameKind.RAW, 1, 2, 0, NO_WATERMARK, body, NOTHING, extra_bytes=len(part)
        )
        frame = decode(memoryview(header + body + padding), 0, salt)
        assert (frame.producer, frame.epoch, bytes(frame.payload)) == (producer, 5, b"payload")


# One lost sector costs nothing.


@pytest.mark.parametrize("sector", [0, 1])
def test_a_damaged_physical_sector_costs_no_wal_header(disk: SimulatedDisk, sector: int) -> None:
    disk.overwrite(newest_wal(disk), sector * PHYSICAL_SECTOR_BYTES, bytes(PHYSICAL_SECTOR_BYTES))
    with open_quiver(disk) as quiver:
        assert quiver.recovery.damages == []
        assert quiver.scan(["n"]).read_all().num_rows == 6


def test_a_damaged_physical_sector_costs_no_manifest(disk: SimulatedDisk) -> None:
    path = manifest_path(disk)
    whole = disk.read(path)
    summary = manifest.decode(whole)
    for start in range(0, len(whole), PHYSICAL_SECTOR_BYTES):
        end = min(len(whole), start + PHYSICAL_SECTOR_BYTES)
        disk.overwrite(path, start, bytes(end - start))
        assert manifest.decode(disk.read(path)) == summary
        disk.put(path, whole)


# A directory's name is checked against its manifest.


def test_a_copied_segment_directory_is_set_aside_and_its_rows_are_not_doubled(
    disk: SimulatedDisk,
) -> None:
    original = manifest_path(disk).parent
    copy = SEGMENTS / names.segment_dir(names.SegmentName(9, 1000, 2000, 1, 3))
    disk.make_dir(copy, "test")
    for path, content in contents(disk, original).items():
        disk.put(copy / path.name, content)
    with open_quiver(disk) as quiver:
        assert [damage.source for damage in quiver.recovery.damages] == [copy.name]
        assert quiver.scan(["n"]).read_all().num_rows == 6
