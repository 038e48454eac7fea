"""The ledger: what became of every bundle, for every subscriber, for ever accountable.

All of it passes here, under one lock: a line is written to the log first and applied to the state
second, so that the state is never ahead of what a crash would leave. The balance that must hold at
any time, per subscriber, in bundles and in events:

    accepted = acked + dead_lettered + dropped + expired + damaged + filtered + given_up + pending

When a write fails it is cut off again and raised; nothing changed. When a sync fails, the
file is left and a new one begun: its checkpoint holds everything, so nothing has to be written
again. A file that was left is never written or synced again: the kernel forgets that a sync failed,
and a new file whose beginning failed halfway may still be found, and believed, by the next start.

On a full disk closed files go, which are only history, and then the reserve. Until that is whole
again a file gets few lines before the next one begins, so that two of them fit in its place. Where
there is no reserve, as in a directory of an earlier version, a start that has no room for a file
goes on in the newest of the last process, once that is written again: a sync of it may have failed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from holdfast.errors import BadInput, Fenced, QuiverClosed, StorageFailed, UnknownSubscriber
from holdfast.quiver.base import names
from holdfast.quiver.base.config import LedgerConfig
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.log import LedgerContent, LedgerFile, LedgerHeader
from holdfast.quiver.ledger.subscriber import (
    Outcome,
    Pin,
    Position,
    Resolution,
    Subscriber,
    SubscriberOptions,
    check_name,
)
from holdfast.quiver.log.reserve import TIGHT_LINES_BYTES, DiskReserve, ReserveShare
from holdfast.quiver.log.wal import new_salt
from holdfast.quiver.log.writer_state import LastAppend
from holdfast.seam import Seam
from holdfast.seam.clock import SteadyTime
from holdfast.seam.disk import DISK_IS_FULL

# Of producers whose segments are gone; the one that appended last is forgotten last.
PRODUCERS_MAX = 10_000


@dataclass
class LedgerState:
    """What the checkpoint holds: everything the ledger knows."""

    subscribers: dict[str, Subscriber]
    # What is no longer on disk because nobody needed it, or because it was dropped.
    deleted: Totals = NOTHING
    # The numbers of the segments that went: one that a power cut brings back goes again.
    deleted_segments: IntervalSet = field(default_factory=IntervalSet)
    # Last appends of producers whose segments are gone.
    producers: dict[str, LastAppend] = field(default_factory=dict)
    # Given out to whoever attached last. Counted over all subscribers, also those that are gone: a
    # reader of one must not pass for a reader of a later one with the same name.
    last_generation: int = 0

    @property
    def floor_seq(self) -> int:
        """Behind every seq that the ledger knows.

        Were the log lost and numbering begun anew below this, fresh bundles would fall into ranges
        that subscribers have resolved already, and they would never be given them.
        """
        starts = [subscriber.start_seq for subscriber in self.subscribers.values()]
        ends = [end for s in self.subscribers.values() for _, end in s.resolved]
        return max([0, *starts, *ends])

    def to_fields(self) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        return {
            "subscribers": [s.to_fields() for s in self.subscribers.values()],
            "deleted": list(self.deleted),
            "deleted_segments": list(self.deleted_segments),
            "producers": {name: list(last) for name, last in self.producers.items()},
            "last_generation": self.last_generation,
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> LedgerState:
        """Return the state that `to_fields` gave."""
        subscribers = [Subscriber.from_fields(state) for state in fields["subscribers"]]
        return cls(
            {subscriber.name: subscriber for subscriber in subscribers},
            Totals(*fields["deleted"]),
            IntervalSet((first, end) for first, end in fields["deleted_segments"]),
            {name: LastAppend(*last) for name, last in fields["producers"].items()},
            fields["last_generation"],
        )

    def change(self, change: dict[str, Any]) -> None:
        """Take over one CHANGE line."""
        verb = change["verb"]
        if verb == "deleted":
            if change["segment_seq"] not in self.deleted_segments:  # or its sync had failed
                self.deleted = self.deleted.plus(*change["totals"])
            self.deleted_segments.add(change["segment_seq"], change["segment_seq"] + 1)
            for name, last in change["producers"].items():
                self._remember(name, LastAppend(*last))
        elif verb == "register":
            fresh = Subscriber.from_fields(change["state"])
            self.subscribers[fresh.name] = fresh
        elif verb == "unregister":
            self.subscribers.pop(change["name"], None)
        else:
            self.last_generation = max(self.last_generation, change.get("generation", 0))
            subscriber = self.subscribers.get(change["name"])
            if subscriber is not None:
                _change_subscriber(subscriber, verb, change)

    def _remember(self, producer: str, last: LastAppend) -> None:
        """Remember the newest append of a producer; segments do not go in the order of seqs."""
        known = self.producers.pop(producer, last)
        self.producers[producer] = max(known, last)
        while len(self.producers) > PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]


def _change_subscriber(subscriber: Subscriber, verb: str, change: dict[str, Any]) -> None:
    """Verbs that are not known here change nothing: an older program can read a newer ledger of the
    same version, and forgets only what it could not have used.
    """
    if verb == "attach":
        subscriber.generation = change["generation"]
        subscriber.absent_since_ns, subscriber.absent_s = None, 0.0
    elif verb in ("detach", "absent"):
        subscriber.absent_since_ns = change["since_ns"]
        subscriber.absent_s = change.get("absent_s", 0.0)
    elif verb in ("nack", "attempt"):
        subscriber.note_attempt(change["seq"], change["attempt"])
    elif verb == "options":
        subscriber.options = SubscriberOptions.from_fields(change["options"])
    elif verb in ("pause", "resume"):
        subscriber.paused = verb == "pause"
    elif verb == "pin":
        pin = Pin(change["first_seq"], change["end_seq"], change["since_ns"])
        # Planned once more, a range is pinned from now on.
        others = [p for p in subscriber.pins if (p.first_seq, p.end_seq) != pin.seqs]
        subscriber.pins = [*others, pin]
    elif verb == "accept_losses":
        subscriber.accept_losses()
    elif verb == "reopen":
        subscriber.reopen(change["first_seq"], change["end_seq"])
        subscriber.accepted_before = Totals(*change["accepted_before"])


class Ledger:
    """The log and the state behind it. Safe to use from many threads."""

    def __init__(
        self,
        seam: Seam,
        root: PurePath,
        quiver_id: str,
        config: LedgerConfig,
        state: LedgerState,
        reserve: DiskReserve | None = None,
    ) -> None:
        self.state = state
        # Held while the state is read in more than one step.
        self.lock = threading.RLock()
        self.lines_total = 0
        self.syncs_total = 0
        self.steady = SteadyTime(seam.clock)
        self._seam = seam
        self._directory = root / names.LEDGER_DIR
        self._quiver_id = quiver_id
        self._config = config
        self.reserve = reserve or DiskReserve(seam, root)
        # Whether the disk was full, and the reserve is not whole again since.
        self.is_short = False
        self._next_number = 1
        # None until a disk that is full at the start takes it.
        self._file: LedgerFile | None = None
        self._closed = False
        # Whether nothing may be written to the file any more.
        self._left = False
        self._due_s: float | None = None
        # Called when the first line after a sync is written.
        self.on_dirty: Callable[[], None] = lambda: None
        self._closed_files: list[tuple[PurePath, int, int]] = []

    def start(
        self,
        next_number: int,
        closed_files: list[tuple[PurePath, int, int]],
        newest: LedgerContent | None = None,
        last: LedgerContent | None = None,
    ) -> None:
        """Begin a new file where recovery ended, and name it in the last one.

        On a full disk it goes on in the newest one, if that holds everything, or waits for the
        first line: what is there can be read meanwhile.
        """
        self._next_number = next_number
        self._closed_files = closed_files
        try:
            self._rotate()
            if last is not None:
                self._note_in_last(last)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            # Unless one was begun that may survive, and hide what another gets now.
            if newest is not None and not self._left:
                self._resume(newest)

    def _note_in_last(self, last: LedgerContent) -> None:
        """Open the last process's file once more to name ours in it; failing to is not worth an
        error.
        """
        with contextlib.suppress(OSError):
            self._note_continued(LedgerFile.behind(self._seam.disk, last))

    def _note_continued(self, file: LedgerFile) -> None:
        """Name the file that is being written in the one before it, and close that."""
        assert self._file is not None, "BUG: no file after a rotation"
        try:
            # Without this line nothing is lost but the notice that a file vanished.
            with contextlib.suppress(OSError):
                file.write_continued(self._file.header.number, self._seam.clock.wall_ns())
        finally:
            file.close()

    def _resume(self, newest: LedgerContent) -> None:
        """Go on in the newest file of the last process, because there is no room for a new one."""
        with contextlib.suppress(OSError):
            self._file = LedgerFile.resume(self._seam.disk, newest)
        if self._file is not None:
            self.is_short = True
            self.reserve.lines_bytes = TIGHT_LINES_BYTES
            self._closed_files = [file for file in self._closed_files if file[0] != newest.path]

    # ------------------------------------------------------------------- lines

    def resolve(self, resolutions: Sequence[Resolution]) -> None:
        """Write outcomes; the caller holds the lock and has left out what is resolved already."""
        with self.lock:
            for line in resolutions:
                # All lines are checked before the first is written: one call is one frame, and
                # either every outcome in it counts or none does.
                self._check_generation(line.subscriber, line.generation)
            self._write(lambda file: file.write_resolutions(resolutions))
            for line in resolutions:
                self.state.subscribers[line.subscriber].apply(line)

    def change(self, verb: str, name: str = "", **fields: Any) -> None:
        """Write a change of a subscriber, or of what is on disk."""
        with self.lock:
            line = {"verb": verb, "name": name, **fields}
            now_ns = self._seam.clock.wall_ns()
            # Log first, state second. If the write raises, nobody has seen the change; the other
            # order would show a state that a crash takes back.
            self._write(lambda file: file.write_change(line, now_ns))
            self.state.change(line)

    def subscriber(self, name: str) -> Subscriber:
        """Return the state of a subscriber."""
        found = self.state.subscribers.get(name)
        if found is None:
            raise UnknownSubscriber(
                f"no subscriber {name!r}",
                hint=f"registered subscribers: {', '.join(self.state.subscribers) or 'none'}",
            )
        return found

    def register(self, fresh: Subscriber) -> None:
        """Add a subscriber, durably."""
        with self.lock:
            check_name(fresh.name)
            if fresh.name in self.state.subscribers:
                raise BadInput(f"{fresh.name!r} is registered", hint="attach to it instead")
            self.change("register", state=fresh.to_fields())
            self.sync()

    def attach(self, name: str, resumed: int | None = None) -> int:
        """Begin a new generation; whoever was attached before is fenced off.

        An earlier one is resumed if nobody began another since.
        """
        with self.lock:
            self.subscriber(name)
            if resumed is not None:
                self._check_generation(name, resumed)
            generation = self.state.last_generation + 1 if resumed is None else resumed
            self.change("attach", name, generation=generation)
            # Fencing must survive a power cut: a generation given out and forgotten would be given
            # out again, and two readers would both pass for the current one.
            self.sync()
            return generation

    def detach(self, name: str, generation: int) -> None:
        """End a generation."""
        with self.lock:
            subscriber = self.state.subscribers.get(name)
            if subscriber is not None and subscriber.generation == generation:
                self.change("detach", name, since_ns=self.steady.now_ns())

    def _check_generation(self, name: str, generation: int) -> None:
        current = self.subscriber(name).generation
        if generation not in (current, ANY_GENERATION):
            raise Fenced(
                f"generation {generation} of subscriber {name!r} was replaced by {current}",
                hint="another reader attached under this name; give it a name of its own, or stop",
            )

    def check_generation(self, name: str, generation: int) -> None:
        """Raise unless `generation` is the one that is attached now."""
        with self.lock:
            self._check_generation(name, generation)

    # -------------------------------------------------------------------- file

    @property
    def size_bytes(self) -> int:
        """Bytes of all ledger files."""
        return sum(size for _, _, size in self._closed_files) + (
            self._file.end if self._file else 0
        )

    @property
    def is_begun(self) -> bool:
        """Whether there is a file that holds everything, durably; on a full disk it may wait."""
        return self._file is not None

    @property
    def depth(self) -> int:
        """Lines since the last checkpoint: what a start has to replay."""
        return self._file.lines if self._file else 0

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the last checkpoint."""
        return self._file.checkpoint_bytes if self._file else 0

    def sync(self) -> None:
        """Make every line written so far durable."""
        with self.lock:
            file = self._file
            if file is not None and file.synced < file.end:
                # Set before the attempt: if it raises, the keeper comes back soon instead of
                # never.
                self._due_s = self._seam.clock.monotonic_s() + RETRY_S
                self._sync_or_leave(file)
            self._due_s = None

    def _sync_or_leave(self, file: LedgerFile) -> None:
        """Sync the file.

        After a failed sync it is not known what is on disk: a new file begins with everything.
        """
        try:
            if not self._left:
                file.sync()
                self.syncs_total += 1
                return
        except OSError:
            self._left = True
        self._rotate_or_fail()

    def sync_if_due(self) -> None:
        """Sync what has waited for `ledger.flush_interval_s`; rotate a full file."""
        with self.lock:
            if self._due_s is not None and self._seam.clock.monotonic_s() >= self._due_s:
                self.sync()
            if self._file is not None and self._file.is_full(self._config.rotate_bytes):
                self._rotate_or_fail()
            self._remove_old()

    def checkpoint(self) -> str:
        """Begin a new file, with a checkpoint of everything up to now; return its name."""
        with self.lock:
            if self._closed:
                raise _closed()
            self._rotate_or_fail()
            assert self._file is not None, "BUG: no file after a rotation"
            return self._file.path.name

    def seconds_until_due(self) -> float | None:
        """Return how long until a sync is due, None if nothing waits."""
        due_s = self._due_s
        return None if due_s is None else max(0.0, due_s - self._seam.clock.monotonic_s())

    def close(self) -> None:
        """Sync and close the file."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            try:
                self.sync()
            finally:
                if self._file is not None:
                    self._file.close()
                    self._file = None

    def _write(self, write: Callable[[LedgerFile], None]) -> None:
        """Write a line, or raise.

        After an error nothing is recorded, and the state is unchanged.
        """
        if self._closed:
            raise _closed()
        if self._left or self._file is None:
            self._rotate_or_fail()
        try:
            self._with_room(lambda: self._write_line(write))
        except OSError as error:
            raise _failed(f"the ledger could not be written: {error.strerror}", error) from error
        self.lines_total += 1
        if self._due_s is None:
            # The clock starts with the first line, not with the last: a steady stream of outcomes
            # cannot postpone its own sync.
            self._due_s = self._seam.clock.monotonic_s() + self._config.flush_interval_s
            self.on_dirty()

    def _write_line(self, write: Callable[[LedgerFile], None]) -> None:
        """Write to the file; a half-written line is cut off again."""
        file = self._file
        assert file is not None, "BUG: no file after a rotation"
        if self.is_short and file.lines_bytes > self.reserve.lines_bytes:
            file = self._rotate_while_short(file)
        try:
            write(file)
        except OSError:
            self._undo(file)
            raise

    def _rotate_while_short(self, file: LedgerFile) -> LedgerFile:
        """Begin another file while there is room for one; return the one to write to.

        Small files on purpose. On a full disk the next checkpoint has to fit into what giving up
        the file before it frees, so a file is left while it is still small (reserve.py).
        """
        self.is_short = self.reserve.is_short(ReserveShare.HEADERS)
        try:
            self._rotate()
        except OSError as error:
            if error.errno not in DISK_IS_FULL or self._left:
                raise
            return file  # for some lines there may be room
        self._give_up_history()
        assert self._file is not None, "BUG: no file after a rotation"
        return self._file

    def _with_room(self, step: Callable[[], None]) -> None:
        """Do a step that needs space; on a full disk history goes for it, then the reserve."""
        while True:
            try:
                return step()
            except OSError as error:
                if error.errno not in DISK_IS_FULL:
                    raise
                self.is_short = True
                if not self._give_up_history() and not self.reserve.give_up(ReserveShare.HEADERS):
                    raise

    def _give_up_history(self) -> bool:
        """Remove the closed files, which only tell what happened; return whether one went."""
        # Until there is a file of this process, the newest of the last one holds everything.
        removed = False
        while self._file is not None and self._closed_files:
            with contextlib.suppress(FileNotFoundError):
                self._seam.disk.unlink(self._closed_files[0][0], QuiverPoint.LEDGER_UNLINK)
            self._closed_files.pop(0)
            removed = True
        return removed

    def _undo(self, file: LedgerFile) -> None:
        try:
            file.undo()
        except OSError:
            self._left = True
            self._rotate_or_fail()

    def _rotate_or_fail(self) -> None:
        try:
            self._rotate()
        except OSError as error:
            raise _failed(f"the ledger could not be synced: {error.strerror}", error) from error

    def _rotate(self) -> None:
        """Begin a new file with a checkpoint of everything; the old one is then history."""
        self._with_room(self._begin_file)

    def _begin_file(self) -> None:
        """Begin a file with a checkpoint of everything.

        Between its first byte and its sync both files may be the newest after a power cut. So the
        old one counts as left behind until the new one is durable, and nothing is written to it
        meanwhile.
        """
        # Counted up even if this fails: a file with that name may survive a failed unlink, and a
        # second file of the same number could not be told from it.
        number, self._next_number = self._next_number, self._next_number + 1
        now_ns = self._seam.clock.wall_ns()
        header = LedgerHeader(self._quiver_id, number, new_salt(self._seam.randomness), now_ns)
        fresh = LedgerFile.begin(self._seam.disk, self._directory, header, self.state.to_fields())
        # Its checkpoint may survive from here on, and would hide what the old file gets later.
        was_left, self._left = self._left, True
        try:
            fresh.make_durable()
        except OSError:
            fresh.abandon()
            raise
        self._left = False
        closed, self._file = self._file, fresh
        if closed is not None:
            if was_left:
                # A file whose sync failed gets no line that names its successor: nothing is
                # written to it again.
                closed.close()
            else:
                self._note_continued(closed)
            self._closed_files.append((closed.path, now_ns, closed.end))
        self._due_s = None

    def _remove_old(self) -> None:
        """Remove closed files past their time or beyond their bytes, oldest first."""
        oldest_ns = self._seam.clock.wall_ns() - int(self._config.retain_s * 1e9)
        while self._closed_files:
            path, closed_ns, _ = self._closed_files[0]
            kept_bytes = sum(size for _, _, size in self._closed_files)
            if closed_ns >= oldest_ns and kept_bytes <= self._config.retain_bytes:
                return
            try:
                self._seam.disk.unlink(path, QuiverPoint.LEDGER_UNLINK)
            except FileNotFoundError:
                pass
            except OSError:
                return
            self._closed_files.pop(0)


# A resolution written by the quiver itself (retention, damage), not by a reader.
ANY_GENERATION = 0
# After a failed sync.
RETRY_S = 0.1


def resolution(
    time_ns: int,
    subscriber: str,
    first_seq: int,
    end_seq: int,
    outcome: Outcome,
    counts: Totals,
    reason: str,
) -> Resolution:
    """Return a line written by the quiver itself."""
    start, end = Position(first_seq), Position(end_seq)
    return Resolution(time_ns, subscriber, ANY_GENERATION, start, end, outcome, counts, reason)


def _closed() -> QuiverClosed:
    return QuiverClosed("the quiver is closed", hint="open it again; nothing was written")


def _failed(message: str, error: OSError) -> StorageFailed:
    return StorageFailed(
        message,
        hint="free space or check the disk, then try again; what was not recorded is redelivered",
        path=str(error.filename) if error.filename else None,
    )
