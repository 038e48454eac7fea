"""A sealed segment, and the catalog of all of them, in the order of their seqs.

Opening a segment reads nothing but the summary; reads check what they touch (data_file.py).

**Rivals** are segments that hold the same range of seqs, of which only one may be read. A seal
whose last step failed and could not be taken back leaves one, and so does moving a repaired segment
back beside the one that was made in its place. The one that holds most is kept. The others are mere
copies only if every byte of the kept one proves sound.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from holdfast.errors import Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.bundle import decode_arrow, one_batch, read_slot
from holdfast.quiver.base.frame import NO_WATERMARK, FrameKind
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.segments import ids
from holdfast.quiver.segments.bundle_table import BUNDLE_SCHEMA, rebuild
from holdfast.quiver.segments.data_file import (
    DAMAGE_ERRORS,
    BatchCache,
    DataFile,
    MappedFile,
    unreadable,
)
from holdfast.quiver.segments.manifest import ARROW, OPAQUE, Summary
from holdfast.quiver.segments.rows import group_bundles, group_table
from holdfast.seam.disk import ReadableDisk

_BLOCK_BYTES = 4096
# For slots whose names are lost with their rows: the log, and opaque files, keep both together.
UNKNOWN_SLOT = "(unknown)"
# Of the filter of a file whose items have no ids: it is empty, and not written.
_NO_IDS = xxh3_64_hexdigest(b"")

log = logging.getLogger("holdfast.quiver")


class BundleRef(NamedTuple):
    """What a reader needs to know of a bundle before reading it."""

    seq: int
    events: int
    size_bytes: int
    ingestion_ns: int
    # No bundle lies between this and `seq`: resolving the bundle resolves that too.
    owned_from: int


class SegmentIndex:
    """The bundle table as lists: finding and reading one bundle costs no Arrow scalars."""

    def __init__(self, table: pa.RecordBatch) -> None:
        columns = [table.column(name).to_pylist() for name in BUNDLE_SCHEMA.names[:-1]]
        self.seqs: list[int] = columns[0]
        self._ingestion_ns, self._events, self._sizes_bytes = columns[2], columns[6], columns[7]
        self._columns = columns
        places = table.column("places")
        flat = places.flatten()
        self._offsets: list[int] = places.offsets.to_pylist()
        self._places = list(
            zip(*(flat.field(i).to_pylist() for i in range(flat.type.num_fields)), strict=True)
        )

    def ref(self, place: int, owned_from: int) -> BundleRef:
        """Return the reference to the bundle at a place."""
        return BundleRef(
            self.seqs[place],
            self._events[place],
            self._sizes_bytes[place],
            self._ingestion_ns[place],
            owned_from,
        )

    def row(self, place: int) -> list[Any]:
        """Return the columns of a bundle, as in the table, without its places."""
        return [column[place] for column in self._columns]

    def places(self, place: int) -> list[tuple[int, int, int]]:
        """Return where a bundle's rows are: file, first row, rows."""
        first = self._offsets[0]
        start, end = self._offsets[place] - first, self._offsets[place + 1] - first
        return self._places[start:end]


class SlotsRead(NamedTuple):
    """What can be read of a bundle, and what is wrong with its other slots."""

    sound: dict[str, pa.RecordBatch]
    damaged: dict[str, Damaged]


@dataclass(frozen=True, eq=False)
class Bundle:
    """One bundle as it was appended. Its content is read when it is first asked for.

    Slots lie in files of their own, so damage may cost some of them and leave the others whole.
    Who asks for `slots` wants all or nothing: rows of one slot refer to those of another, and a
    reader that does not know that some are missing would take a part for the whole.
    """

    seq: int
    kind: FrameKind
    ingestion_ns: int
    watermark_ns: int | None
    producer: str | None
    epoch: int
    events: int
    load: Callable[[], SlotsRead]

    def __eq__(self, other: object) -> bool:
        """Whether both say the same about themselves, and hold the same."""
        if not isinstance(other, Bundle):
            return NotImplemented
        return self._head == other._head and self.slots == other.slots

    def __hash__(self) -> int:
        return hash(self._head)

    @property
    def _head(self) -> tuple[object, ...]:
        times = (self.ingestion_ns, self.watermark_ns)
        return (self.seq, self.kind, times, self.producer, self.epoch, self.events)

    @property
    def slots(self) -> dict[str, pa.RecordBatch]:
        """The record batches by slot; raw slots have the columns `payload` and `headers`.

        Raises `Damaged`, which names them, if some cannot be read.
        """
        damage = self.damage
        if damage is not None:
            raise damage
        return self._read.sound

    @property
    def sound_slots(self) -> dict[str, pa.RecordBatch]:
        """The record batches of the slots that can be read, whatever became of the others."""
        return self._read.sound

    @property
    def damaged_slots(self) -> tuple[str, ...]:
        """The names of the slots that cannot be read; one of them may be `UNKNOWN_SLOT`."""
        return tuple(self._read.damaged)

    @property
    def damage(self) -> Damaged | None:
        """What is wrong with the bundle, with its damaged slots named; None if it is whole."""
        damaged = self._read.damaged
        if not damaged:
            return None
        first = next(iter(damaged.values()))
        if UNKNOWN_SLOT in damaged and len(damaged) == 1:
            return first
        slots = "slot" if len(damaged) == 1 else "slots"
        message = f"{slots} {', '.join(damaged)} of bundle {self.seq}: {first.message}"
        return Damaged(message, hint=first.hint, path=first.path)

    @cached_property
    def _read(self) -> SlotsRead:
        return self.load()

    @cached_property
    def payloads(self) -> list[bytes]:
        """The events of a raw bundle as bytes."""
        assert self.kind == FrameKind.RAW, "only raw bundles have payloads"
        (batch,) = self.slots.values()
        payloads: list[bytes] = batch.column("payload").to_pylist()
        return payloads


class Segment:
    """A sealed segment. Safe to use from many threads."""

    def __init__(self, disk: ReadableDisk, path: PurePath, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        # Whether the bundle table was damaged, and is made from the rows.
        self.table_is_rebuilt = False
        self._disk = disk
        self._cache: BatchCache | None = None

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """Its data files; made when first asked for, because a start asks for none of them."""
        return tuple(
            DataFile(self._disk, self.path / file.name, file, self._cache)
            for file in self.summary.files
        )

    def share(self, cache: BatchCache) -> None:
        """Keep what is read of it in a memory that others use, too."""
        self._cache = cache
        for file in self.__dict__.get("files", ()):  # those that were asked for already
            file.cache = cache

    def mapped(self) -> Segment:
        """Return the same segment, whose rows point into maps of its files (`ReadableDisk.map`)."""
        segment = Segment(self._disk, self.path, self.summary)
        segment.files = tuple(
            MappedFile(self._disk, self.path / file.name, file) for file in self.summary.files
        )
        return segment

    @property
    def disk_bytes(self) -> int:
        """What the segment occupies: whole blocks, the bundle table, manifest and directory too."""
        # The manifest with its two copies is two blocks at least, the directory one. An estimate,
        # made without asking the disk; `Retention.look_at_disk` corrects the sum.
        blocks, table_bytes = 3, self.summary.size_bytes
        for file in self.summary.files:
            blocks += -(-file.size_bytes // _BLOCK_BYTES)
            table_bytes -= file.size_bytes
        return (blocks + -(-table_bytes // _BLOCK_BYTES)) * _BLOCK_BYTES

    @cached_property
    def bundle_table(self) -> pa.RecordBatch:
        """One row per bundle; loaded when first asked for, and made from the rows if damaged."""
        try:
            return self.stored_table()
        except Damaged as damage:
            if not self._disk.exists(self.path):
                raise  # not damaged: removed while somebody was reading
            log.warning("%s; it is rebuilt from the rows, without producers", damage.message)
            self.table_is_rebuilt = True
            return rebuild(self.summary, self.files)

    def stored_table(self) -> pa.RecordBatch:
        """Return the bundle table as it was written; raise `Damaged` if it is not that."""
        path = self.path / names.BUNDLES
        try:
            data = self._disk.read(path)
        except OSError as error:
            if error.errno not in DAMAGE_ERRORS:
                raise unreadable(path, error) from error
            raise _damaged_table(path) from error
        if xxh3_64_hexdigest(data) != self.summary.bundle_table_checksum:
            raise _damaged_table(path)
        return pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)

    def may_hold_id(self, place: int, id_: bytes) -> bool:
        """Whether a data file may have items with an id; reads nothing but its filter."""
        bits = self.ids_filter(place)
        return bits is None or ids.may_hold(bits, id_)

    def ids_filter(self, place: int) -> bytes | None:
        """Return the filter on the ids in a data file; None if there is none, or no sound one."""
        file = self.summary.files[place]
        if file.ids_checksum in ("", _NO_IDS):
            return b"" if file.ids_checksum else None
        try:
            bits = bytes(self._disk.read(self.path / names.ids_file(file.name)))
        except OSError:
            return None
        return bits if xxh3_64_hexdigest(bits) == file.ids_checksum else None

    def index(self) -> SegmentIndex:
        """Return the bundle table as lists; not cached, a segment may have very many bundles."""
        return SegmentIndex(self.bundle_table)

    def bundles(self) -> Iterator[Bundle]:
        """Yield all bundles in order."""
        index = self.index()
        for place in range(len(index.seqs)):
            yield self.bundle_at(index, place)

    def bundle_at(self, index: SegmentIndex, place: int) -> Bundle:
        """Return the bundle at a place of the bundle table."""
        seq, kind, ingestion_ns, watermark_ns, producer, epoch, events, _ = index.row(place)
        places = index.places(place)
        return Bundle(
            seq,
            FrameKind(kind),
            ingestion_ns,
            watermark_ns,
            producer,
            epoch,
            events,
            lambda: self._read_slots(places),
        )

    def _read_slots(self, places: list[tuple[int, int, int]]) -> SlotsRead:
        found = SlotsRead({}, {})
        for number, first_row, rows in places:
            file = self.files[number]
            try:
                batch = file.rows(first_row, rows)
            except Damaged as damage:
                found.damaged.setdefault(file.summary.slot or UNKNOWN_SLOT, damage)
                continue
            if file.summary.kind == OPAQUE:
                _add_opaque(found, batch)
            else:
                _add_slot(found, file.summary.slot, batch, file.noted_damage)
        return _without_damaged(found)


def held_bundle(held: HeldBundle) -> Bundle:
    """Return a bundle that is not sealed yet."""
    return Bundle(
        held.seq,
        held.kind,
        held.ingestion_ns,
        None if held.watermark_ns == NO_WATERMARK else held.watermark_ns,
        held.producer,
        held.epoch,
        held.events,
        lambda: _held_slots(held),
    )


def _held_slots(held: HeldBundle) -> SlotsRead:
    found = SlotsRead({}, {})
    try:
        if held.kind == FrameKind.ARROW:
            for name, stream, _ in decode_arrow(held.content()):
                _add_slot(found, name, *read_slot(stream))
        else:
            for group in group_bundles([held], max_groups=1):
                found.sound[group.slot] = one_batch(group_table(group))
    except Damaged as damage:  # the log has one checksum for all slots
        found.damaged[UNKNOWN_SLOT] = damage
    return _without_damaged(found)


def _add_slot(
    found: SlotsRead, slot: str, batch: pa.RecordBatch, noted_slots: Iterable[str] = ()
) -> None:
    """Note a slot, and what a salvage noted with it of others of its bundle."""
    found.sound[slot] = batch
    for name in noted_slots:
        found.damaged.setdefault(name, _lost_before())


def _add_opaque(found: SlotsRead, rows: pa.RecordBatch) -> None:
    """Note the slots that rows of an opaque file hold."""
    slots: dict[str, list[pa.RecordBatch]] = {}
    noted_slots: tuple[str, ...] = ()
    for place in range(rows.num_rows):
        row = rows.slice(place, 1)
        if row.column("slot_kind")[0].as_py() == ARROW:
            batch, noted_slots = read_slot(row.column("payload")[0].as_buffer())
        else:
            batch = row.select(["payload", "headers"])
        slots.setdefault(row.column("slot")[0].as_py(), []).append(batch)
    for slot, batches in slots.items():
        _add_slot(found, slot, one_batch(pa.Table.from_batches(batches)), noted_slots)


def _without_damaged(found: SlotsRead) -> SlotsRead:
    """Leave out slots of which only a part can be read: a bundle table that was rebuilt knows
    several places of one slot.
    """
    for slot in found.damaged:
        found.sound.pop(slot, None)
    return found


def _lost_before() -> Damaged:
    return Damaged(
        "it was damaged already when the quiver was salvaged",
        hint="look for it in a backup, or ask its producers to send it again",
    )


def _damaged_table(path: PurePath) -> Damaged:
    return Damaged(
        "a segment's bundle table is damaged",
        hint="its rows are still served; restore the segment from a copy to have producers again",
        path=str(path),
    )


class Catalog:
    """All sealed segments. Readers take snapshots; recovery, sealer and retention change it.

    After a change the next snapshot is a new tuple, and the old one is never touched. So two that
    are the same object are the same set: caches compare them by `is`. It is made only when somebody
    looks, and once: a start adds 100,000 segments, and a tuple for each would copy them all as
    often.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        # None: something changed since the last look.
        self._snapshot: tuple[Segment, ...] | None = ()
        self._next_segment_seq = 1
        # What all segments occupy on disk.
        self.size_bytes = 0
        self._cache = BatchCache()

    def snapshot(self) -> tuple[Segment, ...]:
        """Return all segments, oldest seq first."""
        found = self._snapshot
        if found is None:
            with self._lock:
                found = self._snapshot = self._snapshot or tuple(self._segments)
        return found

    def add(self, segment: Segment) -> None:
        """Make a durable segment visible; what is read of all of them shares one memory."""
        segment.share(self._cache)
        with self._lock:
            if self._segments and segment.summary.first_seq < _first_seq_of(self._segments[-1]):
                bisect.insort_right(self._segments, segment, key=_first_seq_of)
            else:
                self._segments.append(segment)  # as nearly always
            self._snapshot = None
            self._next_segment_seq = max(self._next_segment_seq, segment.summary.segment_seq + 1)
            self.size_bytes += segment.disk_bytes

    def remove(self, segment: Segment) -> None:
        """Make a segment invisible that is about to go."""
        with self._lock:
            self._segments = [s for s in self._segments if s is not segment]
            self._snapshot = None
            self.size_bytes -= segment.disk_bytes

    def reserve(self, segment_seq: int) -> None:
        """Never give out this number, or a lower one, again (a damaged segment had it)."""
        with self._lock:
            self._next_segment_seq = max(self._next_segment_seq, segment_seq + 1)

    def next_segment_seq(self) -> int:
        """Return the number for the next segment; a failed seal leaves a gap."""
        with self._lock:
            self._next_segment_seq += 1
            return self._next_segment_seq - 1

    def find(self, seq: int) -> Segment | None:
        """Return the segment whose range holds `seq`."""
        segments = self.snapshot()
        if not segments or seq > segments[-1].summary.last_seq:
            return None  # as for nearly every bundle that recovery asks about
        place = bisect.bisect_right(segments, seq, key=_first_seq_of) - 1
        if place >= 0 and segments[place].summary.last_seq >= seq:
            return segments[place]
        return None

    def covers(self, seq: int) -> bool:
        """Whether the bundle with this seq, if it was ever accepted, is in a segment."""
        return self.find(seq) is not None


def _first_seq_of(segment: Segment) -> int:
    return segment.summary.first_seq


class Choice(NamedTuple):
    """Which of some rivals to read, and what to do with the others."""

    kept: Segment
    # Nothing is lost with these.
    copies: list[Segment]
    # Something may be in these that is nowhere else.
    doubtful: list[Segment]


def choices(segments: Iterable[Segment]) -> Iterator[Choice]:
    """Yield one choice for each range of seqs, in the order in which they first come."""
    ranges: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        summary = segment.summary
        ranges.setdefault((summary.first_seq, summary.last_seq), []).append(segment)
    return (_choose(rivals) for rivals in ranges.values())


def _choose(rivals: Sequence[Segment]) -> Choice:
    """Fewest damaged parts first, then most content. Reading every byte is dear; rivals are rare,
    and removing the wrong one cannot be undone.
    """
    if len(rivals) == 1:
        return Choice(rivals[0], [], [])
    unreadable = {segment.path: _unreadable_parts(segment) for segment in rivals}
    kept = max(rivals, key=lambda s: (-unreadable[s.path], s.summary.events, s.summary.bundles))
    copies: list[Segment] = []
    doubtful: list[Segment] = []
    for other in rivals:
        if other is not kept:
            sure = not unreadable[kept.path] and _holds(other) == _holds(kept)
            (copies if sure else doubtful).append(other)
    return Choice(kept, copies, doubtful)


def _holds(segment: Segment) -> tuple[object, ...]:
    summary = segment.summary
    return summary.quiver_id, summary.bundles, summary.events, summary.payload_bytes


def _unreadable_parts(segment: Segment) -> int:
    """Return how many record batches, beginnings and ends of files, and tables are damaged."""
    damaged = 0
    for file in segment.files:
        for place in range(len(file.summary.batches)):
            try:
                file.batch(place)
            except Damaged:
                damaged += 1
        try:
            file.check_frame()
        except Damaged:
            damaged += 1
    try:
        segment.stored_table()
    except Damaged:
        damaged += 1
    return damaged
