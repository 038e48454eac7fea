"""The client library: chunks are reserved, uploaded, referred to, and let go, in batches.

    with references.open_job("backup") as job:
        for (key, needs_upload) in references.reserve_chunks(job, [(hash, size_bytes), …]): …
        # put the objects that need it, under key.object_key(); then
        references.mark_uploaded(job, [(key, children), …])
        commit_id = references.publish_commit(job, "name", record, roots)
        # put the commit's object; then
        references.confirm_commit(commit_id)

Nothing here waits for a delete, and no call of one job waits for another job's upload. Every call
may be repeated: what it finds done, it does not do again.

**Why generations.** A writer may want a chunk at the moment in which a collector deletes it.
Waiting for the delete would couple the two; ignoring it would lose the chunk. So a chunk that is
dying is never revived: the writer gets a row of its own for the same hash, under a new number, and
uploads the object once more under a name that contains that number. Deleter and writer then never
touch the same row or the same object. Readers ask for a hash and get whichever generation is
current.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

from holdfast.errors import BadInput, ChunkGone
from holdfast.seam import Seam
from holdfast.store.gc import commit_rows
from holdfast.store.gc.commit_rows import CommitId, CommitRow
from holdfast.store.gc.connections import DatabaseConnection, DatabaseRow
from holdfast.store.gc.database import Database, slices
from holdfast.store.gc.leases import (
    QUARANTINE_JOB,
    CommitPin,
    Job,
    LeaseKeeper,
    StoreLease,
    check_lease,
    end_lease,
    release_references,
)
from holdfast.store.gc.points import StorePoint
from holdfast.store.gc.references_sql import (
    COMMIT_KIND,
    OWN_KINDS,
    Generations,
    Reference,
    ReferenceSource,
    add_references,
    current,
    existing,
    insert_held,
    locked_rows,
    mark_rows,
    remove_references,
    targets_of,
)
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.transitions import MARK_UPLOADED, JobKind, allows, wins
from holdfast.store.gc.watch import ENDED_BY_COLLECTORS, GcStatistics, LeaseWatch, OpenLease, gather
from holdfast.store.objects.objects import HASH_BYTES, ChunkHash, ChunkKey

_STORED = (
    "SELECT hash, generation FROM gc_chunk "
    "WHERE hash IN :hashes AND uploaded IS TRUE AND removing IS NULL"
)

# Who refers, in `update_references`: a kind and an id of the caller's choice.
NamedSource = tuple[str, bytes]


class Reservation(NamedTuple):
    """A chunk that a job holds; its object is to be put if it needs an upload."""

    key: ChunkKey
    needs_upload: bool


class References:
    """Who refers to which chunk. Safe to use from many threads."""

    def __init__(
        self,
        database_url: str,
        *,
        settings: GcSettings | None = None,
        store_id: str = "",
        create: bool = True,
        seam: Seam | None = None,
        now: str | None = None,
    ) -> None:
        """Open the database; make its tables, unless `create` says that they must be there."""
        self.settings = settings or GcSettings()
        self.seam = seam or Seam()
        self.database = Database(
            database_url,
            settings=self.settings,
            store_id=store_id,
            create=create,
            now=now,
            seam=self.seam,
        )
        self._leases = LeaseKeeper(self.database, self.seam)
        try:
            self.database.check_complete()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop renewing leases and give back all connections."""
        self._leases.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Leases.

    def open_job(self, name: str) -> Job:
        """Begin a job: what it reserves stays until it is closed or its lease lapses."""
        if self.database.reserve is not None:
            self.database.reserve.need()
        opened = Job(self._leases, self._number(), JobKind.JOB, name)
        self._keep(opened, lambda connection: None, spends=False)
        return opened

    def join_job(self, number: int, name: str) -> Job:
        """Return the job of another process, which keeps its lease: to work for it.

        Once the lease has ended, the database refuses whatever is said with it.
        """
        return Job(self._leases, number, JobKind.JOB, name)

    def pin(self, name: str) -> CommitPin:
        """Keep all that a commit refers to for a reader, also if the commit is deleted."""
        # Readers may spend the reserve, writers may not: on a full disk, getting data out is what
        # helps.
        opened = CommitPin(self._leases, self._number(spends=True), JobKind.PIN, name)
        self._keep(opened, lambda connection: self._pin(connection, opened))
        return opened

    def end_lease(self, number: int, *, sure: bool = False) -> OpenLease | None:
        """End somebody's lease, and let go what it holds; return it.

        Only if its process is certainly dead, unless the caller is `sure`: a holder that is at work
        loses what it did. None: there is no such lease, or it is the quarantine of a rebuild.
        """
        watch = LeaseWatch(self.database, self.seam.clock)
        found = self.database.read(lambda connection: watch.lease(connection, number))
        if found is None or found.name == QUARANTINE_JOB:
            return None
        if sure or found.verdict in ENDED_BY_COLLECTORS:
            end_lease(self.database, number)
            release_references(self.database, ReferenceSource.numbered(found.kind, number), number)
        return found

    def renew_leases(self) -> None:
        """Renew all leases of this process now, as the thread does that keeps them."""
        self._leases.renew()

    # Chunks.

    def reserve_chunks(
        self, job: Job, chunks: Sequence[tuple[ChunkHash, int]]
    ) -> list[Reservation]:
        """Hold these chunks (hash, plain bytes) and say which are to be uploaded; same order."""
        sizes = dict(chunks)
        _check_hashes(sizes)
        held: dict[ChunkHash, Reservation] = {}
        # Sorted: all transactions lock rows by hash, so two writers of the same content queue up
        # behind each other and do not deadlock.
        for part in slices(sorted(sizes), self.settings.batch_rows):
            given = {hash_: sizes[hash_] for hash_ in part}
            # Taken before the transaction, one for each that might be new, and given back if it
            # was not: asking inside would be a second transaction within the first, which SQLite
            # cannot do.
            numbers = self.database.numbers(len(given))
            reserved, used = self.database.transact(
                partial(self._reserve, job=job, sizes=given, numbers=numbers), spends=False
            )
            self.database.give_back(numbers[used:])
            held |= reserved
            self.seam.reached(StorePoint.RESERVED)
        return [held[hash_] for hash_, _ in chunks]

    def mark_uploaded(
        self,
        job: Job,
        uploaded: Sequence[tuple[ChunkKey, Sequence[ChunkHash]]],
        stored_bytes: Mapping[ChunkKey, int] | None = None,
    ) -> list[ChunkKey]:
        """Say that objects are stored, and which chunks each refers to: both or neither.

        A child may come before its parent in the same call. Returns the key that is current for
        each: another writer may have been first, and then the job holds that one's. An object whose
        size is given can be seen to be cut off without being read.
        """
        for key, children in uploaded:
            _check_hashes([key.hash, *children])
        kept: list[ChunkKey] = []
        for part in slices(uploaded, self.settings.batch_rows):
            kept += self.database.transact(
                partial(self._mark, job=job, uploaded=part, stored_bytes=stored_bytes or {}),
                spends=False,
            )
            self.seam.reached(StorePoint.MARKED)
        return kept

    def resolve(self, hashes: Sequence[ChunkHash]) -> dict[ChunkHash, ChunkKey]:
        """Return the stored generation of each chunk; those that are not stored are left out."""
        found: dict[ChunkHash, ChunkKey] = {}
        for part in slices(sorted(set(hashes)), self.settings.batch_rows):
            rows = self.database.read(partial(_stored, hashes=part))
            found |= {
                ChunkHash(hash_): ChunkKey(ChunkHash(hash_), number) for hash_, number in rows
            }
        return found

    def update_references(
        self,
        job: Job | None,
        add: Sequence[tuple[NamedSource, ChunkHash]] = (),
        remove: Sequence[tuple[NamedSource, ChunkHash]] = (),
    ) -> None:
        """Add and remove references of sources that the caller names; all of it, or nothing."""
        _check_hashes([hash_ for _, hash_ in [*add, *remove]])
        self._check_sources([*add, *remove])
        self.database.transact(lambda connection: self._update(connection, job, add, remove))
        self.seam.reached(StorePoint.REFERRED)

    # Commits.

    def publish_commit(
        self, job: Job, name: str, record: bytes, roots: Sequence[ChunkHash]
    ) -> CommitId:
        """Refer to the roots under a name; the caller then puts the object, then confirms."""
        commit_rows.check_name(name)
        _check_hashes(roots)
        number = self._number()

        def publish(connection: DatabaseConnection) -> CommitId:
            check_lease(self.database, connection, job)
            # The roots are locked and must be current: a commit of a chunk that a collector has
            # begun to remove would be published and unreadable.
            rows = locked_rows(self.database, connection, roots)
            keys = [_current_key(rows, root) for root in roots]
            given = (number, name, record)
            return commit_rows.insert_commit(self.database, connection, job.id, given, keys)

        published = self.database.transact(publish, spends=False)
        self.seam.reached(StorePoint.PUBLISHING)
        return published

    def confirm_commit(self, commit_id: CommitId) -> None:
        """Say that a commit's object is stored: from now on it is found."""
        self.database.transact(
            lambda connection: commit_rows.confirm(self.database, connection, commit_id)
        )

    def begin_delete_commit(self, name: str) -> CommitId:
        """Let a commit not be found any more; the caller then deletes its object, then ends it."""
        lease_id = self._number(spends=True)
        number = self.database.transact(
            lambda connection: commit_rows.begin_delete(self.database, connection, name, lease_id)
        )
        self.seam.reached(StorePoint.COMMIT_DELETING)
        return number

    def end_delete_commit(self, commit_id: CommitId) -> None:
        """Let go what a commit referred to, after its object was deleted."""
        self.database.transact(
            lambda connection: commit_rows.end_delete(self.database, connection, commit_id)
        )

    def commits(self, prefix: str = "", *, every_state: bool = False) -> list[CommitRow]:
        """Return the commits that can be read, by name; or all, with those half made or deleted."""
        listed = partial(commit_rows.with_prefix, prefix=prefix, every_state=every_state)
        return self.database.read(listed)

    def last_commit(self, prefix: str) -> CommitRow | None:
        """Return the last one by name, also if it is not confirmed yet; None if there is none."""
        return self.database.read(partial(commit_rows.last_with_prefix, prefix=prefix))

    def commit(self, name: str) -> CommitRow:
        """Return one commit that can be read."""
        return self.database.read(
            lambda connection: commit_rows.published(self.database, connection, name, lock=False)
        )

    def statistics(self) -> GcStatistics:
        """Return how many chunks and bytes are in which state, and who holds leases."""
        return gather(self.database, self.seam.clock)

    # What runs inside of transactions.

    def _keep(
        self, lease: StoreLease, also: Callable[[DatabaseConnection], None], *, spends: bool = True
    ) -> None:
        """Insert the row of a lease, with `also` in the same transaction, and renew it from now on.

        The time is taken before the transaction: the lease counts from when it was asked for, so
        that this process stops using it before the database lets it lapse.
        """
        asked_s = self.seam.clock.monotonic_s()

        def open_(connection: DatabaseConnection) -> None:
            if commit_rows.insert_lease(connection, lease.id, lease.kind, lease.name):
                also(connection)

        self.database.transact(open_, spends=spends)
        self._leases.keep(lease, asked_s)

    def _pin(self, connection: DatabaseConnection, pin: CommitPin) -> None:
        """Let a pin refer to what the commit does, so that deleting the commit frees nothing."""
        row = commit_rows.published(self.database, connection, pin.name, lock=True)
        targets = targets_of(connection, ReferenceSource.numbered(COMMIT_KIND, row.id))
        rows = locked_rows(self.database, connection, [key.hash for key in targets])
        # A chunk that a check of the store found lost cannot be kept; all others can.
        kept = [key for key in targets if current(rows.get(key.hash)) == key.generation]
        add_references(
            self.database, connection, [Reference(pin.source, target) for target in kept]
        )

    def _number(self, *, spends: bool = False) -> int:
        return self.database.numbers(1, spends=spends)[0]

    def _reserve(
        self,
        connection: DatabaseConnection,
        job: Job,
        sizes: Mapping[ChunkHash, int],
        numbers: Sequence[int],
    ) -> tuple[dict[ChunkHash, Reservation], int]:
        """Hold each chunk for the job, and decide which it has to upload.

        One that is stored is only held. One that is not gets a generation of this job's own, or the
        one it got before (a repeated call): a generation of another writer may never be uploaded.
        """
        check_lease(self.database, connection, job)
        rows = locked_rows(self.database, connection, sizes)
        held = existing(self.database, connection, job.source, rows.keys())
        reserved: dict[ChunkHash, Reservation] = {}
        new: dict[ChunkKey, int] = {}
        holds: list[Reference] = []
        for hash_, size_bytes in sizes.items():
            generation = current(rows.get(hash_))
            if generation is not None:
                key = ChunkKey(hash_, generation)
                if key not in held:
                    holds.append(Reference(job.source, key))
                reserved[hash_] = Reservation(key, needs_upload=False)
                continue
            # Others that are not uploaded belong to writers that may be dead: not ours.
            ours = [key for g in rows.get(hash_, ()) if (key := ChunkKey(hash_, g)) in held]
            if not ours:
                ours = [ChunkKey(hash_, numbers[len(new)])]
                new[ours[0]] = size_bytes
            reserved[hash_] = Reservation(ours[0], needs_upload=True)
        insert_held(self.database, connection, job.source, new)
        add_references(self.database, connection, holds)
        return reserved, len(new)

    def _mark(
        self,
        connection: DatabaseConnection,
        job: Job,
        uploaded: Sequence[tuple[ChunkKey, Sequence[ChunkHash]]],
        stored_bytes: Mapping[ChunkKey, int],
    ) -> list[ChunkKey]:
        """Mark uploaded chunks, add their references to children, and let the first writer win.

        Two writers may have uploaded the same chunk under two generations. The one that marks first
        makes its own the current one; the other gives its generation up to the collector and holds
        the first one instead, so that all references name one generation.
        """
        check_lease(self.database, connection, job)
        own = [key.hash for key, _ in uploaded]
        children = [child for _, named in uploaded for child in named]
        rows = locked_rows(self.database, connection, [*own, *children])
        held = existing(self.database, connection, job.source, set(own))
        kept: list[ChunkKey] = []
        marked: dict[ChunkKey, int | None] = {}
        added: dict[Reference, None] = {}
        moved: list[tuple[ChunkKey, ChunkKey]] = []
        for key, named in uploaded:
            generations = rows.get(key.hash, {})
            winner = ChunkKey(key.hash, wins(key.generation, generations))
            if winner != key:
                moved.append((key, winner))
            elif not generations.get(key.generation, {}).get("uploaded"):
                if key not in held or not allows(MARK_UPLOADED, generations[key.generation]):
                    raise _gone(key.hash)
                generations[key.generation]["uploaded"] = True
                marked[key] = stored_bytes.get(key)
            # Also of a row that was uploaded before: whoever did that may have stored the same
            # bytes as a file, which refers to nothing.
            added |= dict.fromkeys(self._missing_edges(connection, winner, named, rows))
            kept.append(winner)
        mark_rows(self.database, connection, marked)
        add_references(self.database, connection, list(added))
        self._move_holds(connection, job, held, moved)
        return kept

    def _missing_edges(
        self,
        connection: DatabaseConnection,
        parent: ChunkKey,
        children: Sequence[ChunkHash],
        rows: Mapping[ChunkHash, Generations],
    ) -> list[Reference]:
        """Return the references of a chunk to its children that are not there yet."""
        if not children:
            return []
        source = ReferenceSource.chunk(parent)
        wanted = {_current_key(rows, child) for child in children}
        there = existing(self.database, connection, source, set(children))
        return [Reference(source, key) for key in sorted(wanted - there)]

    def _move_holds(
        self,
        connection: DatabaseConnection,
        job: Job,
        held: set[ChunkKey],
        moved: Sequence[tuple[ChunkKey, ChunkKey]],
    ) -> None:
        """Give up generations that came second, and hold those that were first."""
        losers = {loser for loser, _ in moved} & held
        winners = {winner for _, winner in moved} - held
        remove_references(
            self.database, connection, [Reference(job.source, key) for key in sorted(losers)]
        )
        add_references(
            self.database, connection, [Reference(job.source, key) for key in sorted(winners)]
        )

    def _update(
        self,
        connection: DatabaseConnection,
        job: Job | None,
        add: Sequence[tuple[NamedSource, ChunkHash]],
        remove: Sequence[tuple[NamedSource, ChunkHash]],
    ) -> None:
        """Add references that are missing, remove those that exist: a repeated call is harmless."""
        if job is not None:
            check_lease(self.database, connection, job)
        rows = locked_rows(self.database, connection, [hash_ for _, hash_ in [*add, *remove]])
        added: list[Reference] = []
        for source, hashes in _by_source(add).items():
            there = existing(self.database, connection, source, hashes)
            wanted = {_current_key(rows, hash_) for hash_ in hashes}
            added += [Reference(source, key) for key in sorted(wanted - there)]
        add_references(self.database, connection, added)
        for source, hashes in _by_source(remove).items():
            there = existing(self.database, connection, source, hashes)
            remove_references(
                self.database, connection, [Reference(source, key) for key in sorted(there)]
            )

    def _check_sources(self, given: Sequence[tuple[NamedSource, ChunkHash]]) -> None:
        """Refuse what is too much for one transaction, and kinds of sources that are not users'."""
        if len(given) > self.settings.update_rows_max:
            raise BadInput(
                f"{len(given)} references are too many for one transaction",
                hint=f"change at most {self.settings.update_rows_max} in one call",
            )
        for (kind, _), _ in given:
            if kind in OWN_KINDS or not kind:
                raise BadInput(
                    f"references of kind {kind!r} cannot be changed by hand",
                    hint="use a kind of your own; chunks, commits, jobs and pins keep theirs",
                )


class NoReferences(References):
    """What stands for the references where the database is not: it knows no chunk."""

    def __init__(self) -> None:
        """Open nothing."""

    def resolve(self, hashes: Sequence[ChunkHash]) -> dict[ChunkHash, ChunkKey]:
        """Return nothing: whoever reads without a database was given the keys."""
        return {}

    def close(self) -> None:
        """There is nothing to close."""


def _stored(connection: DatabaseConnection, hashes: Sequence[ChunkHash]) -> list[DatabaseRow]:
    return connection.rows(_STORED, hashes=hashes)


def _by_source(
    given: Sequence[tuple[NamedSource, ChunkHash]],
) -> dict[ReferenceSource, set[ChunkHash]]:
    """Return what is given, grouped by source: each source is looked up with one statement."""
    found: dict[ReferenceSource, set[ChunkHash]] = {}
    for (kind, name), hash_ in given:
        found.setdefault(ReferenceSource(kind, name), set()).add(hash_)
    return found


def _current_key(rows: Mapping[ChunkHash, Generations], hash_: ChunkHash) -> ChunkKey:
    """Return the stored generation of a chunk, or raise that it is gone."""
    generation = current(rows.get(hash_))
    if generation is None:
        raise _gone(hash_)
    return ChunkKey(hash_, generation)


def _gone(hash_: ChunkHash) -> ChunkGone:
    return ChunkGone(
        f"chunk {hash_.hex()} is not stored, or is being collected",
        hint="reserve it again, upload it if that says so, and repeat",
    )


def _check_hashes(hashes: Collection[bytes]) -> None:
    for hash_ in hashes:
        if len(hash_) != HASH_BYTES:
            raise BadInput(
                f"{hash_[:40].hex()} is not the hash of a chunk",
                hint=f"a hash has {HASH_BYTES} bytes",
            )
