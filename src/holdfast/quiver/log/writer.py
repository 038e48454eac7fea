"""The writer: one thread that turns waiting appends into durable frames.

Group commit needs no timer here. While one group is being synced the next appends gather in the
inbox; the moment the sync ends they are all taken, written with one vectored write and made durable
with one sync. An idle quiver answers in one sync, a loaded one shares it among everyone who waits.

The four steps of a group, and what a failure in each means:

    1. number    sequence numbers and epochs. A number is given once, also if the group fails.
    2. write     On an error the half-written group is cut off again, durably: the appends were
                 certainly not stored. If even that fails, the file is left behind ("poisoned").
    3. sync      On an error nobody knows what reached the disk, and the kernel may forget that it
                 failed. So the file is poisoned: never synced, never appended to again.
                 A poisoned file counts up to its last good sync (wal.py), and the next one begins
                 with copies of all frames not known to be durable, under their old numbers. If it
                 cannot be made, the writer stops accepting.
    4. publish   into the open buffer, then answer.

Data acknowledged before its sync (`memory`, `written`) is synced by timer, at the latest
`wal.flush_interval_s` after it was written. Appends acknowledged in memory whose write failed are
carried into the next group; until they are written nothing more is acknowledged in memory.

The open buffer is handed to the sealer when it is full or old. Memory holds two buffers, one open
and one being sealed; when both are full the writer waits, and producers with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from holdfast.errors import DiskFull, HoldfastError, NotAccepted, StorageFailed
from holdfast.quiver.base import names
from holdfast.quiver.base.config import AckLevel, QuiverConfig
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.group import Numbered, Numbering, answers_from_memory, last_append, parts
from holdfast.quiver.log.inbox import (
    Answered,
    Append,
    Inbox,
    Receipt,
    WriterRequest,
    answer,
    answer_when_sealed,
    ended_error,
)
from holdfast.quiver.log.reserve import DiskReserve, ReserveShare
from holdfast.quiver.log.sealer import Sealer
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.quiver.log.wal import SEQ_BLOCK, WalFile, WalHeader, new_salt, write_error
from holdfast.quiver.log.writer_state import OpenBuffer, Room, WriterCounters, WriterStart
from holdfast.seam import Seam
from holdfast.seam.disk import DISK_IS_FULL

# A clean shutdown waits this long for a sealer that is busy or failing; the WAL keeps the rest.
CLOSING_PATIENCE_S = 10.0
# Appends acknowledged in memory whose write failed are tried again with the next append, or then.
CARRIED_RETRY_S = 0.5
# How often a writer without room looks again.
POLL_S = 0.1


class Writer:
    """Owns the WAL and the open buffer."""

    def __init__(
        self,
        seam: Seam,
        wal_dir: PurePath,
        config: QuiverConfig,
        sealer: Sealer,
        arrivals: Wakeup,
        reserve: DiskReserve,
    ) -> None:
        self.counters = WriterCounters()
        self.inbox = Inbox(config.append.max_pending_bytes, seam.clock)
        self.buffer = OpenBuffer(seam.clock.monotonic_s())
        # Everything up to this seq is on stable storage; readers see no further.
        self.synced_seq = -1
        # What the quiver ever accepted, and the seq up to which that counts: set together.
        self.accepted = NOTHING
        self.published = (-1, NOTHING)
        self.failure: NotAccepted | None = None
        self._disk = seam.disk
        self._clock = seam.clock
        self._randomness = seam.randomness
        self._wal_dir = wal_dir
        self._config = config
        self._sealer = sealer
        self._arrivals = arrivals
        self._reserve = reserve
        self._fresh_data = False
        self.room: Room | None = None  # who says whether there is room; set before `start`
        self._wal: WalFile | None = None
        # Whether a successor was tried: then this file takes no more.
        self._wal_is_left = False
        self._unsynced: list[Numbered] = []
        self._carried: list[Numbered] = []
        self._sync_due_s: float | None = None
        self._stopping = False
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quiver-writer", daemon=True)

    def begin(self, start: WriterStart) -> None:
        """Begin where recovery ended.

        The first WAL file is created here, so that a disk which cannot be written is known at open.
        On a full one that may have to wait.
        """
        self._start: WriterStart | None = start
        self._quiver_id = start.quiver_id
        self._producers = start.producers
        # The number the next bundle gets.
        self.next_seq = start.next_seq
        self._next_wal_number = start.next_wal_number
        self.accepted = start.accepted
        self.published = (start.next_seq - 1, start.accepted)
        self.buffer = start.buffer
        self.synced_seq = start.next_seq - 1
        self._sealer.wal_files.newest_stays = True
        try:
            self._make_first_file(start)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            self.counters.write_failures += 1

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _make_first_file(self, start: WriterStart) -> None:
        """Make the first file; on a full disk without copies, which may be large."""
        self._previous = start.previous
        try:
            self._rotate(start.copied, [held for bundles in start.copied for held in bundles])
        except OSError as error:
            if error.errno not in DISK_IS_FULL or start.trusted is None:
                raise
            number, _, _ = start.previous
            self._disk.sync_path(self._wal_dir / names.wal_file(number), QuiverPoint.RECOVER_SYNC)
            self._previous = number, *start.trusted
            self._rotate()

    # ----------------------------------------------------------- other threads

    def flush(self, done: Callable[[HoldfastError | None], None]) -> None:
        """Seal the open buffer and call `done` when it is durable, or cannot be."""
        self.inbox.request(lambda: self._flush(done))

    def seal_soon(self) -> None:
        """Seal the open buffer soon: a reader waits for it."""
        if self.buffer.bundles and not self.buffer.is_wanted:
            self.buffer.is_wanted = True
            self.inbox.request(lambda: None)  # so that the writer looks at its timers again

    def stop(self) -> None:
        """Write, sync and hand over everything accepted, then end the thread."""
        self._stopping = True
        self.inbox.close()
        if self._thread.is_alive():
            self._thread.join()

    def correct(self, accepted: Totals) -> None:
        """Count what others prove to have been accepted; before anything is appended."""
        self.accepted = accepted
        self.published = (self.published[0], accepted)

    @property
    def producer_count(self) -> int:
        """How many producers are remembered."""
        return len(self._producers)

    @property
    def wal_bytes(self) -> int:
        """Bytes of all WAL files."""
        return self._sealer.wal_files.size_bytes + (self._wal.size_bytes if self._wal else 0)

    # ------------------------------------------------------------------ thread

    def _run(self) -> None:
        # What was taken from the inbox, and is not done.
        items: deque[Append | WriterRequest] = deque()
        try:
            while True:
                items.extend(self.inbox.take(self._config.wal.max_group_bytes, self._patience_s()))
                if self._stopping and not items:
                    break
                appends = [item for item in items if isinstance(item, Append)]
                if appends or self._carried:
                    groups, has_room = parts(appends, self.room)
                    for group in groups:
                        self._commit(group, has_room=has_room)
                while items:
                    item = items.popleft()
                    if not isinstance(item, Append):
                        item.run()
                self._on_time()
                self._announce()
            self._finish()
        except BaseException as error:
            self._die(error, items)

    def _announce(self) -> None:
        """Wake the readers once per group, when what was synced is in the open buffer."""
        if self._fresh_data:
            self._fresh_data = False
            self._arrivals.notify()

    def _patience_s(self) -> float | None:
        """Return how long the inbox may stay empty before a timer is due."""
        if self._stopping:
            return 0.0
        now_s = self._clock.monotonic_s()
        due = [] if self._sync_due_s is None else [self._sync_due_s]
        if self.buffer.bundles:
            due.append(self.buffer.look_s(self._config.segment, self.room, now_s))
        if self._carried and self.failure is None:
            due.append(now_s + CARRIED_RETRY_S)
        return max(0.0, min(due) - now_s) if due else None

    def _on_time(self) -> None:
        """Do what is due by timer or by size."""
        if self.failure is not None:
            self._sync_due_s = None
            self.buffer.opened_at_s = self._clock.monotonic_s()
            return
        now_s, segment = self._clock.monotonic_s(), self._config.segment
        try:
            if self._sync_due_s is not None and now_s >= self._sync_due_s:
                self._sync_or_rescue()
            full = self.buffer.size_bytes >= segment.target_size_bytes
            old = self.buffer.is_due(segment, self.room, now_s)
            if self.buffer.bundles and (full or old) and not self._hand_over() and old:
                # The sealer is busy: look again after another period, not in a hot loop.
                self.buffer.opened_at_s = now_s
        except NotAccepted:
            assert self.failure is not None, "BUG: only a failed rescue may end here"

    # ------------------------------------------------------------------- group

    def _commit(self, appends: list[Append], *, has_room: bool = False) -> None:
        group: list[Numbered] = []
        answers: list[Answered] = []
        owed: list[Append] = appends
        size_bytes = sum([append.size_bytes for append in appends])
        try:
            # Before any append is claimed: whoever gives up while we wait was not stored.
            self._make_room(size_bytes, has_room=has_room)
            carried = self._carried
            numbering = Numbering(
                self._quiver_id, self._producers, self.next_seq, self._clock.wall_ns(), carried
            )
            for append in appends:
                numbering.take(append)
            self.next_seq = numbering.next_seq
            answers = numbering.refused
            group, self._carried = carried + numbering.numbered, []
            answers += self._answer_repeats(numbering.repeated)
            owed = [append for item in group for append in item.appends]
            if group:
                # While some are carried nothing is acknowledged before it is written, so that no
                # more than one group ever is.
                answers += self._store(group, early=not carried)
        except NotAccepted as error:
            self._carry(group)
            # Whoever was acknowledged in memory keeps that answer.
            answers += [(append, error) for append in owed]
            if isinstance(error, DiskFull) and self.room is not None:
                self.room.refused(size_bytes)
        except BaseException as error:
            answers += [(append, error) for append in owed]
            raise
        finally:
            self.inbox.written(size_bytes)
            answer(answers)

    def _answer_repeats(self, repeated: list[tuple[Append, Receipt]]) -> list[Answered]:
        """Return the receipts of the first time, once they hold at the level asked for now."""
        answers: list[Answered] = []
        for append, receipt in repeated:
            last_seq = receipt.seq + receipt.bundles - 1
            if append.level >= AckLevel.FSYNCED and last_seq > self.synced_seq:
                self._sync_or_rescue()
            if append.level is not AckLevel.SEGMENT:
                answers.append((append, receipt))
            elif self.buffer.bundles and last_seq >= self.buffer.first_seq:
                self.buffer.on_sealed.append(answer_when_sealed([(append, receipt)]))
            else:
                self._sealer.call_when_idle(answer_when_sealed([(append, receipt)]))
        return answers

    def _store(self, group: list[Numbered], *, early: bool) -> list[Answered]:
        """Write, sync as needed, publish; return the answers that are due now."""
        wal = self._wal_for(sum(len(held.payload) for item in group for held in item.held))
        levels = [append.level for item in group for append in item.appends]
        if early and AckLevel.MEMORY in levels:
            answer(answers_from_memory(self._quiver_id, group))
        self._write(wal, group)
        self._unsynced += group
        self.counters.groups += 1
        if max(levels) >= AckLevel.FSYNCED:
            self._sync_or_rescue()
        elif self._sync_due_s is None:
            self._sync_due_s = self._clock.monotonic_s() + self._config.wal.flush_interval_s
        return self._publish(group)

    def _publish(self, group: list[Numbered]) -> list[Answered]:
        if not self.buffer.bundles:
            self.buffer.opened_at_s = self._clock.monotonic_s()
        bundles = [held for item in group for held in item.held]
        self.buffer.add(*bundles)
        events = self.counters.count(len(group), bundles)
        self.accepted = self.accepted.plus(len(bundles), events)
        due: list[Answered] = []
        patient: list[Answered] = []
        for item in group:
            item.published = True
            first = item.appends[0]
            if first.producer is not None and first.epoch:
                self._producers.record(first.producer, last_append(item))
            for append in item.appends:
                target = patient if append.level is AckLevel.SEGMENT else due
                target.append((append, item.receipt(self._quiver_id, append)))
        if patient:
            self.buffer.on_sealed.append(answer_when_sealed(patient))
        self.published = (bundles[-1].seq, self.accepted)
        return due

    def _carry(self, group: list[Numbered]) -> None:
        """Keep what was acknowledged in memory for the next group."""
        for item in group:
            if item.append.outcome is not None:
                del item.appends[1:]
                self._carried.append(item)

    # -------------------------------------------------------------------- disk

    def _write(self, wal: WalFile, group: list[Numbered]) -> None:
        while True:
            try:
                return wal.write(group)
            except OSError as error:
                self._undo(wal)
                full = error.errno in DISK_IS_FULL and self._wal is wal
                if not full or self.room is None or not self.room.make_room():
                    self.counters.write_failures += 1
                    raise write_error(error, self._wal_dir) from error

    def _undo(self, wal: WalFile) -> None:
        """Cut a failed group off again, or leave the file behind: either way it is gone."""
        try:
            wal.undo()
        except OSError:
            self._rescue()
        self._all_synced()

    def _wal_for(self, payload_bytes: int) -> WalFile:
        """Return a file with room for a group, a new one if need be."""
        if self.failure is not None:
            raise self.failure.for_later()
        wal = self._wal
        if wal is not None and not self._wal_is_left:
            full = wal.last_seq >= 0 and wal.end + payload_bytes > self._config.wal.file_size_bytes
            if not full and self.next_seq <= wal.header.seq_limit:
                return wal
            if wal.end > wal.synced:
                self._sync_or_rescue(QuiverPoint.WAL_ROTATE_SYNC)
        try:
            self._make_first_file(self._start) if self._start else self._rotate()
        except OSError as error:
            self.counters.write_failures += 1
            raise write_error(error, self._wal_dir) from error
        assert self._wal is not None
        return self._wal

    def _rotate(
        self, copied: Sequence[list[HeldBundle]] = (), counted: Sequence[HeldBundle] = ()
    ) -> None:
        """Leave the current file, which is synced or poisoned, and begin the next with copies.

        `counted` are those of the copies that were counted as accepted.
        """
        self._wal_is_left, files = True, self._sealer.wal_files
        number, self._next_wal_number = self._next_wal_number, self._next_wal_number + 1
        header = WalHeader(
            quiver_id=self._quiver_id,
            number=number,
            salt=new_salt(self._randomness),
            seq_limit=self.next_seq + SEQ_BLOCK,
            previous_number=self._wal.header.number if self._wal else self._previous[0],
            previous_synced=self._wal.synced if self._wal else self._previous[1],
            previous_holds=self._wal.synced_holds if self._wal else self._previous[2],
            accepted_before=self.accepted.plus(-len(counted), -sum(h.events for h in counted)),
            created_ns=self._clock.wall_ns(),
        )
        fresh = self._reserve.lend(
            ReserveShare.HEADERS,
            lambda: WalFile(self._disk, self._wal_dir, header, copied, files.spares),
        )
        if self._wal is not None:
            self._wal.close()
            files.add(self._wal.closed())
        self._wal, self._wal_is_left, self._start = fresh, False, None
        files.newest_stays = False

    def _sync_or_rescue(self, at: QuiverPoint = QuiverPoint.WAL_SYNC) -> None:
        wal = self._wal
        assert wal is not None
        started_s = self._clock.monotonic_s()
        try:
            wal.sync(at)
        except OSError:
            self.counters.sync_failures += 1
            self._rescue()
        self._all_synced()
        self.counters.synced(self._clock.monotonic_s() - started_s)

    def _all_synced(self) -> None:
        if self._unsynced:
            self.synced_seq = self._unsynced[-1].held[-1].seq
            self._unsynced = []
            self._fresh_data = True
        self._sync_due_s = None

    def _rescue(self) -> None:
        """Begin a file with all that is not known to be durable, not a spare; or stop accepting."""
        self._sealer.wal_files.spares.give_up()
        try:
            self._rotate(
                [item.held for item in self._unsynced],
                [held for item in self._unsynced if item.published for held in item.held],
            )
        except OSError as error:
            failure = StorageFailed(
                f"the write-ahead log failed, and so did a new file: {error.strerror}",
                hint="check the disk, then open the quiver again; nothing acknowledged is affected",
                path=str(self._wal_dir),
                stored="maybe",
            )
            self._fail(failure)
            raise failure from error

    def _fail(self, failure: NotAccepted) -> None:
        """Stop accepting; nothing of the open buffer will be sealed by this process."""
        self.failure = failure
        callbacks, self.buffer.on_sealed = self.buffer.on_sealed, []
        for callback in callbacks:
            callback(failure)

    # ----------------------------------------------------------------- sealing

    def _make_room(self, size_bytes: int, *, has_room: bool) -> None:
        """Wait while both buffers are full, the WAL is at its cap, or the quiver is.

        `has_room`: the quiver was asked a moment ago.
        """
        if self.failure is not None:
            return
        if self.buffer.size_bytes >= self._config.segment.target_size_bytes:
            self._wait_for_sealer(self._hand_over)
            has_room = False
        if self.wal_bytes >= self._config.wal.max_size_bytes:
            self._wait_for_sealer(self._wal_has_room)
            has_room = False
        if size_bytes and self.room is not None and not has_room:
            self._wait_for_room(self.room, size_bytes)

    def _wal_has_room(self) -> bool:
        if not self.buffer.bundles and self._wal is not None and self._wal.last_seq >= 0:
            self._end_wal_file()  # it was kept in use only because this failed before
        self._reserve.give_up_spares()
        with contextlib.suppress(OSError):
            self._sealer.wal_files.remove_sealed()
        return self.wal_bytes < self._config.wal.max_size_bytes or self._hand_over()

    def _wait_for_room(self, room: Room, size_bytes: int) -> None:
        if (refusal := room.refusal(size_bytes)) is None:
            return
        patience_s = 0.0 if self._stopping else self._config.append.timeout_s / 2
        room.throttled()
        with self.counters.blocked(self._clock) as started_s:
            while refusal is not None:
                if self._clock.monotonic_s() - started_s >= patience_s or self._stopping:
                    raise refusal
                # What is only in the open buffer cannot be dropped or deleted: seal it.
                self._hand_over()
                self._announce()
                room.wait_freed(0.05)
                self._on_time()
                refusal = room.refusal(size_bytes)

    def _wait_for_sealer(self, satisfied: Callable[[], bool]) -> None:
        if satisfied():
            return
        patience_s = CLOSING_PATIENCE_S if self._stopping else self._config.append.timeout_s
        was_idle = False
        with self.counters.blocked(self._clock) as started_s:
            while not satisfied():
                if self._clock.monotonic_s() - started_s > patience_s:
                    raise self._sealer.overloaded()
                is_idle = self._sealer.wait_idle(POLL_S)
                if is_idle and was_idle:
                    self._pause.wait(POLL_S)  # it is the disk that we wait for, not the sealer
                was_idle = is_idle
        self.counters.stalled(self._clock.monotonic_s() - started_s)

    def _hand_over(self) -> bool:
        """Give the open buffer to the sealer, if it is free and the data is durable."""
        if not self.buffer.bundles or self.failure is not None or not self._sealer.is_free():
            return False
        if self._unsynced:
            self._sync_or_rescue()
        # Before the sealer has the buffer: it lets only those files go that were left by then.
        self._end_wal_file()
        self._sealer.take(self.buffer)
        self.buffer = OpenBuffer(self._clock.monotonic_s())
        return True

    def _end_wal_file(self) -> None:
        """Begin a new WAL file, so that this one can go as a whole once its buffer is sealed."""
        if self._start is not None:
            return  # a full disk: its copies would take the room that the reserve gives to the seal
        try:
            self._rotate()
        except OSError:
            # The next group tries again; the old file goes later, with the next segment.
            self.counters.write_failures += 1

    def _flush(self, done: Callable[[HoldfastError | None], None]) -> None:
        try:
            if self.failure is not None:
                raise self.failure.for_later()
            if self.buffer.bundles:
                self.buffer.on_sealed.append(done)
                self._hand_over_when_free(self.buffer)
            else:
                self._sealer.call_when_idle(done)
        except NotAccepted as error:
            if done in self.buffer.on_sealed:
                self.buffer.on_sealed.remove(done)
            done(error)

    def _hand_over_when_free(self, wanted: OpenBuffer) -> None:
        """Hand this buffer over now or when the sealer is free; appends go on in the meantime."""
        if self.buffer is wanted and not self._hand_over() and self.failure is None:
            self._sealer.call_when_idle(lambda _: self._ask_again(wanted))

    def _ask_again(self, wanted: OpenBuffer) -> None:
        """Called by the sealer: look again in the writer's own thread."""
        with contextlib.suppress(HoldfastError):  # closing seals the buffer anyway
            self.inbox.request(lambda: self._hand_over_in_time(wanted))

    def _hand_over_in_time(self, wanted: OpenBuffer) -> None:
        try:
            self._hand_over_when_free(wanted)
        except NotAccepted:
            assert self.failure is not None, "BUG: only a failed rescue may end here"

    # ------------------------------------------------------------------ ending

    def _finish(self) -> None:
        """Clean shutdown: sync, seal what there is, and mark the end of the log."""
        if self.failure is None and self._carried:
            self._commit([])
        with contextlib.suppress(NotAccepted):  # recorded; what was synced stays, as after a crash
            if self.failure is None and self._unsynced:
                self._sync_or_rescue()
        if self.failure is not None:
            self._sealer.close(None)
            if self._wal is not None:
                self._wal.close()
            return
        self._sealer.close(self.buffer if self.buffer.bundles else None)
        self.buffer = OpenBuffer(self._clock.monotonic_s())
        with contextlib.suppress(OSError):
            self._sealer.wal_files.remove_sealed()  # nothing has them open any more
        self._write_close_frame()

    def _write_close_frame(self) -> None:
        if (wal := self._wal) is None:
            return
        try:
            wal.write_close(self.next_seq, self._clock.wall_ns())
            wal.sync(QuiverPoint.WAL_CLOSE_SYNC)
        except OSError:
            self.counters.write_failures += 1  # the next start skips a block of numbers instead
        wal.close()

    def _die(self, error: BaseException, taken: Iterable[Append | WriterRequest]) -> None:
        """Fail everyone who waits or comes later; the data on disk is as after a kill."""
        failure = ended_error(error)
        self._fail(failure)
        self.inbox.end(failure, error, taken)
        self._sealer.close(None)
