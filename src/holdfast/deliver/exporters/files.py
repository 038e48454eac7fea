"""Writes events, or their items, into files, each of which appears only when it is complete.

A send is answered when its events are in a journal, synced; files are made of journals later, by
size, count or age. So a batch costs one sync, files have the size that readers like, and a crash
between the two loses nothing: the journal is found at the next start. Exactly once into files
rests on two things: names are made from what is inside, so making a file twice gives one file; and
a journal knows the identities of its events, so an event that is sent again is passed over.

The files may go into a bucket; the journal stays here, beside the quiver. Until a file has arrived
there, its journal is kept, and no further one begun: so while the bucket is away, or does not let
us in, at most one journal is behind, and every further event waits in the quiver.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Literal, Self

from pydantic import Field, model_validator

from holdfast.bucket_url import is_bucket
from holdfast.deliver.exporter import (
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
    all_failed,
)
from holdfast.deliver.exporters.complete_file import FilePlace
from holdfast.deliver.exporters.file_journal import JournalIdentity, frame_of, identity_of
from holdfast.deliver.exporters.file_places import BucketPlace, FolderPlace
from holdfast.deliver.exporters.file_publishing import FileFormat, Publisher
from holdfast.deliver.exporters.file_staging import FileLimits, FileStaging
from holdfast.errors import HoldfastError, NotAllowed, ObjectMissing
from holdfast.extras import need
from holdfast.own_thread import in_thread
from holdfast.seam.bucket import OBJECT_BYTES_MAX, BucketAccess
from holdfast.seam.disk import DISK_IS_FULL, LockHeld
from holdfast.settings import DurationS, FileSettings, SizeBytes
from holdfast.settings.buckets import BucketSettings, FolderOrBucket
from holdfast.signals.event import Event
from holdfast.signals.registry import all_signals
from holdfast.signals.registry import tables as known_tables
from holdfast.signals.signal import ANY_EVENTS, Takes

# Journals are here, below the directory of the files; readers of a data lake skip such names.
STAGING = ".holdfast"
# After files could not be written, how long until it is tried again.
PUBLISH_RETRY_S = 5.0
# A bucket that is away, or refuses us, is asked less and less often while nothing is sent.
PUBLISH_RETRY_MAX_S = 300.0
# Half of what a bucket takes in one object: formats may need more than the events they hold.
BUCKET_FILE_BYTES_MAX = OBJECT_BYTES_MAX // 2

log = logging.getLogger("holdfast.deliver")


class Config(FileSettings):
    """A directory that fills with files of events."""

    directory: FolderOrBucket
    """Where the files go; relative to the configuration file. Made if it is missing. Or a bucket:
    `s3://bucket/prefix`, `gs://…`, `az://…`, `abfss://…`.
    """

    bucket: BucketSettings | None = None
    """How the bucket is reached, where the environment does not say it."""

    format: Literal["ndjson", "parquet"] = "ndjson"
    """`ndjson`: one event in each line. `parquet`: one event in each row, with its position."""

    content: Literal["payload", "record"] = "payload"
    """What a line of NDJSON holds: the event alone, or a record with its position around it."""

    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """How columns of Parquet are compressed."""

    partition_by: Literal["none", "day", "hour"] = "none"
    """Folders by the time an event was received (UTC): `date=2025-06-15`, `hour=15`."""

    tables: list[str] = Field(default_factory=list)
    """Rows of these tables instead of events, in folders by hour and service: `spans`, `logs`,
    `points`. With `format: parquet`; `partition_by` says nothing of them.
    """

    max_partitions: int = Field(default=256, ge=1, le=4096)
    """How many folders of tables are written at once; rows of further ones share a folder."""

    max_file_bytes: SizeBytes = Field(default=64 * 2**20, ge=1)
    """A file is completed at this size (of its events; a compressed file is smaller)."""

    max_file_events: int = Field(default=100_000, ge=1)
    """A file is completed with this many events."""

    max_file_age: DurationS = Field(default=300.0, gt=0)
    """A file is completed when its first event has been there for so long."""

    max_total_bytes: SizeBytes | None = Field(default=None, ge=1)
    """The oldest files are removed above this; null: never. Not in a bucket, which has rules of its
    own for that.
    """

    max_batch_events: int = Field(default=1000, ge=1, le=10_000)
    """How many events are made durable by one sync."""

    max_batch_bytes: SizeBytes = Field(default=8 * 2**20, ge=1)
    """How many bytes are made durable by one sync; one event alone may be larger."""

    @model_validator(mode="after")
    def _keys_fit_the_place(self) -> Self:
        if not is_bucket(self.directory):
            if self.bucket is not None:
                raise ValueError(f"`bucket` is for buckets, and {self.directory!r} is a folder")
            return self
        if self.max_total_bytes is not None:
            raise ValueError(
                "`max_total_size` is for folders; let a lifecycle rule of the bucket remove objects"
            )
        if self.max_file_bytes > BUCKET_FILE_BYTES_MAX:
            raise ValueError(f"`max_file_size` is at most {BUCKET_FILE_BYTES_MAX} in a bucket")
        return self

    @model_validator(mode="after")
    def _keys_fit_the_format(self) -> Self:
        if self.format == "parquet" and "content" in self.model_fields_set:
            raise ValueError("`content` is for ndjson; Parquet always has the position in columns")
        if self.format == "ndjson" and "compression" in self.model_fields_set:
            raise ValueError("`compression` is for parquet")
        if not self.tables:
            if "max_partitions" in self.model_fields_set:
                raise ValueError("`max_partitions` is for `tables`")
            return self
        unknown = sorted(set(self.tables) - set(known_tables()))
        if unknown:
            known = ", ".join(sorted(known_tables()))
            raise ValueError(f"`tables` has {', '.join(unknown)}; there are {known}")
        if self.format != "parquet":
            raise ValueError("`tables` are written as Parquet: add `format: parquet`")
        if self.partition_by != "none":
            raise ValueError("`tables` are always divided by hour and service: no `partition_by`")
        return self


def takes(config: Config) -> Takes:
    """Return what it can be given: NDJSON has it as JSON, Parquet as the bytes that came.

    Tables: the signals that they are of, as requests.
    """
    if not config.tables:
        return ANY_EVENTS
    having = [one for one in all_signals() if set(config.tables) & set(one.tables)]
    return Takes(
        frozenset(signal.form for signal in having), frozenset(signal.name for signal in having)
    )


def needs(config: Config) -> tuple[str, ...]:
    """Return the extras that these settings need: files in a folder need none."""
    tables = ("otel",) if config.tables else ()
    return (*tables, "bucket") if is_bucket(config.directory) else tables


def make(config: Config, context: ExporterContext) -> Exporter:
    """Return the exporter; the directory is looked at when the first event comes."""
    for extra in needs(config):
        need(extra)
    return FilesExporter(config, context)


class _Busy(Exception):
    """An earlier call is still with the disk."""


class FilesExporter:
    """One directory. One call at a time is with the disk, in a thread."""

    def __init__(self, config: Config, context: ExporterContext) -> None:
        self._config = config
        self._context = context
        self._place, self._root = _place_of(config, context)
        # Whether files can be written where they are to go: not known yet.
        self._checked = False
        self._staging: FileStaging | None = None
        # Events that are durable here, although nobody heard so: passed over once.
        self._known: set[JournalIdentity] = set()
        self._turn = asyncio.Lock()
        # The call that is with the disk, if any. It may outlive the send that began it: threads
        # cannot be cancelled.
        self._running: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.max_batch_events = config.max_batch_events
        self.max_batch_bytes = config.max_batch_bytes

    async def start(self) -> None:
        """Publish what quivers that are gone left behind; begin to watch the age of journals."""
        # Only tidying up: what is left behind stays, and the next start tries again. A disk that
        # fails shows itself with the first event.
        with contextlib.suppress(OSError, HoldfastError, _Busy):
            await self._on_disk(self._adopt)
        # Told before the first event, which may be long in coming; and then again by its failure.
        try:
            await self._on_disk(self._check)
        except (HoldfastError, _Busy) as error:
            log.error("%s: nothing can be written: %s", self._context.name, error)
        self._keeper = asyncio.create_task(self._keep())

    async def send(self, events: Sequence[Event]) -> Answer:
        failed: dict[int, Failure] = {}
        if self._config.format == "ndjson" and self._config.content == "payload":
            failed = {
                i: _NOT_JSON
                for i, event in enumerate(events)
                if event.read is None and not event.is_json
            }
        wanted = [event for i, event in enumerate(events) if i not in failed]
        try:
            await self._on_disk(partial(self._append, wanted), wanted)
        except _Busy:
            return all_failed(len(events), _BUSY)
        except LockHeld as held:
            return all_failed(len(events), _held(held))
        except OSError as error:
            return all_failed(len(events), _disk_failure(error))
        except HoldfastError as error:
            return all_failed(len(events), _bucket_failure(error))
        # The keeper may be waiting without a deadline, for there was no journal before.
        self._changed.set()
        return Answer(failed)

    async def close(self) -> None:
        """Complete the last file; if that fails, the next start does it."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._running is not None:
            try:
                await asyncio.wait({self._running})
            except asyncio.CancelledError:  # the disk hangs; then at least the lock goes with it
                self._running.add_done_callback(lambda _: self._release())
                raise
        try:
            await self._on_disk(self._close)
        except (OSError, HoldfastError) as error:
            log.warning("%s: the last file is not complete: %s", self._context.name, _said(error))

    async def _keep(self) -> None:
        """Complete files when they are old enough, without waiting for the next event."""
        pause_s = PUBLISH_RETRY_S
        while True:
            due_in_s = self._staging.due_in_s() if self._staging else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due_in_s):
                    await self._changed.wait()
            self._changed.clear()
            if self._staging is None or self._staging.due_in_s() != 0.0:
                continue
            try:
                await self._on_disk(self._staging.publish_if_due)
                pause_s = PUBLISH_RETRY_S
            except _Busy:
                await asyncio.sleep(PUBLISH_RETRY_S)
            except (OSError, HoldfastError) as error:
                name = self._context.name
                log.warning("%s: a file cannot be completed yet: %s", name, _said(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PUBLISH_RETRY_MAX_S)

    # ------------------------------------------------- with the disk, in a thread

    async def _on_disk(self, call: Callable[[], None], events: Sequence[Event] = ()) -> None:
        """Run a call in a thread, alone.

        A send that is cancelled leaves its call running. Then the next one is told to come back,
        and if the call succeeds after all, its events are known and not written twice.
        """
        async with self._turn:
            if self._running is not None and not self._running.done():
                raise _Busy
            running = asyncio.ensure_future(in_thread(f"exporter {self._context.name}", call))
            self._running = running
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                running.add_done_callback(lambda done: self._ended_unheard(done, events))
                raise

    def _ended_unheard(self, done: asyncio.Future[None], events: Sequence[Event]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._known.update(identity_of(event) for event in events)

    def _append(self, events: Sequence[Event]) -> None:
        """Make events durable that are not known to be: see `_on_disk`."""
        if not events:
            return
        self._check()
        if self._staging is None:
            staging = self._staging_of(self._folder_name(events[0].quiver_id))
            # What a journal of the last process holds may not have been acknowledged: these events
            # come again, and are known.
            self._known |= staging.open(_owner())
            self._staging = staging
        new = [event for event in events if identity_of(event) not in self._known]
        if new:
            self._staging.append([frame_of(self._as_written(event)) for event in new])
        # Once each: an event that was passed over, or written, has been answered for. The set
        # stays as small as what is in doubt.
        self._known.difference_update(identity_of(event) for event in events)

    def _check(self) -> None:
        """See once that files can be written, before events are taken for them."""
        if not self._checked:
            self._place.check()
            self._checked = True

    def _as_written(self, event: Event) -> Event:
        if event.read is None or self._config.format == "parquet":
            return event
        return replace(event, payload=event.json_text, read=None)

    def _adopt(self) -> None:
        """Publish what other quivers left behind here, under the name of this exporter."""
        root = self._root / STAGING
        disk = self._context.seam.disk
        if not disk.exists(root):
            return
        for entry in disk.list(root):
            if entry.is_dir and entry.name.startswith(self._folder_name("")):
                staging = self._staging_of(entry.name)
                with contextlib.suppress(LockHeld):  # a worker beside us is at work there
                    staging.open(_owner())
                    staging.release()

    def _release(self) -> None:
        if self._staging is not None:
            self._staging.release()
            self._staging = None

    def _close(self) -> None:
        if self._staging is not None:
            staging, self._staging = self._staging, None
            try:
                staging.close(self._known)
            except BaseException:
                staging.release()
                raise

    def _staging_of(self, folder_name: str) -> FileStaging:
        config, seam = self._config, self._context.seam
        file_format = FileFormat(
            config.format,
            config.content,
            config.compression,
            config.partition_by,
            tuple(dict.fromkeys(config.tables)),
            config.max_partitions,
        )
        publisher = Publisher(seam.disk, self._place, file_format, config.max_total_bytes)
        limits = FileLimits(config.max_file_bytes, config.max_file_events, config.max_file_age)
        folder = self._root / STAGING / folder_name
        return FileStaging(seam.disk, seam.clock, folder, publisher, limits)

    def _folder_name(self, quiver_id: str) -> str:
        return re.sub(r"[^\w-]", "_", self._context.name) + "." + re.sub(r"[^\w-]", "_", quiver_id)


_NOT_JSON = Failure(
    FailureClass.PERMANENT, "not JSON; write it with `content: record` or as Parquet", "json"
)
_BUSY = Failure(FailureClass.TRANSIENT, "the disk has not finished an earlier call", "busy")


def _place_of(config: Config, context: ExporterContext) -> tuple[FilePlace, PurePath]:
    """Return where files appear, and the folder of this machine that has the journals."""
    seam = context.seam
    if not is_bucket(config.directory):
        folder = PurePath(context.base_dir, config.directory)
        return FolderPlace(seam.disk, folder), folder
    settings = config.bucket or BucketSettings()
    bucket = seam.open_bucket(
        BucketAccess(
            config.directory,
            settings.endpoint,
            settings.allow_http,
            {name: value.get_secret_value() for name, value in settings.options.items()},
            settings.request_timeout_s,
        )
    )
    return BucketPlace(seam.disk, bucket, seam.reached), PurePath(context.data_dir)


def _owner() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _held(held: LockHeld) -> Failure:
    reason = f"another process writes here: {held.owner}"
    return Failure(FailureClass.TRANSIENT, reason, "locked")


def _bucket_failure(error: HoldfastError) -> Failure:
    if isinstance(error, NotAllowed):
        return Failure(FailureClass.AUTH, f"{error.message}; {error.hint}", "denied")
    if isinstance(error, ObjectMissing):
        reason = "the bucket does not exist: make it, or correct `directory`"
        return Failure(FailureClass.TRANSIENT, reason, "no_bucket")
    # What was sent may be there. It is sent again under the same name, which is no second time.
    return Failure(FailureClass.TRANSIENT, error.message, "bucket")


def _said(error: OSError | HoldfastError) -> str:
    return str(error) if isinstance(error, HoldfastError) else error.strerror or str(error)


def _disk_failure(error: OSError) -> Failure:
    reason = "the disk is full" if error.errno in DISK_IS_FULL else "the disk failed"
    code = errno.errorcode.get(error.errno or 0, "disk")
    return Failure(FailureClass.TRANSIENT, f"{reason}: {error.strerror or code}", code)
