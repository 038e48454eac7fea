"""The engine: the parts of a quiver, put together, started and stopped in the right order.

start   folders, lock, recovery of data, recovery of the ledger, the balance of accounts, then the
        threads: writer (append), sealer (segments), keeper (ledger, retention)
stop    detach the readers, stop the keeper, refuse new appends, write and seal what was accepted,
        close the ledger, release the lock

Locks. Whoever holds one may take those to its right, and none to its left:

  Retention._lock → Lease._lock → Ledger.lock → ReadableBundles._lock, Sealer._lock → Catalog._lock

Under all others (inbox, signal, the conditions of keeper and retention) nothing else is taken. The
writer holds no lock while it works, but takes those of retention and ledger to make room: so nobody
waits for the writer (appends, flushes) while holding one of the above. Waiting readers hold none.

The keeper is one thread that syncs the ledger, enforces the bounds, and sweeps. It stops before the
writer does: the last group makes room for itself (`Retention.refusal` runs in the writer's thread),
so nothing that is left to do needs it, and it would only fail against a ledger being closed.

Threads start last. Until then `_start` is single-threaded, so recovery, balance and the first files
need no locks, and an open that fails anywhere has no thread to stop.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import TypeVar

from holdfast.errors import (
    BadInput,
    CannotOpen,
    DirectoryLocked,
    HoldfastError,
    NotAccepted,
    StorageFailed,
)
from holdfast.quiver.base import names
from holdfast.quiver.base.collector import collector_paused
from holdfast.quiver.base.config import QuiverConfig, RetentionConfig
from holdfast.quiver.base.identity import check_machine, refuse_backup
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.engine.balance import (
    proven,
    reconcile,
    spans_of,
    vanished,
    with_known_start,
    write_off_lost,
)
from holdfast.quiver.keep.archiver import make_archiver
from holdfast.quiver.keep.retention import Retention
from holdfast.quiver.keep.trash import Trash
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.ledger.recovery import RecoveredLedger, recover_ledger, refuse_newer
from holdfast.quiver.ledger.subscriber import Resolution
from holdfast.quiver.log.quarantine import Damage
from holdfast.quiver.log.recovery import Recovered, Recovery
from holdfast.quiver.log.reserve import DiskReserve
from holdfast.quiver.log.sealer import Lost, Sealer
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.quiver.log.writer import Writer
from holdfast.quiver.read.attachment import Attachment
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.build import SegmentBuilder
from holdfast.quiver.segments.segment import Catalog, Segment
from holdfast.seam import Seam
from holdfast.seam.clock import Clock
from holdfast.seam.disk import Disk, Handle, LockHeld
from holdfast.seam.process import bind_to_process

log = logging.getLogger("holdfast.quiver")

_FOLDERS = (names.WAL_DIR, names.SEGMENTS_DIR, names.LEDGER_DIR, names.TRASH_DIR)

Attached = TypeVar("Attached", bound=Attachment)


class Engine:
    """Everything behind a `Quiver`."""

    def __init__(
        self, root: PurePath, config: QuiverConfig, seam: Seam, expected_id: str | None
    ) -> None:
        """Open the directory and start; raises with nothing held if that fails."""
        check_caps(config)
        self.root = root
        self.config = config
        self.seam = seam
        self.catalog = Catalog()
        self.reserve = DiskReserve(seam, root, self.catalog)
        self.arrivals = Wakeup()
        self._readers: dict[str, Attachment] = {}
        bind_to_process(self)
        check_machine(root)
        lock = None
        # Before any folder is made: a backup opened by mistake must stay byte for byte what it
        # was.
        refuse_backup(seam.disk, root)
        try:
            _refuse_shared_root(seam.disk, root)
            # Of a quiver that is older than ledgers none is missing.
            self._had_ledger = any(
                seam.disk.exists(root / name) for name in (names.LEDGER_DIR, names.TRASH_DIR)
            )
            make_folders(seam.disk, root, _FOLDERS)
            lock = self._lock = take_lock(seam.disk, root)
            with collector_paused():
                self._start(expected_id)
        except BaseException as error:
            if lock is not None:
                seam.disk.unlock(lock)
            if not isinstance(error, OSError):
                raise
            # Only bare disk errors are translated. Everything of ours already says what to do
            # next, and an interrupt must stay an interrupt.
            raise cannot_open(root, error) from error

    @property
    def clock(self) -> Clock:
        """The quiver's clock."""
        return self.seam.clock

    def _start(self, expected_id: str | None) -> None:
        """Recover, compare the accounts, start the threads; the order is the point.

        Data before ledger: which ids the ledger may carry is known only once the log's identity
        is. The ledger's word on deleted segments before anything is built from the catalog, or a
        segment that a power cut brought back would be served once more. `_begin` before the
        balance: writing off damage needs a ledger and a sequence floor that are on disk. The
        balance before the threads: it compares three counters, and all of them stand still only
        now.
        """
        self.archiver = make_archiver(self.config.segment.archive, self.seam, self.catalog)
        self.reserve.find()
        refuse_newer(self.seam.disk, self.root / names.LEDGER_DIR)
        recovery = Recovery(self.seam, self.root, self.config, self.catalog, self.reserve)
        # A newer program's ledger must stop the open while the directory is still untouched;
        # recovery is the first step that moves or removes anything.
        recovered = recovery.run(expected_id)
        self.quiver_id = recovered.start.quiver_id
        self.recovery = recovery.report
        self.quarantine = recovery.quarantine
        old = recover_ledger(self.seam.disk, self.root / names.LEDGER_DIR, recovery.own_ids)
        deleted = self._leave_out_deleted(old)
        self._clear_ledger(old)
        self._build(recovered, old)
        self._finish_deletions(deleted)
        try:
            self._begin(recovered)
            # First raise `accepted` to what outcomes prove, then write off what is missing from
            # it. The other way round, damage at the end of the log would look like bundles nobody
            # ever accepted.
            self.writer.correct(proven(self.ledger, self.readable, self.writer.accepted))
            spans = spans_of(self.readable)
            self.recovery.damages[:] = [
                with_known_start(damage, spans, old.state) for damage in self.recovery.damages
            ]
            self.written_off: list[Resolution] = reconcile(
                self.ledger,
                self.readable,
                self.writer.accepted,
                self.recovery.damages,
                self.clock.wall_ns(),
            )
            self.recovery.damages += vanished(self.written_off)
            self._tell_damages(old)
            self._doubt_clock(old)
        except BaseException:
            with contextlib.suppress(HoldfastError, OSError):
                self.ledger.close()
            raise
        # Last: whatever interrupts an open gives the directory back.
        self.writer.start()
        self.sealer.start()
        self.keeper.start()
        if self.archiver is not None:
            self.archiver.start()

    def _leave_out_deleted(self, old: RecoveredLedger) -> list[Segment]:
        """Leave out segments that a crash left, or a power cut brought back; return them.

        A removal is recorded in the ledger before the directory is renamed, and a rename that was
        not synced may be undone by a power cut. Either way the ledger has the last word: everyone
        who waited for the segment has an outcome, and serving it again would count it twice.
        """
        deleted = []
        for _, end in old.state.deleted_segments:
            # A number is never used again, or a new segment would be taken for one that came back.
            self.catalog.reserve(end - 1)
        for segment in self.catalog.snapshot():
            if segment.summary.segment_seq in old.state.deleted_segments:
                self.catalog.remove(segment)
                deleted.append(segment)
        return deleted

    def _finish_deletions(self, deleted: Iterable[Segment]) -> None:
        """Remove what the ledger calls deleted, once it says so durably.

        A line that could be read may be nowhere else than in memory: its sync may have failed.
        """
        trash = Trash(self.seam.disk, self.root, self.reserve)
        for segment in deleted if self.ledger.is_begun else ():
            trash.remove(segment.path, segment.disk_bytes)

    def _clear_ledger(self, old: RecoveredLedger) -> None:
        """Remove what was interrupted, and set aside what cannot be read."""
        with contextlib.suppress(OSError):
            for path in old.interrupted:
                self.seam.disk.unlink(path, QuiverPoint.RECOVER_SWEEP)
            for path, _, _ in old.files[-1:]:
                # The last process may have left it unsynced; it stays the account of what it did.
                self.seam.disk.sync_path(path, QuiverPoint.RECOVER_SYNC)
        self.recovery.damages += old.damages
        for path, reason in old.unreadable:
            # Reported even if it cannot be moved: a file that stays is found again at the next
            # start, but whoever opens the quiver must learn now that outcomes are gone.
            damage = Damage(f"{names.LEDGER_DIR}/{path.name}", reason, 0, 0, None, None)
            self.recovery.damages.append(damage)
            with contextlib.suppress(OSError):
                self.quarantine.move(path, damage)

    def _build(self, recovered: Recovered, old: RecoveredLedger) -> None:
        """Make the parts.

        Each knows those made before it, and reaches the later ones by callbacks.
        """
        disk, wal_dir = self.seam.disk, self.root / names.WAL_DIR
        segments_dir = self.root / names.SEGMENTS_DIR
        self.builder = SegmentBuilder(disk, segments_dir, self.quiver_id, self.config)
        self.sealer = Sealer(
            self.seam, self.config, self.builder, self.catalog, wal_dir, self.reserve
        )
        self.sealer.on_sealed = self._sealed
        self.sealer.on_lost = self._write_off
        for file in recovered.wal_files:
            self.sealer.wal_files.add(file)
        # What recovery replayed beyond one buffer is queued ahead of anything new: segments must
        # be sealed in the order of their seqs.
        self.sealer.preload(recovered.backlog)
        self.writer = Writer(
            self.seam, wal_dir, self.config, self.sealer, self.arrivals, self.reserve
        )
        self.readable = ReadableBundles(self.catalog, self.writer, self.sealer.sealing)
        for subscriber in old.state.subscribers.values():
            # Whoever was attached died with the last process; from then until now nobody could be.
            subscriber.absent_since_ns = self.clock.wall_ns()
        # A small quiver gets a small ledger: its history counts against the same cap as the data.
        bounds = self.config.ledger.within(self.config.retention.size_cap_bytes)
        self.ledger = Ledger(self.seam, self.root, self.quiver_id, bounds, old.state, self.reserve)
        self.ledger.start(old.next_number, old.files, old.newest, old.last)
        self.retention = Retention(
            self.seam,
            self.root,
            self.config,
            self.catalog,
            self.readable,
            self.ledger,
            self._leased,
            self._unsealed_bytes,
        )
        self.keeper = Keeper(self.clock, self.config.retention, self.ledger, self.retention)
        if self.archiver is not None:
            self.retention.archiver = self.archiver
            self.archiver.on_archived = self._archived
        for name, last in old.state.producers.items():
            recovered.start.producers.absorb(name, last)
        # Only now may epochs be forgotten by age: recovery ran without a clock, so that a wrong
        # one at boot cannot make every producer's next retry a duplicate.
        recovered.start.producers.now_ns = self.ledger.steady.age_now_ns
        # Writer → Retention → ReadableBundles → Writer is a cycle; this assignment is where it
        # closes. The writer's thread does not run yet, so it never sees None.
        self.writer.room = self.retention

    def _begin(self, recovered: Recovered) -> None:
        """Start the writer; then do what has to wait until there is a newer WAL file."""
        start = recovered.start
        # Should the log be lost: no number that the ledger knows is used again.
        self.writer.begin(replace(start, next_seq=max(start.next_seq, self.ledger.state.floor_seq)))
        # Only now is there a newer file that keeps the sequence floor.
        # None of the three is needed to be correct: what stays is swept by the keeper later, and a
        # disk that cannot be listed or reserved must not keep stored data from being read.
        with contextlib.suppress(OSError):
            self.sealer.wal_files.remove_sealed()
            self.retention.trash.empty()
        if len(self.catalog.snapshot()) <= LOOK_AT_START_MAX:
            with contextlib.suppress(OSError):
                self.retention.look_at_disk()
        else:
            self.keeper.look_soon()
        with contextlib.suppress(OSError):
            self.retention.disk_room.make_reserve()

    def _tell_damages(self, old: RecoveredLedger) -> None:
        """Report what was lost, all of it: in `recovery`, and in the log."""
        # A fresh directory has no ledger either. What tells them apart is that the folder existed
        # before this open and that something was accepted.
        if self._had_ledger and not old.files and self.writer.accepted.bundles:
            lost = "there is no ledger that can be read: subscribers and outcomes are forgotten"
            self.recovery.damages.append(Damage(names.LEDGER_DIR, lost, 0, 0, None, None))
        for damage in self.recovery.damages:
            log.warning("%s: damaged: %s", self.root, damage)
        self.recovery.ledger_torn_bytes = old.torn_bytes
        if old.torn_bytes:
            log.warning(
                "%s: %d bytes at the end of the ledger were not synced when the power went: the "
                "outcomes in them are forgotten, and what they resolved comes again",
                self.root,
                old.torn_bytes,
            )

    def _write_off(self, lost: list[Lost]) -> None:
        """Account for what was sound at the start, and can no longer be read from the log."""
        known = {damage.first_seq for damage in self.recovery.damages}
        for held, reason in lost:
            if held.seq not in known:  # a seal may be tried again
                log.error("%s: bundle %d is lost: %s", self.root, held.seq, reason)
                damage = Damage(names.WAL_DIR, reason, 0, 0, held.seq, held.seq, 1, held.events)
                self.recovery.damages.append(damage)
        # If the ledger cannot be written, the next start does it.
        with contextlib.suppress(StorageFailed):
            write_off_lost(self.ledger, lost, self.clock.wall_ns())

    def _doubt_clock(self, old: RecoveredLedger) -> None:
        """Let nothing expire at once by a clock that may be wrong.

        A machine without a battery-backed clock may boot years ahead, and age limits would then
        remove everything in the first tick. The newest timestamp on disk is the only witness there
        is: a clock far ahead of it is given `clock_grace_s` to be corrected, during which nothing
        expires.
        """
        # From summaries alone: a start looks into no bundle table.
        known = [begun_ns for _, begun_ns, _ in old.files]
        known += [segment.summary.max_ingestion_ns for segment in self.catalog.snapshot()]
        known += [held.ingestion_ns for buffer in self.readable.tail() for held in buffer]
        if not known:
            return
        grace_s = self.config.retention.clock_grace_s
        self.ledger.steady.doubt(max(known), grace_s)
        if self.ledger.steady.doubted_s and self.retention.has_age_limits:
            log.warning(
                "%s: the clock is %.1f hours ahead of everything stored. Nothing expires by it for "
                "%.0f s (retention.clock_grace_s): if it is wrong, set it now",
                self.root,
                (self.clock.wall_ns() - max(known)) / 3.6e12,
                grace_s,
            )

    def stop(self) -> None:
        """Make everything accepted durable, seal it, and let go of the directory."""
        # Last step first; each is taken whatever becomes of the others.
        with contextlib.ExitStack() as steps:
            steps.callback(self.seam.disk.unlock, self._lock)
            # After the ledger is closed, so that a reader that wakes up finds the final state and
            # raises instead of going back to sleep.
            steps.callback(self.arrivals.notify)
            steps.callback(self._close_ledger)
            self._stop_threads(steps)
            for reader in self._readers.values():
                steps.callback(reader.close)

    def _stop_threads(self, steps: contextlib.ExitStack) -> None:
        if self.archiver is not None:
            # After the last seal: nothing that it removes makes room for that.
            steps.callback(self.archiver.close)
        steps.callback(self.writer.stop)
        steps.callback(self.keeper.close)

    def _close_ledger(self) -> None:
        """Note who is absent and that the ledger ends here.

        Neither is worth failing a close for.
        """
        with contextlib.suppress(HoldfastError):
            self.retention.orphans.note_all()
            # This line says that all before it were synced: a hole among them is damage.
            self.ledger.sync()
            self.ledger.change("closed")
        with contextlib.suppress(HoldfastError):
            self.ledger.close()

    # ------------------------------------------------------------------ readers

    def freed(self) -> None:
        """Something was resolved: data may go, and whoever waits for room may look again."""
        self.keeper.freed()
        self.retention.notify_freed()

    def let_go(self) -> None:
        """Remove what nobody waits for any more, if the disk lets us."""
        with contextlib.suppress(HoldfastError, OSError):
            self.retention.enforce(0)

    def _sealed(self) -> None:
        self.arrivals.notify()
        if self.archiver is not None:
            self.archiver.wake()

    def _archived(self) -> None:
        """A segment may go that nobody here needs."""
        self.keeper.freed()
        self.keeper.wake()

    def seal_soon(self) -> None:
        """Somebody waits for sealed data; see `Retention.earliest_seal_s`."""
        with contextlib.suppress(NotAccepted):  # it is closing, or failed: nothing will be sealed
            self.writer.seal_soon()

    def attached(self, reader: Attached) -> Attached:
        """Remember a reader: retention leaves alone what it has in hand, and `stop` closes it."""
        self._readers[reader.name] = reader
        return reader

    def _leased(self, name: str) -> Collection[int]:
        reader = self._readers.get(name)
        return reader.leased() if reader is not None else ()

    def _unsealed_bytes(self) -> tuple[int, int]:
        """Return the bytes of all WAL files, and of the buffers that still have to become segments.

        Two figures because the same bundles are on disk once already (the WAL) and will need room
        a second time (the segment); retention budgets for both.
        """
        sealing = sum(buffer.size_bytes for buffer in self.sealer.sealing())
        return self.writer.wal_bytes, sealing + self.writer.buffer.size_bytes


def check_caps(config: QuiverConfig) -> None:
    """Refuse a cap in which the quiver could not work."""
    # A full buffer occupies its WAL and needs as much again to be sealed, beside the reserve (up
    # to a quarter of the cap). The fourth is for what readers still hold.
    smallest = 4 * config.segment.target_size_bytes
    if config.retention.size_cap_bytes < smallest:
        raise BadInput(
            f"the size cap is {config.retention.size_cap_bytes} bytes, less than four segments "
            f"({smallest} bytes)",
            hint="raise the cap, or make segments smaller (1 MB is the least)",
        )


def _refuse_shared_root(disk: Disk, root: PurePath) -> None:
    """Refuse a directory in which each worker has a quiver of its own, one folder per core.

    Opened as one quiver it would get a log and a ledger beside those folders and look empty.
    """
    if disk.exists(root / names.core_dir(0) / names.FORMAT):
        raise CannotOpen(
            "the directory is a root of several quivers, not one itself",
            hint="open it with Cores.open, or open one of the folders in it",
            path=str(root),
        )


def cannot_open(root: PurePath, error: OSError) -> CannotOpen:
    """Return the error for a directory that the disk does not let us open."""
    return CannotOpen(
        f"the data directory cannot be opened: {error.strerror}",
        hint="check that the disk is mounted, writable and not full",
        path=str(root),
    )


def make_folders(disk: Disk, root: PurePath, inside: Iterable[str]) -> None:
    """Make the directory, its parents and the folders inside it, durably.

    A folder that is there may still go with the power, if the open that made it was interrupted.
    So all names are synced until there is a FORMAT, which is written after them.
    """
    begun = disk.exists(root / names.FORMAT)
    wanted = [*reversed(root.parents), root, *(root / name for name in inside)]
    for folder in (folder for folder in wanted if folder.name):
        if not disk.exists(folder):
            disk.make_dir(folder, QuiverPoint.ROOT_MAKE_DIR)
            disk.sync_dir(folder.parent, QuiverPoint.ROOT_SYNC_DIR)
        elif not begun:
            with contextlib.suppress(PermissionError):  # then somebody else made it
                disk.sync_dir(folder.parent, QuiverPoint.ROOT_SYNC_DIR)


def take_lock(disk: Disk, root: PurePath) -> Handle:
    """Own a directory, as long as this process lives."""
    try:
        return disk.lock(root / names.LOCK, f"process {os.getpid()}")
    except LockHeld as held:
        raise DirectoryLocked(
            f"the directory is in use by {held.owner or 'another process'}",
            hint="a quiver has one owner; stop the other process or use another directory",
            path=str(root),
        ) from None


# How often the account of used bytes is compared with the disk.
LOOK_EVERY_S = 30.0
# With more segments a start leaves that to the keeper's first tick, because each of their files is
# looked at. Until then the account by manifests has to do, which is good to a few blocks for each.
LOOK_AT_START_MAX = 10_000
# After something was resolved it looks at once, which takes time in proportion to the segments; and
# then not again before so many times that long, so that it never takes more than a tenth.
RESTS_PER_TICK = 9


class Keeper:
    """Does what is due by time. What fails is logged, and tried again at the next tick."""

    def __init__(
        self, clock: Clock, config: RetentionConfig, ledger: Ledger, retention: Retention
    ) -> None:
        self.last_error: str | None = None
        self._clock = clock
        self._config = config
        self._ledger = ledger
        self._retention = retention
        self._condition = threading.Condition()
        self._resolved = False
        self._closing = False
        self._looked_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name="quiver-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._ledger.on_dirty = self.wake
        self._thread.start()

    def look_soon(self) -> None:
        """Compare the account with the disk at the first tick."""
        self._looked_s = -math.inf

    def wake(self) -> None:
        """Look at the clock again: something may be due earlier than it was."""
        with self._condition:
            self._condition.notify_all()

    def freed(self) -> None:
        """Something was resolved: segments may go at the next opportunity."""
        self._resolved = True

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:
            self.last_error = f"the keeper ended: {type(error).__name__}: {error}"

    def _keep(self) -> None:
        """Sync the ledger and tick when that is due.

        A tick comes by the clock, or sooner if something was resolved.
        """
        next_tick_s = self._clock.monotonic_s() + self._config.tick_s
        rested_s = -math.inf
        while True:
            with self._condition:
                if self._closing:
                    return
                due_s = self._ledger.seconds_until_due()
                tick_s = min(next_tick_s, rested_s) if self._resolved else next_tick_s
                patience_s = max(0.0, tick_s - self._clock.monotonic_s())
                # `freed` sets a flag and does not wake this thread. An outcome comes with a line
                # in the ledger, so this wait ends at the latest when that line is due to be
                # synced; a burst of acknowledgements costs one wake-up, not one each.
                self._condition.wait(patience_s if due_s is None else min(due_s, patience_s))
            now_s = self._clock.monotonic_s()
            self._try(self._ledger.sync_if_due)
            if now_s >= (min(next_tick_s, rested_s) if self._resolved else next_tick_s):
                self._resolved = False
                next_tick_s = now_s + self._config.tick_s
                self._try(self._tick)
                ended_s = self._clock.monotonic_s()
                rested_s = ended_s + RESTS_PER_TICK * (ended_s - now_s)

    def _try(self, work: Callable[[], None]) -> None:
        """Do some work; whatever happens, the keeper goes on, because nobody else does it."""
        try:
            work()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            # A disk that stays full fails every tick; the log says so once, `last_error` always.
            if failure != self.last_error:
                log.warning("the keeper failed and will try again: %s", failure)
            self.last_error = failure

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._retention.look_at_disk()
        self._retention.tick()
