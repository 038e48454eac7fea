"""The quiver: open, append, scan, close. Everything else is behind this one class.

    with Quiver.open("data") as quiver:
        receipt = quiver.append(batch)

`append` returns once the bundle is durable at the configured level. All methods may be called from
many threads; the `_async` twins from any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import PurePath
from types import TracebackType
from typing import Self

import pyarrow as pa

from holdfast.errors import BadInput, CannotOpen, DirectoryLocked, HoldfastError, Overloaded
from holdfast.quiver import names
from holdfast.quiver.buffer import Held
from holdfast.quiver.bundle import (
    DEFAULT_SLOT,
    BundleData,
    Encoded,
    Headers,
    Payloads,
    encode_arrow,
    encode_raw,
)
from holdfast.quiver.byte_order import check_machine
from holdfast.quiver.catalog import Catalog
from holdfast.quiver.config import AckLevel, QuiverConfig, check_level
from holdfast.quiver.frame import Kind
from holdfast.quiver.inbox import Append, Receipt
from holdfast.quiver.points import Point
from holdfast.quiver.producers import check_producer, check_watermark
from holdfast.quiver.recovery import Recovery, RecoveryReport
from holdfast.quiver.scan import OnDamage, TimeRange, scan
from holdfast.quiver.sealer import Sealer
from holdfast.quiver.segment import Bundle, Segment, held_bundle
from holdfast.quiver.segment_build import SegmentBuilder
from holdfast.quiver.segment_table import TableMaker
from holdfast.quiver.statistics import Statistics
from holdfast.quiver.transaction import Staging, Transaction
from holdfast.quiver.writer import Writer
from holdfast.seam import Seam
from holdfast.seam.disk import Disk, Handle, LockHeld

log = logging.getLogger("holdfast.quiver")


class Quiver:
    """A durable buffer of Arrow batches and raw events in one directory."""

    def __init__(self, root: PurePath, config: QuiverConfig, seam: Seam, lock: Handle) -> None:
        """Use `Quiver.open`."""
        self._root = root
        self._config = config
        self._seam = seam
        self._lock = lock
        self._closing = threading.Lock()
        self._closed = False
        self._catalog = Catalog()
        self._staging = Staging(config.transactions, seam.clock)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: QuiverConfig | None = None,
        *,
        seam: Seam | None = None,
        expected_id: str | None = None,
    ) -> Self:
        """Open the quiver in a directory, making it if need be, and recover what a crash left.

        With `expected_id` only that quiver is opened.
        """
        root, seam, config = PurePath(path), seam or Seam(), config or QuiverConfig()
        lock = None
        check_machine(root)
        try:
            _make_folders(seam.disk, root)
            lock = _take_lock(seam.disk, root)
            quiver = cls(root, config, seam, lock)
            quiver._recover_and_start(expected_id)
        except BaseException as error:
            if lock is not None:
                seam.disk.unlock(lock)
            if not isinstance(error, OSError):
                raise
            raise CannotOpen(
                f"the data directory cannot be opened: {error.strerror}",
                hint="check that the disk is mounted, writable and not full",
                path=str(root),
            ) from error
        return quiver

    def _recover_and_start(self, expected_id: str | None) -> None:
        recovery = Recovery(self._seam, self._root, self._config, self._catalog)
        recovered = recovery.run(expected_id)
        self.quiver_id = recovered.start.quiver_id
        self.recovery: RecoveryReport = recovery.report
        for damage in self.recovery.damages:
            log.warning("set aside: %s", damage)
        self._quarantine = recovery.quarantine
        segments_dir, wal_dir = self._root / names.SEGMENTS_DIR, self._root / names.WAL_DIR
        self._builder = SegmentBuilder(self._seam.disk, segments_dir, self.quiver_id, self._config)
        self._sealer = Sealer(self._seam, self._config, self._builder, self._catalog, wal_dir)
        for path, last_seq, size_bytes in recovered.wal_files:
            self._sealer.wal_files.add(path, last_seq, size_bytes)
        self._sealer.preload(recovered.backlog)
        self._writer = Writer(self._seam, wal_dir, self._config, self._sealer)
        self._writer.begin(recovered.start)
        # Only now is there a newer file that keeps the sequence floor.
        with contextlib.suppress(OSError):
            self._sealer.wal_files.remove_sealed()
        # Last: whatever interrupts an open gives the directory back.
        self._writer.start()
        self._sealer.start()

    # ---------------------------------------------------------------- appending

    def append(
        self,
        data: BundleData,
        *,
        producer: str | None = None,
        epoch: int | None = None,
        watermark_ns: int | None = None,
        level: AckLevel | None = None,
    ) -> Receipt:
        """Append one bundle of record batches; returns once it is durable.

        With `producer` and `epoch` the append is idempotent: the same epoch again returns the
        receipt of the first time, an older one raises `StaleEpoch`.
        """
        encoded = encode_arrow(data, self._config.max_bundle_bytes)
        return self._append([encoded], producer, epoch, watermark_ns, level)

    def append_raw(
        self,
        payloads: Payloads,
        *,
        slot: str = DEFAULT_SLOT,
        headers: Sequence[Headers | None] | None = None,
        producer: str | None = None,
        epoch: int | None = None,
        watermark_ns: int | None = None,
        level: AckLevel | None = None,
    ) -> Receipt:
        """Append one bundle of events as bytes; they are stored as they are."""
        encoded = encode_raw(slot, payloads, headers, self._config.max_bundle_bytes)
        return self._append([encoded], producer, epoch, watermark_ns, level)

    async def append_async(
        self,
        data: BundleData,
        *,
        producer: str | None = None,
        epoch: int | None = None,
        watermark_ns: int | None = None,
        level: AckLevel | None = None,
    ) -> Receipt:
        """As `append`, awaitable."""
        encoded = encode_arrow(data, self._config.max_bundle_bytes)
        return await self._append_async([encoded], producer, epoch, watermark_ns, level)

    async def append_raw_async(
        self,
        payloads: Payloads,
        *,
        slot: str = DEFAULT_SLOT,
        headers: Sequence[Headers | None] | None = None,
        producer: str | None = None,
        epoch: int | None = None,
        watermark_ns: int | None = None,
        level: AckLevel | None = None,
    ) -> Receipt:
        """As `append_raw`, awaitable."""
        encoded = encode_raw(slot, payloads, headers, self._config.max_bundle_bytes)
        return await self._append_async([encoded], producer, epoch, watermark_ns, level)

    def heartbeat(self, producer: str, watermark_ns: int) -> Receipt:
        """Append a bundle without rows that moves a producer's watermark."""
        return self._append([Encoded(Kind.CONTROL, b"", 0)], producer, None, watermark_ns, None)

    def transaction(self, *, producer: str | None = None, epoch: int | None = None) -> Transaction:
        """Begin a transaction: many bundles, all or none."""

        def write(bundles: list[Encoded]) -> Receipt:
            return self._append(bundles, producer, epoch, None, None)

        check_producer(producer, epoch)
        return Transaction(self._staging, self._config.max_bundle_bytes, write)

    def _append(
        self,
        bundles: list[Encoded],
        producer: str | None,
        epoch: int | None,
        watermark_ns: int | None,
        level: AckLevel | None,
    ) -> Receipt:
        append = self._make_append(bundles, producer, epoch, watermark_ns, level, None)
        clock, timeout_s = self._seam.clock, self._config.append.timeout_s
        deadline_s = clock.monotonic_s() + timeout_s
        self._writer.inbox.put(append, deadline_s)
        return append.wait(deadline_s - clock.monotonic_s())

    async def _append_async(
        self,
        bundles: list[Encoded],
        producer: str | None,
        epoch: int | None,
        watermark_ns: int | None,
        level: AckLevel | None,
    ) -> Receipt:
        loop = asyncio.get_running_loop()
        append = self._make_append(bundles, producer, epoch, watermark_ns, level, loop)
        clock, timeout_s = self._seam.clock, self._config.append.timeout_s
        deadline_s = clock.monotonic_s() + timeout_s
        await self._writer.inbox.put_async(append, deadline_s)
        return await append.wait_async(deadline_s - clock.monotonic_s())

    def _make_append(
        self,
        bundles: list[Encoded],
        producer: str | None,
        epoch: int | None,
        watermark_ns: int | None,
        level: AckLevel | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> Append:
        return Append(
            bundles,
            self._config.append.level if level is None else check_level(level),
            producer,
            check_producer(producer, epoch),
            check_watermark(watermark_ns),
            loop,
        )

    # ------------------------------------------------------------------ reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        slot: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        on_damage: OnDamage = "fail",
    ) -> pa.RecordBatchReader:
        """Return everything stored in a slot, up to the last sync, as a stream of Arrow batches.

        `since` (inclusive) and `until` (exclusive), both with a time zone, bound the event time.
        Damaged batches raise `Damaged`, or are left out with `on_damage="skip"`.
        """
        if on_damage not in ("fail", "skip"):
            raise BadInput(f"on_damage is {on_damage!r}", hint="use 'fail' or 'skip'")
        if columns is not None and (isinstance(columns, str) or not columns):
            raise BadInput(f"columns is {columns!r}", hint="give a list of names, or None for all")
        # The tail first: a buffer sealed in between is then in the catalog as well, and left out.
        tail = self._tail()
        segments = self._catalog.snapshot()
        # By its first bundle: it may have grown between the two looks.
        sealed = {segment.summary.first_seq for segment in segments}
        tables = TableMaker(self._config)
        made = [t for held in tail if held[0].seq not in sealed for t in tables.tables(held)]
        return scan(segments, made, slot, columns, TimeRange.of(since, until), on_damage)

    def bundle(self, seq: int) -> Bundle | None:
        """Return one bundle by its seq, or None if there is none."""
        for held in (one for buffer in self._tail() for one in buffer):
            if held.seq == seq:
                return held_bundle(held)
        segment = self._catalog.find(seq)
        return None if segment is None else segment.bundle(seq)

    def segments(self) -> tuple[Segment, ...]:
        """Return the sealed segments, oldest first."""
        return self._catalog.snapshot()

    def _tail(self) -> Iterator[list[Held]]:
        """Return the synced bundles that are not in segments, oldest first, by buffer."""
        synced_seq = self._writer.synced_seq
        # The open buffer first: if it is handed over meanwhile, it is found again at the sealer.
        open_bundles = self._writer.buffer.bundles[:]
        buffers = {id(buffer.bundles): buffer.bundles[:] for buffer in self._sealer.sealing()}
        lists = list(buffers.values())
        if open_bundles and all(open_bundles[0].seq != held[0].seq for held in lists):
            lists.append(open_bundles)
        visible = ([held for held in bundles if held.seq <= synced_seq] for bundles in lists)
        return (bundles for bundles in visible if bundles)

    # ---------------------------------------------------------------- operating

    def flush(self, timeout_s: float | None = None) -> None:
        """Seal the open buffer now and wait until the segment is durable."""
        done = threading.Event()
        failure: list[HoldfastError] = []

        def finished(error: HoldfastError | None) -> None:
            if error is not None:
                failure.append(error)
            done.set()

        self._writer.flush(finished)
        if not done.wait(timeout_s or self._config.append.timeout_s):
            raise Overloaded(
                "the segment was not sealed in time",
                hint=f"last error of the sealer: {self._sealer.last_error or 'none'}",
            )
        if failure:
            raise failure[0]

    def statistics(self) -> Statistics:
        """Return a picture of this moment."""
        writer, seals, maker = self._writer, self._sealer.counters, self._builder.table_maker
        counters, segments = writer.counters, self._catalog.snapshot()
        return Statistics(
            quiver_id=self.quiver_id,
            next_seq=writer.next_seq,
            synced_seq=writer.synced_seq,
            accepting=not self._closed and writer.failure is None,
            accepted_bundles=writer.accepted.bundles,
            accepted_events=writer.accepted.events,
            appends_total=counters.appends,
            bundles_total=counters.bundles,
            events_total=counters.events,
            payload_bytes_total=counters.payload_bytes,
            groups_total=counters.groups,
            syncs_total=counters.syncs,
            sync_seconds_total=counters.sync_seconds,
            sync_seconds_max=counters.sync_seconds_max,
            write_failures_total=counters.write_failures,
            sync_failures_total=counters.sync_failures,
            seals_total=seals.segments,
            seal_failures_total=seals.failures,
            seal_seconds_total=seals.seconds,
            stall_seconds_total=counters.stall_seconds,
            stall_seconds_max=counters.stall_seconds_max,
            extractor_failures_total=maker.extractor_failures,
            opaque_rows_total=maker.opaque_rows,
            pending_bytes=writer.inbox.pending_bytes,
            staged_bytes=self._staging.staged_bytes,
            open_bundles=len(writer.buffer.bundles),
            open_bytes=writer.buffer.size_bytes,
            sealing_bytes=sum(buffer.size_bytes for buffer in self._sealer.sealing()),
            wal_bytes=writer.wal_bytes,
            wal_files=len(self._sealer.wal_files) + 1,
            segments=len(segments),
            segment_bytes=sum(segment.summary.size_bytes for segment in segments),
            segment_events=sum(segment.summary.events for segment in segments),
            producers=writer.producer_count,
            quarantined_bytes=self._quarantine.used_bytes(),
            last_seal_error=self._sealer.last_error,
        )

    def close(self) -> None:
        """Make everything accepted durable, seal it, and let go of the directory."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._writer.stop()
            self._seam.disk.unlock(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _make_folders(disk: Disk, root: PurePath) -> None:
    """Make the directory, its parents and its folders, durably.

    A folder that is there may still go with the power, if the open that made it was interrupted.
    So all names are synced until there is a FORMAT, which is written after them.
    """
    begun = disk.exists(root / names.FORMAT)
    wanted = [*reversed(root.parents), root, root / names.WAL_DIR, root / names.SEGMENTS_DIR]
    for folder in (folder for folder in wanted if folder.name):
        if not disk.exists(folder):
            disk.make_dir(folder, Point.ROOT_MAKE_DIR)
            disk.sync_dir(folder.parent, Point.ROOT_SYNC_DIR)
        elif not begun:
            with contextlib.suppress(PermissionError):  # then somebody else made it
                disk.sync_dir(folder.parent, Point.ROOT_SYNC_DIR)


def _take_lock(disk: Disk, root: PurePath) -> Handle:
    try:
        return disk.lock(root / names.LOCK, f"process {os.getpid()}")
    except LockHeld as held:
        raise DirectoryLocked(
            f"the directory is in use by {held.owner or 'another process'}",
            hint="a quiver has one owner; stop the other process or use another directory",
            path=str(root),
        ) from None
