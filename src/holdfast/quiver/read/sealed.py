"""Reading sealed data of a quiver that another process owns: by its files alone, taking no lock.

Segments do not change, so a reader in another process (a Spark task on the same machine, or what
serves them over Flight) needs nothing of the owner but their names. Those come with a plan, which
also keeps them from going. One that went nevertheless, also while it is read, is an error that says
so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import pyarrow as pa

from holdfast.errors import BadInput, Damaged, UnknownPosition, WrongQuiver
from holdfast.quiver.base import names
from holdfast.quiver.base.identity import identity_or_none
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.read.scan import OnDamage, Span, TimeRange, scan
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.data_file import DAMAGE_ERRORS
from holdfast.quiver.segments.segment import BundleRef, Segment
from holdfast.seam.disk import Disk


def names_between(segments: Sequence[Segment], start: Position, end: Position) -> list[str]:
    """Return the names of the segments that hold what is between two positions."""
    span = Span(start, end)
    wanted = [s for s in segments if span.overlaps(s.summary.first_seq, s.summary.last_seq)]
    return [segment.path.name for segment in wanted]


def all_sealed(segments: Sequence[Segment], refs: Sequence[BundleRef]) -> bool:
    """Whether these segments, in order, hold all of these bundles."""

    def holds(ref: BundleRef) -> bool:
        place = bisect_right(segments, ref.seq, key=lambda s: s.summary.first_seq) - 1
        return place >= 0 and ref.seq <= segments[place].summary.last_seq

    return all(holds(ref) for ref in refs)


@dataclass(frozen=True)
class SealedRead:
    """Rows of one slot in some segments, between two positions, of some event times."""

    quiver_id: str
    segments: tuple[str, ...]
    # None: the only one there is.
    slot: str | None = None
    # None: all.
    columns: tuple[str, ...] | None = None
    start: Position | None = None
    end: Position | None = None
    times: TimeRange = field(default_factory=TimeRange)
    on_damage: OnDamage = "fail"


def scan_sealed(
    disk: Disk, root: PurePath, wanted: SealedRead, *, nulls_for_unknown: bool = True
) -> pa.RecordBatchReader:
    """Return sealed rows as `Quiver.scan` does.

    Columns that these rows do not have are null, or an error. Raises `UnknownPosition` if a segment
    is gone, and `WrongQuiver` if another quiver is there now.
    """
    identity = identity_or_none(disk, root)
    if identity is not None and identity.quiver_id != wanted.quiver_id:
        raise WrongQuiver(
            f"quiver {identity.quiver_id} is here, not {wanted.quiver_id}",
            hint="positions of one quiver mean nothing in another; plan again",
            path=str(root),
        )
    segments = [_open(disk, root, name) for name in wanted.segments]

    def refuse_if_gone(segment: Segment) -> bool:
        if not disk.exists(segment.path):
            raise _gone(segment.path)
        return False

    return scan(
        segments,
        [],
        wanted.slot,
        wanted.columns,
        wanted.times,
        wanted.on_damage,
        Span(wanted.start, wanted.end),
        nulls_for_unknown=nulls_for_unknown,
        was_removed=refuse_if_gone,
    )


def _open(disk: Disk, root: PurePath, name: str) -> Segment:
    if names.parse_segment_dir(name) is None:
        raise BadInput(f"{name!r} is not the name of a segment", hint="use the names of a plan")
    path = root / names.SEGMENTS_DIR / name
    try:
        return Segment(disk, path, manifest.read(disk, path))
    except OSError as error:
        if error.errno not in DAMAGE_ERRORS or disk.exists(path):
            raise
        raise _gone(path) from error
    except manifest.ManifestFault as fault:
        raise Damaged(
            f"a segment's manifest cannot be read: {fault}",
            hint="holdfast quiver fsck tells more",
            path=str(path),
        ) from fault


def _gone(path: PurePath) -> UnknownPosition:
    return UnknownPosition(
        "a segment is no longer there",
        hint="it was committed, or planned longer ago than retention.max_pin_s; plan again",
        path=str(path),
    )
