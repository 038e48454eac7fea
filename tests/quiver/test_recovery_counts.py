"""Recovery counts what was lost exactly, and gives out no number twice."""

from __future__ import annotations

from pathlib import PurePath

import pyarrow as pa
import pytest

from holdfast.quiver import Quiver
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import HEADER_BYTES, Frame
from holdfast.quiver.log.wal import HEADER_BYTES as WAL_HEADER_BYTES
from holdfast.quiver.log.wal import decode_header, walk
from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data")
WAL = ROOT / names.WAL_DIR


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(rows))})


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with six unsealed bundles of 1 to 6 events in one WAL file."""
    running = SimulatedDisk()
    with Quiver.open(ROOT, seam=Seam(running)) as quiver:
        for rows in range(1, 7):
            quiver.append(batch(rows))
        return running.snapshot()


def newest_wal(disk: SimulatedDisk) -> PurePath:
    return WAL / disk.list(WAL)[-1].name


def frame_starts(content: bytes) -> list[int]:
    view = memoryview(content)
    frames = [i for i in walk(view, decode_header(view).salt) if isinstance(i, Frame)]
    return [WAL_HEADER_BYTES, *(frame.end for frame in frames)]


@pytest.mark.parametrize("headers_too", [False, True])
def test_bundles_damaged_side_by_side_are_each_counted_once(
    disk: SimulatedDisk, headers_too: bool
) -> None:
    path = newest_wal(disk)
    starts = frame_starts(disk.read(path))
    for place in (1, 2, 3):
        disk.overwrite(path, starts[place] + (0 if headers_too else HEADER_BYTES), b"\xff" * 8)
    with Quiver.open(ROOT, seam=Seam(disk)) as quiver:
        damages = quiver.recovery.damages
        assert sum(damage.bundles or 0 for damage in damages) == 3
        assert sum(damage.events or 0 for damage in damages) == 2 + 3 + 4
        assert quiver.scan().read_all().num_rows == 1 + 5 + 6


def test_a_sound_header_between_two_lost_ones_parts_their_counts(disk: SimulatedDisk) -> None:
    path = newest_wal(disk)
    starts = frame_starts(disk.read(path))
    disk.overwrite(path, starts[1], bytes(8))
    disk.overwrite(path, starts[2] + HEADER_BYTES, b"\xff" * 8)
    disk.overwrite(path, starts[3], bytes(8))
    with Quiver.open(ROOT, seam=Seam(disk)) as quiver:
        found = [(d.first_seq, d.last_seq, d.bundles, d.events) for d in quiver.recovery.damages]
        assert found == [(1, 1, 1, 2), (2, 2, 1, 3), (3, 3, 1, 4)]


def test_all_bundles_that_a_hole_before_a_commit_swallowed_are_named() -> None:
    running = SimulatedDisk()
    with Quiver.open(ROOT, seam=Seam(running)) as quiver:
        with quiver.transaction() as transaction:
            transaction.append(batch(1))
            transaction.append(batch(2))
        quiver.append(batch(3))
        crashed = running.snapshot()
    path = newest_wal(crashed)
    for start in frame_starts(crashed.read(path))[:2]:
        crashed.overwrite(path, start, bytes(8))
    with Quiver.open(ROOT, seam=Seam(crashed)) as quiver:
        (damage,) = quiver.recovery.damages
        assert (damage.first_seq, damage.last_seq) == (0, 1)
        assert (damage.bundles, damage.events) == (2, 3)


def test_numbers_of_a_newest_file_without_a_sound_header_are_not_given_out_again(
    disk: SimulatedDisk,
) -> None:
    with Quiver.open(ROOT, seam=Seam(disk)) as quiver:  # begins another file, keeps the first
        quiver.append(batch(1))
        crashed = disk.snapshot()
    path = newest_wal(crashed)
    limit = decode_header(memoryview(crashed.read(path))).seq_limit
    crashed.overwrite(path, 0, bytes(WAL_HEADER_BYTES))
    with Quiver.open(ROOT, seam=Seam(crashed)) as quiver:
        assert [damage.source for damage in quiver.recovery.damages] == [path.name]
        assert not quiver.recovery.new_identity
        assert quiver.statistics().next_seq >= limit
