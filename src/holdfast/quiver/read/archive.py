"""Reading an archive by its address: the segments that quivers have put there, each event once.

    with Archive.open("s3://company-lineage/segments") as archive:
        table = archive.scan(slot="events").read_all()

No quiver is opened for it, and none is asked. What is listed is what was there at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePath, PurePosixPath
from typing import Literal, Self

import pyarrow as pa

from holdfast.errors import BadInput, UnknownPosition, WrongQuiver
from holdfast.quiver.base import names
from holdfast.quiver.base.config import ArchiveConfig
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.read.scan import EVERYTHING, Span, TimeRange, scan, scan_pieces
from holdfast.quiver.read.sealed import SealedRead
from holdfast.quiver.segments.archive import archived_segments, open_place, require_archive
from holdfast.quiver.segments.segment import Segment
from holdfast.seam import Seam
from holdfast.seam.bucket import Bucket


class Archive:
    """The segments in a bucket or a folder, of one quiver or of many."""

    def __init__(self, url: str, segments: Sequence[Segment]) -> None:
        """Use `Archive.open`."""
        self.url = url
        self._pieces = each_bundle_once(segments)

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str] | ArchiveConfig,
        *,
        quiver_id: str | None = None,
        on_damage: Literal["fail", "skip"] = "fail",
        seam: Seam | None = None,
    ) -> Self:
        """List an archive, or what it has of one quiver, and read the manifests.

        `place` is what `segment.archive` names; an `ArchiveConfig` says how it is reached. A
        segment whose manifest is damaged raises `Damaged`; "skip" leaves it out, and logs it.
        """
        config = place if isinstance(place, ArchiveConfig) else ArchiveConfig(os.fspath(place))
        bucket = open_place(config, seam or Seam())
        skips = on_damage == "skip"
        segments = archived_segments(bucket, quiver_id or "", skips_damaged=skips)
        require_archive(segments, bucket)
        return cls(config.url, segments)

    @property
    def quiver_ids(self) -> tuple[str, ...]:
        """The quivers that have segments here."""
        return tuple(dict.fromkeys(one.summary.quiver_id for one in self.segments()))

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments, by quiver, oldest first."""
        return tuple(dict.fromkeys(segment for segment, _ in self._pieces))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        slot: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        on_damage: Literal["fail", "skip"] = "fail",
    ) -> pa.RecordBatchReader:
        """Return what is stored in a slot, as `Quiver.scan` does; quivers follow each other."""
        if columns is not None and (isinstance(columns, str) or not columns):
            raise BadInput(f"columns is {columns!r}", hint="give a list of names, or None for all")
        times = TimeRange.of(since, until)
        return scan_pieces(self._pieces, [], slot, columns, times, on_damage)


def scan_archived(bucket: Bucket, folder: str, wanted: SealedRead) -> pa.RecordBatchReader:
    """Return rows of some segments of the quiver that has a folder in an archive, as `scan_sealed`
    does of a directory.
    """
    places = [PurePosixPath(folder, names.SEGMENTS_DIR, name) for name in wanted.segments]
    segments = []
    for place in places:
        found = archived_segments(bucket, place.as_posix())
        if not found:
            raise _gone(bucket, place)
        segments += found

    def refuse_if_gone(segment: Segment) -> bool:
        if not any(True for _ in bucket.list(segment.path.as_posix())):
            raise _gone(bucket, segment.path)
        return False

    return scan(
        segments,
        [],
        wanted.slot,
        wanted.columns,
        wanted.times,
        wanted.on_damage,
        Span(wanted.start, wanted.end),
        nulls_for_unknown=True,
        was_removed=refuse_if_gone,
    )


def _gone(bucket: Bucket, place: PurePath) -> UnknownPosition:
    return UnknownPosition(
        "a segment is no longer in the archive",
        hint="somebody removed it, or a lifecycle rule did; ask again",
        path=f"{bucket.url}/{place}",
    )


def each_bundle_once(segments: Sequence[Segment]) -> list[tuple[Segment, Span]]:
    """Return what is to be read of segments of any places, so that each bundle is read once.

    By the quivers that their manifests name, and in the order of their seqs. A quiver that is
    killed after it removed a segment may find its bundles in the log, and seal them again, together
    with later ones: of that segment only the rest is read.
    """
    quivers: dict[str, list[Segment]] = {}
    for segment in segments:
        quivers.setdefault(segment.summary.quiver_id, []).append(segment)
    found: list[tuple[Segment, Span]] = []
    for those in quivers.values():
        refuse_forks(those)
        taken, pieces = IntervalSet(), list[tuple[int, int, Segment]]()
        for segment in sorted(those, key=lambda one: one.summary.name.segment_seq):
            first, end = _bounds(segment)
            pieces += [(*hole, segment) for hole in taken.holes(first, end)]
            taken.add(first, end)
        for first, end, segment in sorted(pieces, key=lambda piece: piece[:2]):
            whole = (first, end) == _bounds(segment)
            found.append((segment, EVERYTHING if whole else Span(Position(first), Position(end))))
    return found


def refuse_forks(segments: Sequence[Segment]) -> None:
    """Raise `WrongQuiver` if segments of one quiver have different bundles of the same number.

    That is what a data directory that was copied leaves, where both go on. It is looked for where
    two segments overlap, and are not of the same range.
    """
    quivers: dict[str, list[Segment]] = {}
    for segment in segments:
        quivers.setdefault(segment.summary.quiver_id, []).append(segment)
    for those in quivers.values():
        by_seq = sorted(those, key=_bounds)
        # Those that reach the next one, of which there hardly ever is any.
        reaching: list[Segment] = []
        for segment in by_seq:
            first, _ = bounds = _bounds(segment)
            reaching = [one for one in reaching if _bounds(one)[1] > first]
            for other in reaching:
                if _bounds(other) != bounds and not _agree(segment, other):
                    raise WrongQuiver(
                        f"{segment.path.name} has other bundles than {other.path.name}, under "
                        "the same numbers",
                        hint="one of them is of a copy of the quiver: move it away",
                        path=str(segment.path),
                    )
            reaching.append(segment)


def _agree(one: Segment, other: Segment) -> bool:
    """Whether bundles that both have are the same, by the moment at which they were accepted."""
    known = _moments(other)
    return all(known.get(seq, moment) == moment for seq, moment in _moments(one).items())


def _moments(segment: Segment) -> dict[int, int]:
    table = segment.bundle_table
    columns = (table.column(name).to_pylist() for name in ("seq", "ingestion_ns"))
    return dict(zip(*columns, strict=True))


def _bounds(segment: Segment) -> tuple[int, int]:
    return segment.summary.first_seq, segment.summary.last_seq + 1
