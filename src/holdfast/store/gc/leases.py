"""Jobs and pins: what is theirs stays as long as their lease is renewed, and is lost with it.

One row and one renewal per job, however many chunks it holds. All leases of a process are renewed
by one thread, at a third of their length. A lease is lost when the database says that it ended, or
when it could not be renewed for its whole length: then a collector may have ended it, so the holder
must stop, and does: `check` raises, and `on_lost` calls those who wait for something else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Self

from holdfast.errors import DiskFull, LeaseLost, StoreUnavailable
from holdfast.seam import Seam
from holdfast.seam.process import bind_to_process
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database
from holdfast.store.gc.references_sql import (
    Reference,
    ReferenceSource,
    lock_rows,
    of_source,
    remove_references,
)
from holdfast.store.gc.tables import OF_SOURCE
from holdfast.store.gc.transitions import CLOSE, FORGET_JOB, RENEW, WORK, JobKind
from holdfast.store.objects.objects import ChunkHash, ChunkKey

RENEWALS_PER_LEASE = 3
# The job that holds what a rebuild did not understand (rebuild.py). A repair alone ends it.
QUARANTINE_JOB = "quarantine of a rebuild"


class StoreLease:
    """What a job and a pin are: a row that somebody must keep renewing."""

    def __init__(self, keeper: LeaseKeeper, number: int, kind: JobKind, name: str) -> None:
        self.id = number
        self.kind = kind
        self.name = name
        self.lost = threading.Event()
        self.source = ReferenceSource.numbered(kind.value, number)
        self._keeper = keeper
        self._lock = threading.Lock()
        self._on_lost: list[Callable[[], None]] = []
        self._released = False
        bind_to_process(self)

    def check(self) -> None:
        """Raise LeaseLost if the lease was lost, or given back."""
        if self.lost.is_set() or self._released:
            raise self.lapsed()

    def confirm(self) -> None:
        """Raise LeaseLost also if it ended and nobody here has noticed yet."""
        self.check()
        self._keeper.confirm(self)

    def on_lost(self, call: Callable[[], None]) -> None:
        """Call this, from another thread, when the lease is lost; at once if it is lost already."""
        with self._lock:
            if not self.lost.is_set():
                self._on_lost.append(call)
                return
        call()

    def lose(self) -> None:
        """Notify all holders that the lease is lost."""
        with self._lock:
            if self.lost.is_set():
                return
            # Under the lock, calls outside of it: a callback may ask for this very lease. Whoever
            # registers after the flag is set is called by `on_lost` itself, so nobody is missed or
            # called twice.
            self.lost.set()
            calls = list(self._on_lost)
        for call in calls:
            call()

    def release(self) -> None:
        """Give back the lease and all that it holds. May be repeated."""
        # Set first and not undone: should the database be away, the lease lapses by itself, and
        # what it holds is released by a collector.
        if not self._released:
            self._released = True
            self._keeper.release(self)

    def lapsed(self) -> LeaseLost:
        """Return the error of whoever goes on without a lease."""
        hint = "begin again: what was stored and not committed will be collected"
        if self.kind is JobKind.PIN:
            hint = (
                "open it again, if it is still there: what it led to may be deleted and collected"
            )
        return LeaseLost(
            f"the lease of {self.kind.value} {self.name!r} has ended",
            hint=f"{hint}; if this happens often, make the lease longer (lease_s)",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class Job(StoreLease):
    """A writer's lease: the chunks that it reserved or uploaded are not collected."""

    close = StoreLease.release


class CommitPin(StoreLease):
    """A reader's lease on a commit: its chunks stay, also if the commit is deleted meanwhile."""


class LeaseKeeper:
    """Renews the leases of one process in one thread, which runs while there are any."""

    def __init__(self, database: Database, seam: Seam) -> None:
        self._database = database
        self._clock = seam.clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._renewed_s: dict[StoreLease, float] = {}
        self._thread: threading.Thread | None = None

    def keep(self, lease: StoreLease, asked_s: float) -> None:
        """Renew this lease from now on; it was asked for at `asked_s`, by the monotonic clock."""
        with self._lock:
            self._renewed_s[lease] = asked_s
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-leases", daemon=True
                )
                self._thread.start()

    def release(self, lease: StoreLease) -> None:
        """Stop renewing a lease, and end its row."""
        with self._lock:
            self._renewed_s.pop(lease, None)
        end_lease(self._database, lease.id)
        release_references(self._database, lease.source, lease.id)

    def confirm(self, lease: StoreLease) -> None:
        """Raise LeaseLost if the database says that a lease has ended."""
        self._database.transact(lambda connection: check_lease(self._database, connection, lease))

    def close(self) -> None:
        """Stop renewing. Leases that are left lapse by themselves."""
        self._stop.set()
        with self._lock:
            thread, leases = self._thread, list(self._renewed_s)
            self._renewed_s.clear()
        if thread is not None:
            thread.join()
        for lease in leases:
            lease.lose()

    def renew(self) -> None:
        """Renew all leases once; notify the holders of those that are lost."""
        with self._lock:
            leases = {lease.id: lease for lease in self._renewed_s}
        asked_s = self._clock.monotonic_s()
        try:
            renewed = self._database.transact(lambda connection: self._renew(connection, leases))
        except (StoreUnavailable, DiskFull):
            # A full disk, too: room may be made before the leases are over, and an error that
            # ended this thread would let every lease of the process lapse, now and later.
            self._lose_those_too_old()
            return
        # A lease may have been released while the database was asked; it is then in neither list.
        with self._lock:
            for number in renewed:
                if leases[number] in self._renewed_s:
                    self._renewed_s[leases[number]] = asked_s
            lost = [leases[n] for n in leases if n not in renewed and leases[n] in self._renewed_s]
            for lease in lost:
                del self._renewed_s[lease]
        for lease in lost:
            lease.lose()

    def _renew(self, connection: DatabaseConnection, numbers: Iterable[int]) -> set[int]:
        if not (wanted := sorted(numbers)):
            return set()
        statement = self._database.step(RENEW, "id IN :ids", returning="id")
        return set(connection.values(statement, ids=wanted))

    def _lose_those_too_old(self) -> None:
        """Give up leases that could not be renewed for their whole length.

        The database cannot be asked; a collector beside it may have ended them by now. The holders
        stop before they store what would be collected.

        Measured from when the last renewal was *asked for*, by the monotonic clock: that is no
        later than what the database wrote, so this side always stops first.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            old = [
                lease
                for lease, renewed_s in self._renewed_s.items()
                if now_s - renewed_s >= self._database.settings.lease_s
            ]
            for lease in old:
                del self._renewed_s[lease]
        for lease in old:
            lease.lose()

    def _run(self) -> None:
        pause_s = self._database.settings.lease_s / RENEWALS_PER_LEASE
        while not self._stop.wait(pause_s):
            if self._renewed_s:
                self.renew()


def check_lease(database: Database, connection: DatabaseConnection, lease: StoreLease) -> None:
    """Lock a lease's row, so that it cannot end before the transaction does; refuse if it ended."""
    asked = f"SELECT id FROM gc_job WHERE id = :id AND {database.guard(WORK)} FOR SHARE"
    if connection.row(asked, id=lease.id) is None:
        # The database's word is final. Others that share the lease should stop now, and not each
        # by an error of its own.
        lease.lose()
        raise lease.lapsed()


def end_lease(database: Database, number: int) -> None:
    """End a lease for good, as its holder asks."""
    ended = database.step(CLOSE, "id = :id")
    database.transact(lambda connection: connection.change(ended, id=number))


def release_references(database: Database, source: ReferenceSource, number: int) -> int:
    """Take away all edges of a lease that has ended, batch by batch, and its row; count them."""
    released = 0
    while taken := database.transact(
        lambda connection: _release_some(database, connection, source)
    ):
        released += taken
    gone = database.step(FORGET_JOB, "id = :id")
    database.transact(lambda connection: connection.change(gone, id=number))
    return released


def _release_some(
    database: Database, connection: DatabaseConnection, source: ReferenceSource
) -> int:
    """Remove one batch of the references of a lease; return how many.

    In batches, because a job may hold millions of chunks, and a transaction locks all of their
    rows.
    """
    number = int.from_bytes(source.id, "big")
    # Its row is the lock: two collectors may have found the same lease.
    connection.rows("SELECT id FROM gc_job WHERE id = :id FOR UPDATE", id=number)
    asked = f"SELECT hash, generation FROM gc_edge WHERE {OF_SOURCE} ORDER BY hash, generation"
    limit = database.settings.batch_rows
    found = connection.rows(f"{asked} LIMIT :rows", **of_source(source), rows=limit)
    targets = [ChunkKey(ChunkHash(hash_), generation) for hash_, generation in found]
    lock_rows(database, connection, [key.hash for key in targets])
    remove_references(database, connection, [Reference(source, target) for target in targets])
    return len(targets)
