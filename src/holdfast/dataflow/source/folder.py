"""The sealed segments of a data directory, seen from outside, beside whoever owns it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from holdfast.errors import Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.identity import identity_or_none
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.rivals import choices
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.inspect import require_quiver
from holdfast.seam.disk import Disk, RealDisk


def open_segment(path: str, disk: Disk | None = None) -> Segment:
    """Return one sealed segment."""
    disk, folder = disk or RealDisk(), PurePath(path)
    try:
        summary = manifest.read(disk, folder)
    except (OSError, manifest.ManifestFault) as error:
        raise Damaged(
            "a segment that was planned cannot be opened",
            hint="it was removed or damaged since; `holdfast quiver fsck` says which",
            path=path,
        ) from error
    return Segment(disk, folder, summary)


def sealed_segments(root: str) -> list[Segment]:
    """Return the segments in a data directory, oldest first."""
    disk, folder = RealDisk(), PurePath(root) / names.SEGMENTS_DIR
    require_quiver(disk, PurePath(root))
    found = []
    for entry in disk.list(folder) if disk.exists(folder) else []:
        if names.parse_segment_dir(entry.name) is None:
            continue
        try:
            found.append(open_segment(str(folder / entry.name), disk))
        except Damaged:
            if disk.exists(folder / entry.name):
                raise
    kept = [choice.kept for choice in choices(found)]
    return sorted(kept, key=lambda segment: segment.summary.first_seq)


def quiver_id_of(root: str, segments: Sequence[Segment]) -> str:
    """Return the id of the quiver in a data directory; segments may have that of an earlier one."""
    identity = identity_or_none(RealDisk(), PurePath(root))
    if identity is not None:
        return identity.quiver_id
    return segments[-1].summary.quiver_id if segments else ""
