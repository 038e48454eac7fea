"""Reading what is left of segments and WAL files whose own descriptions are lost.

A segment without a manifest is still a folder of Arrow files, whose rows say to which bundle they
belong. Nothing tells whether their bytes are what was written: Arrow's own structure is checked,
and what comes out is *unverified*. A data file without its footer is read as a stream, up to where
that ends.

A WAL file without a header lacks the salt that seeds its checksums. But every frame begins with a
known number mixed with the salt, so any sound frame gives it away: the first one in the file is
believed. That is less than the header gives (a payload might contain something made to look like a
frame), and so only done when somebody asks to salvage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePath

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.bundle import RESERVED_METADATA, without_reserved
from holdfast.quiver.base.frame import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    MAGIC,
    NOTHING,
    STAGED,
    FrameFault,
    FrameKind,
    decode,
)
from holdfast.quiver.log.replay import WalContent
from holdfast.quiver.log.wal import HEADER_BYTES as WAL_HEADER_BYTES
from holdfast.quiver.log.wal import WalHeader
from holdfast.quiver.read.scan import ENVELOPE_SCHEMA
from holdfast.quiver.segments.bundle_table import BUNDLE_SCHEMA
from holdfast.quiver.segments.data_file import DataFile
from holdfast.quiver.segments.manifest import (
    ARROW,
    OPAQUE,
    RAW,
    VERSION,
    BatchSummary,
    FileSummary,
    Summary,
)
from holdfast.quiver.segments.rows import RAW_FIELDS
from holdfast.quiver.segments.segment import Segment
from holdfast.seam.disk import Disk, Pages, read_pages

_ARROW_MAGIC_BYTES = 8
# Stands for a batch of unknown length that cannot be read: it must have a row to be stumbled over.
_LOST_BATCH_ROWS = 1
_MISSING = FileSummary("missing", "", ARROW, "", 0, 0, 0, "", ())
_NOBODY = "00000000-0000-0000-0000-000000000000"
_U64 = struct.Struct("<Q")


# ------------------------------------------------------------------- Arrow files


class LooseFile(DataFile):
    """A data file without a manifest, that is read as far as it goes."""

    @cached_property
    def _batches(self) -> list[pa.RecordBatch | None]:
        try:
            return read_batches(read_pages(self._disk, self._path))
        except OSError as error:
            raise self._damaged(f"cannot be read: {error.strerror}") from error

    @cached_property
    def _schema(self) -> pa.Schema:
        sound = next((batch for batch in self._batches if batch is not None), None)
        if sound is None:
            raise self._damaged("has no record batch that can be read")
        return sound.schema

    def batch(self, index: int) -> pa.RecordBatch:
        """Return a record batch, checked as far as it can be."""
        batch = self._batches[index] if index < len(self._batches) else None
        if batch is None:
            raise self._damaged(f"is damaged in record batch {index}")
        return batch.replace_schema_metadata(without_reserved(batch.schema).metadata)

    def rows(self, first: int, count: int) -> pa.RecordBatch:
        """Return a range of rows, without the envelope: all of them."""
        found = super().rows(first, count)
        if found.num_rows != count:
            raise self._damaged("is cut short")
        return found


def read_batches(pages: Pages) -> list[pa.RecordBatch | None]:
    """Return the record batches of an Arrow file; None where one cannot be read.

    If the disk cannot read all of it: those before that, because nothing would tell zeros from what
    was written.
    """
    view = pages.view
    if pages.unreadable:
        return list(_stream_batches(view[: pages.unreadable[0][0]]))
    try:
        reader = pa.ipc.open_file(pa.py_buffer(view))
        found = [_sound(lambda i=i: reader.get_batch(i)) for i in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, ValueError):
        return list(_stream_batches(view))
    return found


def _stream_batches(view: memoryview) -> Iterator[pa.RecordBatch | None]:
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(view[_ARROW_MAGIC_BYTES:]))
        while True:
            batch = reader.read_next_batch()
            yield _sound(lambda batch=batch: batch)
    except (pa.ArrowException, OSError, ValueError, StopIteration):
        return


def _sound(read: object) -> pa.RecordBatch | None:
    try:
        batch = read()  # type: ignore[operator]
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError):
        return None
    # Without the envelope nobody knows whose rows these are; and an Arrow file without one was
    # never ours.
    return batch if ENVELOPE_SCHEMA.names == batch.schema.names[: len(ENVELOPE_SCHEMA)] else None


# --------------------------------------------------------------------- segments


class LooseSegment(Segment):
    """A segment without a manifest: what its name and its Arrow files tell."""

    def __init__(self, disk: Disk, path: PurePath, name: names.SegmentName) -> None:
        described = _describe_files(disk, path)
        super().__init__(disk, path, _summarize(name, described))
        self.files = tuple(LooseFile(disk, path / file.name, file) for file in described)
        self._name = name
        self._listed_disk = disk

    def again(self) -> LooseSegment:
        """Return it as it was before anything was read of it."""
        return LooseSegment(self._listed_disk, self.path, self._name)

    def stored_table(self) -> pa.RecordBatch:
        """Return the bundle table if it can be read and fits the files."""
        path = self.path / names.BUNDLES
        try:
            table = pa.ipc.open_file(pa.py_buffer(self._disk.read(path))).get_batch(0)
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unusable(str(error)) from error
        if table.schema != BUNDLE_SCHEMA or table.num_rows != self.summary.bundles:
            raise self._unusable("it is not what was written")
        places = table.column("places").flatten()
        files = max(places.field("file").to_pylist(), default=-1) + 1
        # Files that are missing are stumbled over when somebody wants to read them.
        # The table speaks of files by number. One that is gone still needs its place in the list,
        # or the numbers behind it would name the wrong files.
        missing = [LooseFile(self._disk, self.path / _MISSING.name, _MISSING)]
        self.files += tuple(missing * (files - len(self.files)))
        return table

    def _unusable(self, why: str) -> Damaged:
        return Damaged(
            f"a segment's bundle table cannot be used: {why}",
            hint="its rows are read instead",
            path=str(self.path),
        )


def _describe_files(disk: Disk, path: PurePath) -> list[FileSummary]:
    """Return what is known about the data files; one that is missing has no batches."""
    described: dict[int, FileSummary] = {}
    for entry in disk.list(path):
        parsed = names.parse_data_file(entry.name)
        if parsed is not None and entry.name != names.BUNDLES:
            index, slot = parsed
            described[index] = _describe_file(disk, path / entry.name, slot)
    return [described.get(index, _MISSING) for index in range(max(described, default=-1) + 1)]


def _describe_file(disk: Disk, path: PurePath, slot: str) -> FileSummary:
    try:
        batches = read_batches(read_pages(disk, path))
    except OSError:
        batches = []
    sound = next((batch for batch in batches if batch is not None), None)
    kind, own_columns = (ARROW, 0) if sound is None else _kind_of(sound.schema)
    rows = [_LOST_BATCH_ROWS if batch is None else batch.num_rows for batch in batches]
    described = tuple(BatchSummary(0, 0, count, "", 0, 0) for count in rows)
    return FileSummary(path.name, slot, kind, "", sum(rows), own_columns, 0, "", described)


def _kind_of(schema: pa.Schema) -> tuple[str, int]:
    """Return the kind of a file, and how many of its last columns came with the bundles.

    The file says so itself. Where it does not, the columns tell; keys that an extractor found then
    cannot be distinguished from the bundles' own columns: they stay.
    """
    stated = schema.metadata or {}
    kind, own_columns = (stated.get(RESERVED_METADATA + key) for key in (b"kind", b"own_columns"))
    if kind is not None and own_columns is not None:
        return kind.decode(), int(own_columns)
    own = list(schema)[len(ENVELOPE_SCHEMA) :]
    raw = list(RAW_FIELDS)
    opaque = [*raw, pa.field("slot", pa.string()), pa.field("slot_kind", pa.string())]
    if own[-len(opaque) :] == opaque:
        return OPAQUE, len(opaque)
    if own[-len(raw) :] == raw:
        return RAW, len(raw)
    return ARROW, len(own)


def _summarize(name: names.SegmentName, files: list[FileSummary]) -> Summary:
    return Summary(
        version=VERSION,
        quiver_id="",
        **name._asdict(),
        payload_bytes=0,
        size_bytes=0,
        min_ingestion_ns=0,
        max_ingestion_ns=0,
        clamped_min_event_us=None,
        clamped_max_event_us=None,
        files=tuple(files),
        bundle_table_checksum="",
        producers={},
    )


# -------------------------------------------------------------------- WAL files


def headless_content(disk: Disk, path: PurePath, number: int) -> WalContent | None:
    """Return a WAL file whose header is lost; None if it has no sound frame."""
    salt = _find_salt(read_pages(disk, path).view)
    if salt is None:
        return None
    header = WalHeader(_NOBODY, number, salt, 0, 0, 0, NOTHING, NOTHING, 0)
    return WalContent(disk, path, header, disk.file_bytes(path))


def _find_salt(view: memoryview) -> int | None:
    last = len(view) - HEADER_BYTES
    for offset in range(WAL_HEADER_BYTES, last + 1, ALIGNMENT_BYTES):
        # Most places are sorted out by these two bytes.
        if not FrameKind.ARROW <= view[offset + 8] <= FrameKind.CLOSE or view[offset + 9] > STAGED:
            continue
        # A guess that is checked at once: decoding with a wrong salt fails the frame's checksum.
        salt = _U64.unpack_from(view, offset)[0] ^ MAGIC
        try:
            decode(view, offset, salt)
        except FrameFault:
            continue
        return int(salt)
    return None
