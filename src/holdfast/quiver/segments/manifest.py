"""The manifest of a segment: a small checksummed summary, read at every start.

The file holds the summary twice. Each copy is one line of JSON, one line with the xxh3-64 of the
line before it, and empty lines up to a multiple of 4096 bytes: a person can read it, and a damaged
sector costs nothing.
docs/format/segment.md describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from pathlib import PurePath
from sys import intern
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_64_hexdigest

from holdfast.quiver.base.names import MANIFEST, SegmentName
from holdfast.seam.disk import Disk, ReadableDisk, read_pages

VERSION = 2
# Version 1 had fewer record batches, and no schema in the manifest.
READABLE_VERSIONS = (1, VERSION)

# What a disk loses at once; the copies share none of these.
_SECTOR_BYTES = 4096
COPIES = 2
# What is read of a file at first.
_USUAL_BYTES = 64 << 10
# In hexadecimal digits, as it stands behind the line.
_CHECKSUM_BYTES = 16

# The kinds of data files: rows of one schema, raw events, and what could not be stored as either.
ARROW, RAW, OPAQUE = "arrow", "raw", "opaque"


class BatchSummary(NamedTuple):
    """One record batch of a data file: where it is, and what its bytes must hash to."""

    offset: int
    length: int
    rows: int
    checksum: str
    # As the rows have them, not clamped: for pruning.
    min_event_us: int
    max_event_us: int
    # The same of their items, where a row stands for several; then also of those behind the
    # earliest, which is the event time of the row. Not written if there are none.
    min_item_us: int | None = None
    max_item_us: int | None = None


class FileSummary(NamedTuple):
    """One data file: the rows of one slot and one schema."""

    name: str
    slot: str
    # "arrow": the slot's own columns. "raw": a payload column. "opaque": IPC streams as payloads.
    kind: str
    schema_fingerprint: str
    rows: int
    # The last so many columns came with the bundles; the others are the envelope.
    own_columns: int
    size_bytes: int
    # Of all bytes outside the record batches: schema, dictionaries, footer.
    frame_checksum: str
    batches: tuple[BatchSummary, ...]
    # Arrow's message of the schema, compressed (zlib) and in base64. Empty in version 1.
    schema: str = ""
    # Of the dictionaries: what is between the schema and the first batch. Empty if there are none.
    dictionary_checksum: str = ""
    # What the slot's content means, if its extractor says so. Not written if that is empty.
    signal: str = ""
    # Of the Bloom filter on the ids in its rows: the file of the same name with the ending `ids`.
    # Not written if there is none.
    ids_checksum: str = ""


class ProducerSummary(NamedTuple):
    """The newest append of a producer within the segment, and its watermark."""

    epoch: int
    seq: int
    bundles: int
    events: int
    time_ns: int
    watermark_ns: int | None


class Summary(NamedTuple):
    """What is known of a segment without opening its data."""

    version: int
    quiver_id: str
    segment_seq: int
    first_seq: int
    last_seq: int
    bundles: int
    events: int
    payload_bytes: int
    size_bytes: int
    min_ingestion_ns: int
    max_ingestion_ns: int
    # See envelope.py; None when the segment holds control bundles only.
    clamped_min_event_us: int | None
    clamped_max_event_us: int | None
    files: tuple[FileSummary, ...]
    bundle_table_checksum: str
    # The newest first, at most `producers.max_count`.
    producers: dict[str, ProducerSummary]

    @property
    def name(self) -> SegmentName:
        """What the directory's name must say."""
        return SegmentName(
            self.segment_seq, self.first_seq, self.last_seq, self.bundles, self.events
        )

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots that have rows here."""
        return tuple(sorted({file.slot for file in self.files}))

    def to_fields(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return {
            **self._asdict(),
            "files": [
                {**file._asdict(), "batches": [batch._asdict() for batch in file.batches]}
                for file in self.files
            ],
            "producers": {name: one._asdict() for name, one in self.producers.items()},
        }


class ManifestFault(Exception):
    """No copy of the summary is sound."""


class NewerManifest(Exception):
    """The summary is sound, and of a version this program does not know."""


def encode(summary: Summary) -> bytes:
    """Return the manifest's bytes."""
    values = summary.to_fields()
    for file in values["files"]:
        _leave_out(file, FileSummary)
        for batch in file["batches"]:
            _leave_out(batch, BatchSummary)
    line = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    return in_copies(line.encode())


def _leave_out(values: dict[str, Any], kind: type[Any]) -> None:
    for name, nothing in _LEFT_OUT[kind].items():
        if values[name] == nothing:
            del values[name]


# What came to the format later, and is not written where it says nothing: a segment without it is
# the same, byte for byte, as one by a program that did not know it.
_LEFT_OUT: dict[type[Any], dict[str, object]] = {
    BatchSummary: {"min_item_us": None, "max_item_us": None},
    FileSummary: {"signal": "", "ids_checksum": ""},
}


def in_copies(line: bytes) -> bytes:
    """Return a line twice, each time with its checksum, so that no sector holds some of both."""
    copy = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
    return (copy + b"\n" * (-len(copy) % _SECTOR_BYTES)) * COPIES


def decode(data: bytes) -> Summary:
    """Return the summary from whichever copy is sound."""
    for line in sound_lines(data):
        values = orjson.loads(line)
        if values["version"] not in READABLE_VERSIONS:
            raise NewerManifest(f"segment version {values['version']}")
        return _summary(values)
    raise ManifestFault("both copies of the summary are damaged")


def read(disk: ReadableDisk, segment: PurePath) -> Summary:
    """Return the summary of a segment; a copy that the disk cannot read is a damaged one."""
    return decode(content(disk, segment / MANIFEST))


def content(disk: ReadableDisk, path: PurePath, limit_bytes: int | None = None) -> bytes:
    """Return the bytes of a manifest, or its beginning, with zeros for what cannot be read.

    By one call, as long as it is no larger than most are: a start does this very often.
    """
    pages = read_pages(disk, path, _USUAL_BYTES)
    if len(pages.view) == _USUAL_BYTES:
        pages = read_pages(disk, path, limit_bytes)
    return bytes(pages.view)


def cut_copy(disk: Disk, segment: PurePath, at: str, sync_at: str) -> int:
    """Cut the second copy off if both are sound; return the bytes that are free now."""
    path = segment / MANIFEST
    data = bytes(read_pages(disk, path).view)
    if sound_copies(data) < COPIES:
        return 0
    # In place and not by a new file: on a full disk there is no room for one, which is why it is
    # cut.
    handle = disk.reopen(path, at)
    try:
        disk.truncate(handle, len(data) // COPIES, at)
        disk.sync(handle, sync_at)
    finally:
        disk.close(handle)
    return len(data) - len(data) // COPIES


def sound_copies(data: bytes) -> int:
    """Return how many of the two copies match their checksums."""
    return sum(_matches(*pair) for pair in _halves(data))


def sound_lines(data: bytes) -> Iterator[bytes]:
    """Yield what of `in_copies` is sound; the same line once or more."""
    # As it was written. Looking for the ends of both copies takes longer than all the rest, and a
    # start reads very many of these.
    end = data.find(b"\n")
    if _matches(data[: max(0, end)], data[end + 1 : end + 1 + _CHECKSUM_BYTES]):
        yield data[:end]
    # The copies have equal length: damaged newlines in one must not hide the other. If the file was
    # cut short or grew, the middle is elsewhere: then any line that the next one proves will do.
    yield from (line for line, checksum in _halves(data) if _matches(line, checksum))
    yield from (line for line, checksum in pairwise(data.split(b"\n")) if _matches(line, checksum))


def _halves(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the summary and its checksum from each half of the file."""
    half = len(data) // 2
    parts = [copy.rstrip(b"\n").rpartition(b"\n") for copy in (data[:half], data[half:])]
    return [(line, checksum) for line, _, checksum in parts]


def _matches(line: bytes, checksum: bytes) -> bool:
    return bool(line) and xxh3_64_hexdigest(line).encode() == checksum


def _summary(values: dict[str, Any]) -> Summary:
    """Return the record; what a later program added without a new version is passed over.

    A start makes very many of these, and keeps them: what is the same in most of them, such as the
    schema, is kept once.
    """
    values["quiver_id"] = intern(values["quiver_id"])
    values["files"] = tuple([_file(file) for file in values["files"]])
    producers = values["producers"].items()
    values["producers"] = {
        name: ProducerSummary._make(_PRODUCER_VALUES(one)) for name, one in producers
    }
    return Summary._make(_SUMMARY_VALUES(values))


def _file(values: dict[str, Any]) -> FileSummary:
    values = {**FileSummary._field_defaults, **values}
    for name in _SHARED:
        values[name] = intern(values[name])
    absent = BatchSummary._field_defaults
    batches = [BatchSummary._make(_BATCH_VALUES({**absent, **one})) for one in values["batches"]]
    values["batches"] = tuple(batches)
    return FileSummary._make(_FILE_VALUES(values))


_BATCH_VALUES = itemgetter(*BatchSummary._fields)
_FILE_VALUES = itemgetter(*FileSummary._fields)
_PRODUCER_VALUES = itemgetter(*ProducerSummary._fields)
_SUMMARY_VALUES = itemgetter(*Summary._fields)
# Of the fields of a file.
_SHARED = ("name", "slot", "kind", "schema_fingerprint", "schema", "signal")
