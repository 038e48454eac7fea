"""The manifest of a segment: a small checksummed summary, read at every start.

The file holds the summary twice. Each copy is one line of JSON and one line with the xxh3-64 of the
line before it, so that a person can read it and a damaged sector costs nothing.
docs/format/segment.md describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from xxhash import xxh3_64_hexdigest

VERSION = 1


@dataclass(frozen=True)
class BatchSummary:
    """One record batch of a data file: where it is, and what its bytes must hash to."""

    offset: int
    length: int
    rows: int
    checksum: str
    # As the rows have them, not clamped: for pruning.
    min_event_us: int
    max_event_us: int


@dataclass(frozen=True)
class FileSummary:
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


@dataclass(frozen=True)
class ProducerSummary:
    """The newest append of a producer within the segment, and its watermark."""

    epoch: int
    seq: int
    bundles: int
    events: int
    time_ns: int
    watermark_ns: int | None


@dataclass(frozen=True)
class Summary:
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
    # Clamped (envelope.py); None when the segment holds control bundles only.
    min_event_us: int | None
    max_event_us: int | None
    files: tuple[FileSummary, ...]
    bundle_table_checksum: str
    producers: dict[str, ProducerSummary]

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots that have rows here."""
        return tuple(sorted({file.slot for file in self.files}))


class ManifestFault(Exception):
    """No copy of the summary is sound."""


class NewerManifest(Exception):
    """The summary is sound, and of a version this program does not know."""


def encode(summary: Summary) -> bytes:
    """Return the manifest's bytes."""
    line = json.dumps(asdict(summary), separators=(",", ":"), ensure_ascii=False).encode()
    copy = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
    return copy + copy


def decode(data: bytes) -> Summary:
    """Return the summary from whichever copy is sound."""
    for line in _sound_lines(data):
        fields = json.loads(line)
        if fields["version"] != VERSION:
            raise NewerManifest(f"segment version {fields['version']}")
        return _summary(fields)
    raise ManifestFault("both copies of the summary are damaged")


def _sound_lines(data: bytes) -> Iterator[bytes]:
    # The copies have equal length: a damaged newline in one must not hide the other.
    half = len(data) // 2
    for copy in (data[:half], data[half:]):
        line, _, checksum = copy.rstrip(b"\n").rpartition(b"\n")
        if line and xxh3_64_hexdigest(line).encode() == checksum:
            yield line


def _summary(fields: dict[str, Any]) -> Summary:
    files = tuple(
        FileSummary(**{**file, "batches": tuple(BatchSummary(**b) for b in file["batches"])})
        for file in fields.pop("files")
    )
    producers = {name: ProducerSummary(**p) for name, p in fields.pop("producers").items()}
    return Summary(**fields, files=files, producers=producers)
