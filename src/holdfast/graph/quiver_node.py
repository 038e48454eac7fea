"""The node `quiver`: the keys of OTAP's persistence processor, and ours beside them.

A file names sizes and durations as people write them (`size_cap: 10GB`); the quiver counts bytes
and seconds and knows nothing of files. Each section below is one of its dataclasses under the names
of the file, with the defaults of a gateway where they differ from those of a quiver that is
embedded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from holdfast.bucket_url import is_bucket
from holdfast.errors import BadInput
from holdfast.quiver.base.config import (
    MB,
    SPARE_FILES_MAX,
    UPLOADS_MAX,
    AppendConfig,
    ArchiveConfig,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    WalConfig,
)
from holdfast.quiver.engine.engine import check_caps
from holdfast.settings import DurationS, FileSettings, LocalPath, Settings, SizeBytes
from holdfast.settings.buckets import BucketSettings

# What one request may bring, whatever the size of a segment, if there is room for sixteen of them:
# the 64 MB that OTLP recommends, and what is stored beside them.
BUNDLE_BYTES_MAX = 65 * MB
_BUNDLES_PER_CAP = 16

_APPEND, _WAL, _SEGMENT, _RETENTION = (
    AppendConfig(),
    WalConfig(),
    SegmentConfig(),
    RetentionConfig(),
)


class _QuiverSection(FileSettings, ABC):
    """A part that becomes a part of the quiver's own configuration, which checks its bounds.

    The bounds are written once, in the quiver's dataclasses. Making one here, and throwing it
    away, turns a bound that does not hold into a finding at the line of the section.
    """

    @model_validator(mode="after")
    def _bounds_hold(self) -> Self:
        try:
            self.as_config()
        except BadInput as error:
            raise ValueError(error.hint) from None
        return self

    @abstractmethod
    def as_config(self) -> object:
        """Return it as the quiver takes it."""


class AppendSettings(_QuiverSection):
    """How many events may wait for the disk."""

    max_pending: SizeBytes = _APPEND.max_pending_bytes
    """Payload that was received and is not yet written; more waits."""
    timeout: DurationS = _APPEND.timeout_s
    """How long an append waits for room before the sender is refused."""

    def as_config(self) -> AppendConfig:
        """Return it as the quiver takes it."""
        return AppendConfig(max_pending_bytes=self.max_pending, timeout_s=self.timeout)


class ArchiveSettings(_QuiverSection):
    """A bucket or a folder that keeps segments when they go from here."""

    url: str
    """`s3://bucket/prefix`, `gs://…`, `az://…`, `abfss://…`, or a folder as `file:///path` or as an
    absolute path. Several quivers may share it."""
    bucket: BucketSettings | None = None
    """How a bucket is reached, where the environment does not say it."""
    uploads: int = Field(default=2, ge=1, le=UPLOADS_MAX)
    """Segments that each worker has on their way at once. Each may take 24 MB of memory."""
    retry_min: DurationS = 1.0
    """The pause after a failure. It doubles with each further one."""
    retry_max: DurationS = 60.0
    """The longest pause."""
    on_full: Literal["block", "remove"] = "block"
    """At the size cap: keep what is not in the archive yet and refuse what comes in, or remove it
    all the same, as if there was no archive. What goes like this is counted and logged."""

    @model_validator(mode="after")
    def _keys_fit_the_place(self) -> Self:
        if self.bucket is not None and not is_bucket(self.url):
            raise ValueError(f"`bucket` is for buckets, and {self.url!r} is a folder")
        if not is_bucket(self.url) and not self.url.startswith(("/", "file:///")):
            raise ValueError(f"the folder {self.url!r} has to be written with its whole path")
        return self

    def as_config(self) -> ArchiveConfig:
        """Return it as the quiver takes it."""
        bucket = self.bucket or BucketSettings()
        return ArchiveConfig(
            self.url,
            bucket.endpoint,
            bucket.allow_http,
            {name: value.get_secret_value() for name, value in bucket.options.items()},
            bucket.request_timeout_s,
            self.uploads,
            self.retry_min,
            self.retry_max,
            self.on_full,
        )


class SegmentSettings(_QuiverSection):
    """The immutable files that events end up in."""

    # Half of what a quiver alone has: a gateway is a sidecar.
    target_size: SizeBytes = 16 * MB
    """A segment is sealed at this size, 1MB to 256MB; memory holds at most two of them, and a copy
    of one while it is sealed."""
    max_open_duration: DurationS = _SEGMENT.max_open_duration_s
    """A segment is sealed at this age, however small it is."""
    min_open_duration: DurationS = _SEGMENT.min_open_duration_s
    """A pipeline that waits for events has a segment sealed at this age already."""
    compression: Literal["none", "lz4", "zstd"] = _SEGMENT.compression
    """Compression saves disk and costs reads without copies. A damaged sector then costs up to 1 MB
    of events, instead of 256 kB."""
    archive: ArchiveSettings | None = None
    """A bucket or a folder that keeps segments when they go from here. By default there is none."""

    def as_config(self) -> SegmentConfig:
        """Return it as the quiver takes it."""
        return SegmentConfig(
            target_size_bytes=self.target_size,
            max_open_duration_s=self.max_open_duration,
            min_open_duration_s=self.min_open_duration,
            compression=self.compression,
            archive=None if self.archive is None else self.archive.as_config(),
        )


class WalSettings(_QuiverSection):
    """The write-ahead log."""

    max_size: SizeBytes = _WAL.max_size_bytes
    """All log files together; at this size receivers wait for segments to be sealed."""
    file_size: SizeBytes = _WAL.file_size_bytes
    """A log file is closed and the next one begun at this size."""
    flush_interval: DurationS = _WAL.flush_interval_s
    """The longest time that events acknowledged as `written` stay unsynced."""
    spare_files: int = Field(default=_WAL.spare_files, ge=0, le=SPARE_FILES_MAX)
    """Finished log files that are kept to be overwritten by later ones, which halves the cost of a
    sync. 0: none; a file system that never writes in place (Btrfs, ZFS) gains nothing by them."""

    def as_config(self) -> WalConfig:
        """Return it as the quiver takes it."""
        return WalConfig(
            file_size_bytes=min(self.file_size, self.max_size),
            max_size_bytes=self.max_size,
            flush_interval_s=self.flush_interval,
            spare_files=self.spare_files,
        )


class RetentionSettings(_QuiverSection):
    """What is kept, and what happens when there is no room."""

    size_cap: SizeBytes = _RETENTION.size_cap_bytes
    """Everything in the directory together, over all workers."""
    size_cap_policy: Literal["backpressure", "drop_oldest"] = _RETENTION.size_cap_policy
    """At the cap: refuse what comes in, or drop the oldest, whoever waits for it."""
    max_age_s: DurationS | None = Field(default=None, gt=0, le=3600 * 24 * 366 * 100)
    """Events older than this are removed, even if a destination waits for them; by default none
    are."""
    max_event_age_s: DurationS | None = Field(default=None, gt=0, le=3600 * 24 * 366 * 100)
    """The same by the times of the events instead of their arrival: what is older goes, a segment
    at a time, also what arrives so late. By default none does."""
    max_segments: int = Field(default=_RETENTION.max_segments, ge=1)
    """Segments that may be held, over all workers. The more there are, the later a small one is
    sealed, so that they last as long as the longest time that events may wait."""
    min_free: SizeBytes = _RETENTION.min_free_bytes
    """Left free on the disk, beside a reserve for the quiver itself; at that point as at the
    cap."""
    keep_delivered: SizeBytes = 64 * MB
    """What every destination has is kept up to this size (and an eighth of `size_cap`), so that
    `holdfast explain` and replays still find it."""
    orphan_ttl: DurationS | None = _RETENTION.orphan_ttl_s
    """A destination that is no longer in the configuration, or a pipeline without a driver, is
    given up after this time, in which the gateway has to run. By default never."""
    clock_grace: DurationS = _RETENTION.clock_grace_s
    """A clock that is further than this ahead of everything stored when the gateway starts is not
    believed for this long: nothing expires by it meanwhile."""

    def as_config(self) -> RetentionConfig:
        """Return it as the quiver takes it.

        `keep_delivered` is the quiver's `steady_state_headroom_bytes`: to a file it is what stays
        readable, to the quiver what it need not remove as soon as it may.
        """
        return RetentionConfig(
            size_cap_bytes=self.size_cap,
            size_cap_policy=self.size_cap_policy,
            min_free_bytes=self.min_free,
            max_age_s=self.max_age_s,
            max_event_age_s=self.max_event_age_s,
            max_segments=self.max_segments,
            steady_state_headroom_bytes=min(self.keep_delivered, self.size_cap // 8),
            orphan_ttl_s=self.orphan_ttl,
            clock_grace_s=self.clock_grace,
        )


class Config(Settings):
    """The durable buffer between receivers and destinations."""

    path: LocalPath | None = None
    """Its directory, relative to the file; by default a folder of `data_dir`. Each worker has a
    quiver of its own in it: `core-00`, `core-01`, …"""
    append: AppendSettings = AppendSettings()
    """How many events may wait for the disk."""
    segment: SegmentSettings = SegmentSettings()
    """The immutable files that events end up in."""
    wal: WalSettings = WalSettings()
    """The write-ahead log."""
    retention: RetentionSettings = RetentionSettings()
    """What is kept, and what happens when there is no room."""

    @model_validator(mode="after")
    def _caps_hold(self) -> Self:
        try:
            check_caps(self.as_config())
        except BadInput as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
        return self

    def as_config(self) -> QuiverConfig:
        """Return it as the quiver takes it; it describes all workers together."""
        # A single request that needs more than a sixteenth of the cap could be refused for want of
        # room in a quiver that is nearly empty, since it is stored twice while it is sealed.
        bundle_bytes = min(BUNDLE_BYTES_MAX, self.retention.size_cap // _BUNDLES_PER_CAP)
        return QuiverConfig(
            append=replace(
                self.append.as_config(),
                max_bundle_bytes=max(bundle_bytes, self.segment.target_size),
            ),
            wal=self.wal.as_config(),
            segment=self.segment.as_config(),
            retention=self.retention.as_config(),
        )


def needs(config: Config) -> tuple[str, ...]:
    """Return the extras that these settings need: an archive in a folder needs none."""
    archive = config.segment.archive
    return ("bucket",) if archive is not None and is_bucket(archive.url) else ()
