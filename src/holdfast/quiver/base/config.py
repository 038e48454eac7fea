"""Every bound and choice of a quiver, with its unit, its default, and what it costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.bucket_url import bucket_problem_of, is_bucket
from holdfast.errors import BadInput
from holdfast.quiver.base.frame import BODY_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

KB = 1024
MB = 1024 * KB
GB = 1024 * MB

# The file names have three digits.
FILES_MAX = 1000
# More spare files would be no use: one is being written, one being sealed.
SPARE_FILES_MAX = 16
# Threads, and memory for each, that uploads may take.
UPLOADS_MAX = 32
# Longer waits than a month are more than the timers of some systems can hold.
WAIT_MAX_S = 30 * 24 * 3600.0
# What is only compared with the clock still has to fit into its 64 bits.
AGE_MAX_S = 100 * 366 * 24 * 3600.0


class AckLevel(IntEnum):
    """What an answered append promises. Higher promises more.

    MEMORY    the quiver has it in memory; a crash of the process loses it
    WRITTEN   the operating system has it; kill -9 does not lose it, a power cut within
              `wal.flush_interval_s` does
    FSYNCED   it is on stable storage
    SEGMENT   it is on stable storage as part of a sealed segment
    """

    MEMORY = 1
    WRITTEN = 2
    FSYNCED = 3
    SEGMENT = 4


# Looked at by every append that names its level.
_LEVELS = tuple(AckLevel)


def _require(holds: bool, option: str, value: object, rule: str) -> None:
    if not holds:
        raise BadInput(f"{option} is {value}", hint=f"{option} must be {rule}")


def _require_s(seconds: float, option: str, at_most_s: float) -> None:
    _require(0 < seconds <= at_most_s, option, seconds, f"positive, and at most {at_most_s}")


def check_level(level: AckLevel) -> AckLevel:
    """Return the level if it is one."""
    _require(level in _LEVELS, "level", level, "one of AckLevel")
    return AckLevel(level)


class Extractor(Protocol):
    """Reads event time and keys out of a slot's rows.

    It may have an attribute `signal`, a text: what the content of the slot means. It stands in the
    manifests of segments, and statistics are told by it.

    Rows that have no times of their own, because those of another slot in each bundle speak for
    them, are said to be so by an attribute `is_timed` that is false. They are as if they were not
    there when event times are summed up and stated; what a row shows is its ingestion time.
    """

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return as many rows, with `event_time` (timestamp, may be null) and any key columns.

        Where a row of a raw slot stands for several items, the key `item_times` is the list of
        their times, null for an item that has none.
        The key `search_ids`, a list of ids of 16 bytes, is not stored: it makes a filter, by which
        a search for an id passes over what does not have it. Null: they are not known.

        Raw slots come as one binary column `payload`. The rows are those of many bundles; an
        extractor that raises is asked again for fewer, and in the end costs one bundle its event
        times and keys, never an event.
        """


class ItemTable(Protocol):
    """A table of the items in stored bundles, made when somebody reads it.

    What is stored is what came: requests as bytes, or record batches that belong together. What
    people ask questions of is a row for each span. A signal says how the one becomes the other, so
    that a quiver knows no signal.
    """

    @property
    def raw_slot(self) -> str:
        """The slot whose payloads hold items."""

    @property
    def arrow_slots(self) -> Sequence[str]:
        """The slots of Arrow bundles that hold such items, too; the one with a row for each first.

        Their rows refer to each other within one bundle, so they are read together.
        """

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    def of_payloads(
        self, payloads: Sequence[bytes], unreadable: MutableSequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the items of some payloads, in order: what `schema` says, and two columns more.

        `_place` (int32) is which of the payloads an item is from, `_time` (timestamp in µs, UTC, or
        null) its event time. What is no payload of the slot has no items; its place is put into
        `unreadable`, if that is given.
        """

    def of_bundle(
        self, slots: Mapping[str, pa.RecordBatch], damaged_slots: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the items of one Arrow bundle, or of what is left of it; `_place` is 0."""


@dataclass(frozen=True)
class AppendConfig:
    """Bounds of one append and of all waiting ones."""

    level: AckLevel = AckLevel.FSYNCED
    # One bundle's payload. None: as large as a segment.
    max_bundle_bytes: int | None = None
    # Payload bytes handed over but not yet written; more waits.
    max_pending_bytes: int = 64 * MB
    # How long an append waits for room or for its answer before it gives up.
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        limit = self.max_bundle_bytes
        holds = limit is None or 0 < limit <= BODY_BYTES_MAX
        _require(holds, "append.max_bundle_bytes", limit, f"from 1 to {BODY_BYTES_MAX}")
        pending = self.max_pending_bytes
        _require(pending > 0, "append.max_pending_bytes", pending, "positive")
        _require_s(self.timeout_s, "append.timeout_s", WAIT_MAX_S)
        check_level(self.level)


@dataclass(frozen=True)
class WalConfig:
    """The write-ahead log."""

    # A file is closed and the next one begun at this size (and whenever a segment is handed over).
    file_size_bytes: int = 64 * MB
    # All WAL files together; at this size appends wait for the sealer.
    max_size_bytes: int = 4 * GB
    # The longest time that data acknowledged as `written` stays unsynced.
    flush_interval_s: float = 0.025
    # One vectored write and one sync take at most this much (or one larger bundle).
    max_group_bytes: int = 16 * MB
    # How many files whose bundles are all in segments are kept to be overwritten by later ones,
    # which halves the cost of a sync. 0: every file is a new one.
    spare_files: int = 2

    def __post_init__(self) -> None:
        size = self.file_size_bytes
        _require(size >= 64 * KB, "wal.file_size_bytes", size, "at least 65536")
        _require(self.max_size_bytes >= size, "wal.max_size_bytes", self.max_size_bytes, "≥ a file")
        interval = self.flush_interval_s
        holds = 0 <= interval <= WAIT_MAX_S
        _require(holds, "wal.flush_interval_s", interval, f"from 0 to {WAIT_MAX_S}")
        holds = 0 < self.max_group_bytes <= BODY_BYTES_MAX
        rule = f"from 1 to {BODY_BYTES_MAX}"
        _require(holds, "wal.max_group_bytes", self.max_group_bytes, rule)
        holds = 0 <= self.spare_files <= SPARE_FILES_MAX
        _require(holds, "wal.spare_files", self.spare_files, f"from 0 to {SPARE_FILES_MAX}")


def archive_problem_of(url: str) -> str | None:
    """Say why something cannot be the address of an archive; None if it can."""
    if is_bucket(url):
        return bucket_problem_of(url)
    if url.startswith("file://"):
        is_here = url.startswith("file:///") and len(url) > len("file:///")
        return None if is_here else "write file:/// and the whole path of a folder"
    if not url or "://" in url:
        return "name a bucket (s3://, gs://, az://, abfss://) or a folder"
    return None


@dataclass(frozen=True)
class ArchiveConfig:
    """Where sealed segments are kept beyond their removal here, and how that place is reached."""

    # `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///…`, or a folder's path.
    url: str
    endpoint: str | None = None
    # Whether an endpoint may be without TLS.
    allow_http: bool = False
    # By the names of the client library. Among them are secrets.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    # One request; a large file is sent in several.
    request_timeout_s: float = 30.0
    # Segments on their way at once. Each holds at most 24 MB of its largest file in memory.
    uploads: int = 2
    # Pause after a failure: doubles from the first to the second, less up to a half by chance.
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0
    # At the size cap: keep what is not in the archive and refuse appends, or remove it all the
    # same, as if there was no archive.
    on_full: Literal["block", "remove"] = "block"

    def __post_init__(self) -> None:
        problem = archive_problem_of(self.url)
        if problem is not None:
            raise BadInput(f"segment.archive.url is {self.url!r}", hint=problem)
        _require_s(self.request_timeout_s, "segment.archive.request_timeout_s", 3600.0)
        uploads, rule = self.uploads, f"from 1 to {UPLOADS_MAX}"
        _require(1 <= uploads <= UPLOADS_MAX, "segment.archive.uploads", uploads, rule)
        _require_s(self.retry_max_s, "segment.archive.retry_max_s", WAIT_MAX_S)
        _require_s(self.retry_min_s, "segment.archive.retry_min_s", self.retry_max_s)
        known = self.on_full in ("block", "remove")
        _require(known, "segment.archive.on_full", self.on_full, "block or remove")


@dataclass(frozen=True)
class SegmentConfig:
    """Segments and the sealer."""

    # The open buffer is sealed at this size; memory holds at most two of them.
    target_size_bytes: int = 32 * MB
    # The open buffer is sealed at this age, however small it is.
    max_open_duration_s: float = 5.0
    # A reader that waits for sealed data has it sealed at this age already, or later if many
    # segments are held (retention.max_segments).
    min_open_duration_s: float = 0.25
    # Files of one segment; rarer schemas beyond it share one file as opaque IPC streams.
    max_files: int = 64
    # Compression saves disk and gives up zero-copy reads; a damaged sector costs up to 1 MB then.
    compression: Literal["none", "lz4", "zstd"] = "none"
    # Pause before a failed seal is tried again: doubles from the first to the second.
    retry_min_s: float = 0.1
    retry_max_s: float = 10.0
    # Where segments are kept after their removal here. None: nowhere.
    archive: ArchiveConfig | None = None

    def __post_init__(self) -> None:
        size = self.target_size_bytes
        _require(
            MB <= size <= 256 * MB, "segment.target_size_bytes", size, "between 1 MB and 256 MB"
        )
        _require_s(self.max_open_duration_s, "segment.max_open_duration_s", WAIT_MAX_S)
        shortest = self.min_open_duration_s
        _require(shortest >= 0, "segment.min_open_duration_s", shortest, "0 or more")
        _require_s(self.retry_max_s, "segment.retry_max_s", WAIT_MAX_S)
        _require_s(self.retry_min_s, "segment.retry_min_s", self.retry_max_s)
        files = self.max_files
        _require(2 <= files <= FILES_MAX, "segment.max_files", files, f"from 2 to {FILES_MAX}")  # noqa: PLR2004
        known = self.compression in ("none", "lz4", "zstd")
        _require(known, "segment.compression", self.compression, "none, lz4 or zstd")


@dataclass(frozen=True)
class ProducerConfig:
    """Memory of idempotent producers."""

    # Producers remembered; the one that was silent longest is forgotten first.
    max_count: int = 10_000
    # A producer silent for longer is forgotten. Must exceed the longest time a sender retries.
    ttl_s: float = 72 * 3600.0

    def __post_init__(self) -> None:
        _require(self.max_count > 0, "producers.max_count", self.max_count, "positive")
        _require_s(self.ttl_s, "producers.ttl_s", AGE_MAX_S)


@dataclass(frozen=True)
class TransactionConfig:
    """Staged data of open transactions."""

    # All open transactions together.
    max_staged_bytes: int = 256 * MB
    # A transaction that neither appends nor commits for this long is swept.
    lease_s: float = 60.0

    def __post_init__(self) -> None:
        staged = self.max_staged_bytes
        holds = 0 < staged <= 2 * BODY_BYTES_MAX
        rule = f"from 1 to {2 * BODY_BYTES_MAX}"
        _require(holds, "transactions.max_staged_bytes", staged, rule)
        _require_s(self.lease_s, "transactions.lease_s", AGE_MAX_S)


@dataclass(frozen=True)
class LedgerConfig:
    """The ledger."""

    # The longest time that an outcome stays unsynced; a power cut may cost it (then: redelivery).
    flush_interval_s: float = 0.025
    # A file is closed at this size (or at a sixteenth of the size cap, if that is less), but not
    # before it is twice its checkpoint; the next one begins with a checkpoint.
    rotate_bytes: int = 8 * MB
    # Closed files are kept for this long, and at most so many bytes of them (or an eighth of the
    # size cap).
    retain_s: float = 7 * 24 * 3600.0
    retain_bytes: int = 64 * MB

    def __post_init__(self) -> None:
        _require(self.flush_interval_s >= 0, "ledger.flush_interval_s", -1, "0 or more")
        size = self.rotate_bytes
        _require(size >= 64 * KB, "ledger.rotate_bytes", size, "at least 65536")

    def within(self, size_cap_bytes: int) -> LedgerConfig:
        """Return bounds that leave most of a small cap to the data."""
        rotate_bytes = min(self.rotate_bytes, size_cap_bytes // 16)
        retain_bytes = min(self.retain_bytes, size_cap_bytes // 8)
        return replace(self, rotate_bytes=rotate_bytes, retain_bytes=retain_bytes)


@dataclass(frozen=True)
class RetentionConfig:
    """What is kept, and what happens when there is no room."""

    # Everything below the root together. Appends stop (or the oldest goes) before it is exceeded.
    size_cap_bytes: int = 10 * GB
    size_cap_policy: Literal["backpressure", "drop_oldest"] = "backpressure"
    # Kept free below the cap for acknowledging, sealing and deleting. None: two segments' worth, at
    # most a quarter of the cap.
    reserve_bytes: int | None = None
    # Left free on the disk, beside the reserve. Appends stop (or the oldest goes) before that.
    min_free_bytes: int = 0
    # The more there are, the later a small one is sealed, so that they last for the age limits.
    max_segments: int = 100_000
    # From ingestion; None keeps data until every subscriber has it.
    max_age_s: float | None = None
    # The same from the time of the events: a segment goes when its newest is older. What arrives
    # older than that is accepted, and goes when it is sealed.
    max_event_age_s: float | None = None
    # Segments that no subscriber needs any more are kept up to this many bytes. The key
    # `keep_delivered` of a graph file becomes this (graph/quiver_node.py).
    steady_state_headroom_bytes: int = 0
    # A subscriber that nobody attached to for this long, while the quiver was open, is unregistered
    # and what waits for it given up; None: never.
    orphan_ttl_s: float | None = None
    # A clock that is further than this ahead of everything stored when the quiver is opened is not
    # believed for this long: nothing expires by it meanwhile. 0: it is believed at once.
    clock_grace_s: float = 3600.0
    # A planned range is protected for this long.
    max_pin_s: float = 3600.0
    # How often the keeper looks, when nobody wakes it.
    tick_s: float = 0.5

    def __post_init__(self) -> None:
        known = self.size_cap_policy in ("backpressure", "drop_oldest")
        _require(
            known, "retention.size_cap_policy", self.size_cap_policy, "backpressure or drop_oldest"
        )
        _require(self.max_segments >= 1, "retention.max_segments", self.max_segments, "at least 1")
        if self.max_event_age_s is not None:
            _require_s(self.max_event_age_s, "retention.max_event_age_s", AGE_MAX_S)
        free = self.min_free_bytes
        _require(free >= 0, "retention.min_free_bytes", free, "0 or more")
        _require(self.tick_s > 0, "retention.tick_s", self.tick_s, "positive")
        holds = 0 <= self.clock_grace_s <= WAIT_MAX_S
        rule = f"from 0 to {WAIT_MAX_S}"
        _require(holds, "retention.clock_grace_s", self.clock_grace_s, rule)


@dataclass(frozen=True)
class QuiverConfig:
    """All of the above, and how event times are found."""

    append: AppendConfig = field(default_factory=AppendConfig)
    wal: WalConfig = field(default_factory=WalConfig)
    segment: SegmentConfig = field(default_factory=SegmentConfig)
    producers: ProducerConfig = field(default_factory=ProducerConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    # By slot: what reads event time and keys out of the rows when a segment is sealed.
    extractors: Mapping[str, Extractor] = field(default_factory=dict)
    # By name: what `scan(table=…)` shows beside the slots.
    tables: Mapping[str, ItemTable] = field(default_factory=dict)
    # Event times further ahead of ingestion than this are flagged, and clamped in summaries.
    max_skew_s: float = 300.0
    # Listen on a Unix socket in the data directory, mode 0600, so that `holdfast quiver …` can ask
    # the owner to replay, drop a subscriber or hold still for a backup. Elsewhere than on Unix:
    # never.
    control: bool = True

    def __post_init__(self) -> None:
        holds = 0 <= self.max_skew_s <= AGE_MAX_S
        _require(holds, "max_skew_s", self.max_skew_s, f"from 0 to {AGE_MAX_S}")

    @property
    def max_bundle_bytes(self) -> int:
        """The largest payload of one bundle."""
        return self.append.max_bundle_bytes or self.segment.target_size_bytes

    def is_timed(self, slot: str) -> bool:
        """Whether the rows of a slot have times of their own; see `Extractor`."""
        is_timed: bool = getattr(self.extractors.get(slot), "is_timed", True)
        return is_timed
