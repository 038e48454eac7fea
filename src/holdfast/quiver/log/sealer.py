"""The sealer: one thread that turns a handed-over buffer into a segment.

It takes one buffer at a time (only recovery may leave it more). A seal that fails keeps its data
(in memory, and in the WAL, which is not truncated past it) and is tried again after a pause that
doubles. Only when the segment is durable under its final name does it become visible, and only then
does its WAL go.

While a seal is retried the buffer stays readable from memory, so readers notice nothing. One
thread, in order, is part of the design: WAL files go up to the last seq that is sealed, so a
segment that became durable before an older one would take the older one's log with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePath

from holdfast.errors import HoldfastError, Overloaded, StorageFailed
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.held_bundle import HeldBundle, Unread, in_memory
from holdfast.quiver.log.reserve import DiskReserve, ReserveShare
from holdfast.quiver.log.wal import ClosedWalFiles
from holdfast.quiver.log.writer_state import OpenBuffer
from holdfast.quiver.segments.build import SegmentBuilder
from holdfast.quiver.segments.segment import Catalog, Segment
from holdfast.seam import Seam

# A bundle that is lost, and why.
Lost = tuple[HeldBundle, str]


@dataclass
class SealCounters:
    """What the sealer did so far. Written by its thread only."""

    segments: int = 0
    failures: int = 0
    seconds: float = 0.0


class Sealer:
    """Seals one buffer at a time."""

    def __init__(
        self,
        seam: Seam,
        config: QuiverConfig,
        builder: SegmentBuilder,
        catalog: Catalog,
        wal_dir: PurePath,
        reserve: DiskReserve,
    ) -> None:
        self.counters = SealCounters()
        self.last_error: str | None = None
        # Called when a segment became visible.
        self.on_sealed: Callable[[], None] = lambda: None
        # Called, before they go, with bundles that can no longer be read from the WAL.
        self.on_lost: Callable[[list[Lost]], None] = lambda _: None
        bound_bytes = min(config.wal.max_size_bytes, config.retention.size_cap_bytes)
        self.wal_files = ClosedWalFiles(seam.disk, wal_dir, config.wal.spare_files, bound_bytes)
        reserve.on_full = self.wal_files.spares.give_up
        self._wal_dir = wal_dir
        self._clock = seam.clock
        self._config = config.segment
        self._builder = builder
        self._reserve = reserve
        self._catalog = catalog
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[OpenBuffer] = deque()
        self._closing = False
        self._died_of: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="quiver-sealer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_free(self) -> bool:
        """Whether it would take a buffer now. Only the writer gives it any."""
        with self._lock:
            self._require_alive()
            return not self._queue

    def take(self, buffer: OpenBuffer) -> None:
        """Seal a buffer; its WAL file was left before, so that it can go with the segment."""
        with self._lock:
            self._require_alive()
            self._queue.append(buffer)
            self._changed.notify_all()

    def _require_alive(self) -> None:
        # Raised in the writer's thread, which then fails all appends: a quiver that cannot seal
        # would fill its log and stop anyway, later and without a reason.
        if self._died_of is not None:
            raise self._died_of

    def preload(self, buffers: Iterable[OpenBuffer]) -> None:
        """Take the buffers that recovery filled, before `start`; they are sealed first."""
        self._queue.extend(buffers)

    def sealing(self) -> tuple[OpenBuffer, ...]:
        """Return the buffers whose bundles are not in the catalog yet, oldest first."""
        with self._lock:
            return tuple(self._queue)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait for the current seal, at most `timeout_s`; return whether there was none."""
        with self._lock:
            # Read before the wait: the caller wants to know whether it is a seal that it waits for.
            was_idle = not self._queue
            if not was_idle:
                self._changed.wait(timeout_s)
            return was_idle

    def overloaded(self) -> Overloaded:
        """Return the error for appends that waited for a seal until their time-out."""
        return Overloaded(
            "two segments wait to be sealed (2 x segment.target_size_bytes), "
            "or the write-ahead log is at wal.max_size_bytes",
            hint=f"sealing is too slow or fails: {self.last_error or 'no error'}",
            path=str(self._wal_dir),
            retry_after_s=1.0,
        )

    def call_when_idle(self, done: Callable[[HoldfastError | None], None]) -> None:
        """Call `done` when what is being sealed now is durable, or cannot be."""
        with self._lock:
            dead = self._died_of is not None
            if self._queue and not dead:
                self._queue[-1].on_sealed.append(done)
                return
        done(self._not_sealed() if dead else None)

    def close(self, last: OpenBuffer | None) -> None:
        """Finish the current seal (one more try), seal `last`, and end the thread."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if last is not None:
            self._queue.append(last)
        if self._died_of is None:
            self._drain()
        self._answer_the_rest()

    # ------------------------------------------------------------------ thread

    def _run(self) -> None:
        """Seal what is queued until the quiver closes.

        What ends this thread is raised in the writer's.
        """
        try:
            while True:
                with self._lock:
                    while not self._queue and not self._closing:
                        self._changed.wait()
                    if self._closing:
                        return
                self._seal_with_retries()
        except BaseException as error:
            with self._lock:
                self._died_of = error
                self._changed.notify_all()
            self._answer_the_rest()

    def _drain(self) -> None:
        """Seal what is left, in the closing thread, and keep no spare file of the log.

        Whatever fails stays in the WAL.
        """
        try:
            self.wal_files.spares.end()
            while self._queue:
                self._seal_oldest()
        except OSError as error:
            self._failed(error)
        except BaseException as error:
            self._died_of = error

    def _seal_with_retries(self) -> None:
        """Seal the oldest buffer, however often that takes: none behind it may be sealed first."""
        pause_s = self._config.retry_min_s
        while True:
            try:
                self._seal_oldest()
            except OSError as error:
                self._failed(error)
                with self._lock:
                    if self._closing:
                        return
                    self._changed.wait(pause_s)
                pause_s = min(2 * pause_s, self._config.retry_max_s)
            else:
                return

    def _seal_oldest(self) -> None:
        """Seal a buffer; nothing points to it afterwards, nor keeps its WAL files open."""
        sealed_through = self._seal(self._queue[0])
        try:
            self.wal_files.remove_sealed(sealed_through)
        except OSError as error:
            self.last_error = str(error)  # only space is at stake; tried again with the next seal

    def _seal(self, buffer: OpenBuffer) -> int:
        """Make a segment of a buffer; return its last seq."""
        started_s = self._clock.monotonic_s()
        segment = self._build(buffer)
        with self._lock:
            # Together, so that a reader who asks the sealer first and the catalog second misses
            # nothing.
            if segment is not None:
                self._catalog.add(segment)
            self._queue.popleft()
            self._changed.notify_all()
        self.counters.segments += segment is not None
        self.counters.seconds += self._clock.monotonic_s() - started_s
        # Outside the lock: callbacks answer appends and may ask the sealer for the next buffer.
        self._answer(buffer, None)
        self.on_sealed()
        return buffer.last_seq

    def _build(self, buffer: OpenBuffer) -> Segment | None:
        """Make a segment of what can be read, if anything can."""
        bundles, lost = buffer.bundles, list[Lost]()
        # Bundles from recovery are still in their WAL files. Anything unreadable by now was sound
        # at the start, and is written off one by one; the segment is made of the rest.
        if any(isinstance(held.payload, Unread) for held in bundles):
            bundles = in_memory(bundles, lambda held, damage: lost.append((held, str(damage))))
        if lost:
            self.on_lost(lost)
        if not bundles:
            return None
        return self._reserve.lend(
            ReserveShare.SEGMENT,
            lambda: self._builder.build(bundles, self._catalog.next_segment_seq()),
        )

    def _failed(self, error: OSError) -> None:
        self.counters.failures += 1
        self.last_error = str(error)

    def _answer(self, buffer: OpenBuffer, error: HoldfastError | None) -> None:
        callbacks, buffer.on_sealed = buffer.on_sealed, []
        for callback in callbacks:
            callback(error)

    def _answer_the_rest(self) -> None:
        for buffer in self._queue:
            self._answer(buffer, self._not_sealed())

    def _not_sealed(self) -> StorageFailed:
        """Return the error for appends and flushes whose segment does not come any more."""
        if self._died_of is None:
            reason = f"the quiver closed before the segment was sealed: {self.last_error}"
        else:
            reason = f"the sealer ended: {type(self._died_of).__name__}: {self._died_of}"
        return StorageFailed(
            reason,
            hint="the bundles are in the write-ahead log; open the quiver again to seal them",
            stored="maybe",
        )
