"""A damaged directory, searched for everything that can still be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

import pyarrow as pa

from holdfast.errors import BadInput, Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.bundle import Encoded, encode_arrow, encode_raw
from holdfast.quiver.base.frame import BODY_BYTES_MAX, NO_WATERMARK, FrameKind, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.log.header_block import HeaderFault, NewerVersion
from holdfast.quiver.log.replay import Replay, WalContent, read_wal_file
from holdfast.quiver.log.wal import HEADER_BYTES
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.catalog import Catalog
from holdfast.quiver.segments.segment import Bundle, Segment
from holdfast.quiver.tools.assemble import OnRead
from holdfast.quiver.tools.findings import QuiverFinding, Severity
from holdfast.quiver.tools.inspect import inspect
from holdfast.quiver.tools.loose import LooseSegment, headless_content
from holdfast.seam.disk import DirEntry, Disk, entries_of, read_pages


@dataclass
class DamagedRange:
    """Segments of one range of seqs, none of which is whole."""

    name: names.SegmentName
    segments: list[Segment] = field(default_factory=list)


class Wreck:
    """What there is: whole segments, damaged ones, and the write-ahead log."""

    def __init__(self, disk: Disk, root: PurePath, on_read: OnRead) -> None:
        self.inventory = inspect(disk, root)
        self.whole: list[Segment] = []
        self.damaged: list[DamagedRange] = []
        # What was left out, and why.
        self.findings: list[QuiverFinding] = []
        self._disk = disk
        self._root = root
        self._on_read = on_read
        self._sort_segments()
        self.replay = self._replay()
        # What the log holds beyond the whole segments, in order.
        self.log = [self.replay.bundles[seq] for seq in sorted(self.replay.bundles)]

    def _list(self, folder: str) -> Iterator[tuple[PurePath, str, DirEntry]]:
        """Yield what is in a folder: its path, and the name it had before any quarantine."""
        path = self._root / folder
        for entry in entries_of(self._disk, path):
            plain = entry.name
            if folder == names.QUARANTINE_DIR:
                plain = names.without_quarantine_number(entry.name)
            yield path / entry.name, plain, entry

    def tell(
        self,
        path: PurePath,
        what: str,
        severity: Severity = Severity.WARNING,
        name: names.SegmentName | None = None,
    ) -> None:
        """Note what was left out or lost."""
        where = str(path.relative_to(self._root))
        seqs = () if name is None else ((name.first_seq, name.last_seq),)
        act = "look for it in a backup, or ask its producers to send it again"
        self.findings.append(QuiverFinding(severity, where, what, act, seqs))

    # ---------------------------------------------------------------- segments

    def _sort_segments(self) -> None:
        ranges: dict[tuple[int, int], DamagedRange] = {}
        for folder in (names.SEGMENTS_DIR, names.QUARANTINE_DIR):
            for path, plain, entry in self._list(folder):
                name = names.parse_segment_dir(plain)
                segment = self._open(path, name) if name is not None and entry.is_dir else None
                if name is not None and segment is not None:
                    known = ranges.setdefault((name.first_seq, name.last_seq), DamagedRange(name))
                    known.segments.append(segment)
        for rivals in ranges.values():
            whole = next((s for s in rivals.segments if self._is_whole(s)), None)
            if whole is None:
                self.damaged.append(rivals)
            else:
                self.whole.append(whole)

    def _open(self, path: PurePath, name: names.SegmentName) -> Segment | None:
        if name.segment_seq in self.inventory.ledger.state.deleted_segments:
            return None
        try:
            summary = manifest.read(self._disk, path)
        except manifest.NewerManifest as newer:
            self.tell(path, f"written by a newer program: {newer}", Severity.ERROR, name)
            return None
        except (OSError, manifest.ManifestFault):
            return LooseSegment(self._disk, path, name)
        if summary.quiver_id not in self.inventory.own_ids:
            self.tell(path, f"a segment of another quiver, {summary.quiver_id}: left out")
            return None
        return Segment(self._disk, path, summary)

    def _is_whole(self, segment: Segment) -> bool:
        """Whether every byte is what was written, under the name that says so."""
        if isinstance(segment, LooseSegment):
            return False
        try:
            segment.stored_table()
            found = read_pages(self._disk, segment.path / names.MANIFEST).view
            if manifest.sound_copies(bytes(found)) < manifest.COPIES:
                return False
            for file in segment.files:
                for index, batch in enumerate(file.summary.batches):
                    file.batch(index)
                    self._on_read(batch.length)
                file.check_frame()
        except Damaged:
            return False
        return names.segment_dir(segment.summary.name) == segment.path.name

    # --------------------------------------------------------------------- WAL

    def _replay(self) -> Replay:
        """Return what the log holds beyond the whole segments."""
        catalog = Catalog()
        for segment in self.whole:
            catalog.add(segment)
        replay = Replay(catalog, keeps_payloads=True)
        replay.walk_all([*self.inventory.wal, *self._other_wal_files()])
        return replay

    def _other_wal_files(self) -> Iterator[WalContent]:
        """Yield the WAL files without a header, and those in quarantine."""
        own = {content.path for content in self.inventory.wal}
        for folder in (names.WAL_DIR, names.QUARANTINE_DIR):
            for path, plain, entry in self._list(folder):
                number = names.parse_wal_file(plain)
                is_file = number is not None and not entry.is_dir
                if not is_file or entry.size_bytes <= HEADER_BYTES or path in own:
                    continue
                assert number is not None
                content = self._read_wal(path, number)
                if content is not None:
                    yield content

    def _read_wal(self, path: PurePath, number: int) -> WalContent | None:
        try:
            content = read_wal_file(self._disk, path)
        except OSError as error:
            self.tell(path, f"it cannot be read: {error.strerror}", Severity.ERROR)
            return None
        except HeaderFault:
            found = headless_content(self._disk, path, number)
            if found is None:
                self.tell(path, "it has neither a header nor a sound frame", Severity.ERROR)
            return found
        except NewerVersion as newer:
            self.tell(path, f"written by a newer program: {newer}", Severity.ERROR)
            return None
        owner = content.header.quiver_id
        if owner not in self.inventory.own_ids:
            self.tell(path, f"a WAL file of another quiver, {owner}: left out")
            return None
        return content

    # ------------------------------------------------------------------ bundles

    def bundles_of(self, damaged: DamagedRange) -> Iterator[tuple[HeldBundle, bool]]:
        """Yield what can be read of damaged segments, and whether checksums say that it is right.

        Each bundle comes once; what the log holds too is taken from there.
        """
        done: set[int] = set()
        # Those with checksums first.
        for segment in sorted(damaged.segments, key=lambda s: isinstance(s, LooseSegment)):
            for held in _readable(segment):
                known = held.seq in done or held.seq in self.replay.bundles
                if not known and not self.replay.catalog.covers(held.seq):
                    done.add(held.seq)
                    yield held, not isinstance(segment, LooseSegment)


def totals(bundles: list[HeldBundle]) -> Totals:
    """Return how many bundles and events these are."""
    return Totals(len(bundles), sum(held.events for held in bundles))


def _readable(segment: Segment) -> Iterator[HeldBundle]:
    """Yield the bundles of a segment that can be read whole."""
    if isinstance(segment, LooseSegment):
        segment = segment.again()  # what it reads is forgotten with it
    events = sum(segment.bundle_table.column("events").to_pylist())
    for bundle in segment.bundles():
        if (
            bundle.kind == FrameKind.CONTROL
            and bundle.events == 0
            and events < segment.summary.events
        ):
            continue  # where rows are missing nobody knows that this never had any
        held = _held(bundle)
        if held is not None:
            yield held


def _held(bundle: Bundle) -> HeldBundle | None:
    """Return a bundle as it was appended; None if it cannot be had whole."""
    try:
        encoded = _encode(bundle)
    except (Damaged, BadInput, pa.ArrowException, ValueError, KeyError):
        return None
    if encoded.events != bundle.events:
        return None
    return HeldBundle(
        bundle.seq,
        bundle.kind,
        bundle.ingestion_ns,
        NO_WATERMARK if bundle.watermark_ns is None else bundle.watermark_ns,
        bundle.producer,
        bundle.epoch,
        bundle.events,
        encoded.payload,
    )


def _encode(bundle: Bundle) -> Encoded:
    if bundle.kind == FrameKind.CONTROL:
        return Encoded(FrameKind.CONTROL, b"", 0)
    if bundle.kind == FrameKind.ARROW:
        return encode_arrow(bundle.slots, BODY_BYTES_MAX)
    ((slot, batch),) = bundle.slots.items()
    headers = [None if h is None else json.loads(h) for h in batch.column("headers").to_pylist()]
    return encode_raw(slot, bundle.payloads, headers, BODY_BYTES_MAX)
