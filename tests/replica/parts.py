"""Parts for tests: sealed segments of real quivers, on any disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig
from holdfast.quiver.base import names
from holdfast.quiver.segments import manifest
from holdfast.replica.part import part_of
from holdfast.replica.transport import OutgoingPart
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.randomness import seeded_randomness

NOON_NS = 1_700_000_000_000_000_000
# Nothing is sealed but on request.
CONFIG = QuiverConfig(segment=SegmentConfig(max_open_duration_s=3600.0))


def seal_parts(
    disk: Disk,
    root: PurePath,
    sizes: Sequence[int],
    *,
    seed: int = 0,
    payload: bytes = b"event",
    wall_ns: int = NOON_NS,
) -> list[OutgoingPart]:
    """Return one part for each size, which is its number of bundles; each has two slots."""
    seam = Seam(disk, JumpingClock(wall_ns), seeded_randomness(seed))
    with Quiver.open(root, CONFIG, seam=seam) as quiver:
        for size in sizes:
            for number in range(size):
                quiver.append_raw([payload, b"%d" % number], slot=f"slot-{number % 2}")
            quiver.flush()
    return sealed_parts(disk, root)


def sealed_parts(disk: Disk, root: PurePath) -> list[OutgoingPart]:
    """Return the sealed segments of a quiver as parts, in order."""
    folder = root / names.SEGMENTS_DIR
    segments = [folder / one.name for one in disk.list(folder) if names.parse_segment_dir(one.name)]
    found = [
        OutgoingPart(part_of(disk, path, manifest.read(disk, path)), disk, path)
        for path in segments
    ]
    return sorted(found, key=lambda one: one.part.id.first_seq)
