"""Commits: file sets under names, made in one step, found by all, deleted by their users.

A commit's record (`CommitRecord`) is a row of the database and an object of the store. The row and
its references come first, so that the collector spares the chunks; then the object, which a lost
database is rebuilt from; then the row is confirmed, and the commit can be found. A deletion goes
the other way. Whatever dies in between is finished by the collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from holdfast.errors import BadInput, Damaged, ObjectMissing, UnknownCommit, UnknownFormat
from holdfast.store.chunks.codec import decode
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.entry import message_of, ref_of
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import LEVEL_FACTOR, Compact, compact
from holdfast.store.filesets.reachable import Reached, Use, children_of, index_range, walk_below
from holdfast.store.gc.commit_rows import CommitId, CommitRow, commit_object_key
from holdfast.store.gc.transitions import CommitState
from holdfast.store.objects.objects import ChunkHash, ChunkKey, DataRef, Objects

if TYPE_CHECKING:
    from holdfast.store.gc.leases import Job
    from holdfast.store.gc.rebuild import Resolve, Walk, WalkedChunk
    from holdfast.store.gc.references import References
    from holdfast.store.store import Store

RECORD_VERSION = 1
# Layers of one commit: reading merges all of them, so compact before there are so many.
LAYERS_MAX = 1000
# Changes that are checked for collisions path by path; more of them, and all files are walked.
_FEW = 20


class ParentRef(NamedTuple):
    """The commit that another one was made from: a name may have been given anew since."""

    name: str
    id: CommitId


class Commit(NamedTuple):
    """A commit as it was made. `seen` is what `put_tree` noted of the files on disk."""

    name: str
    id: CommitId
    parent: ParentRef | None
    message: str
    created_ns: int
    batch_records: Mapping[str, bytes]
    layers: tuple[Layer, ...]
    seen: tuple[DataRef, ...]


class Commits:
    """The commits of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._references = store.references

    def create(
        self,
        job: Job,
        name: str,
        layers: Sequence[Layer],
        *,
        parent: str | None = None,
        message: str = "",
        batch_records: Mapping[str, bytes] | None = None,
        seen: Sequence[DataRef] = (),
    ) -> Commit:
        """Make a commit of layers, oldest first, that were written under the job or are committed.

        It has the batch records of its parent, too, unless new ones of the same sinks are given.
        """
        # Batch records travel from parent to child: they say which batches of which sink are in
        # the files, so that a batch that is repeated after a crash is recognised however many
        # commits ago it was made.
        before = self.get(parent) if parent is not None else None
        numbered = _numbered(layers)
        self._check_collisions(numbered, before)
        records = {**(before.batch_records if before else {}), **(batch_records or {})}
        record = pb.CommitRecord(
            version=RECORD_VERSION,
            name=name,
            message=message,
            created_ns=self._references.seam.clock.wall_ns(),
            batch_records=[
                pb.BatchRecord(sink=sink, record=records[sink]) for sink in sorted(records)
            ],
            layers=[layer.to_message() for layer in numbered],
            seen=[message_of(ref) for ref in seen],
        )
        if before is not None:
            record.parent.name, record.parent.id = before.name, f"{before.id:016x}"
        return self._publish(job, record)

    def _publish(self, job: Job, record: pb.CommitRecord) -> Commit:
        """Make a commit, in the three steps of the head: row and references, object, confirmation.

        The record is parsed again from its bytes, so that what is returned is what anybody else
        will read.
        """
        data = record.SerializeToString(deterministic=True)
        commit = _parse(data, CommitId(0))
        roots = [chunk for layer in commit.layers for chunk in layer.chunks]
        roots += [ref.hash for ref in commit.seen]
        number = self._references.publish_commit(job, commit.name, data, list(dict.fromkeys(roots)))
        self._store.objects.put(commit_object_key(commit.name, number), [data])
        self._references.confirm_commit(number)
        return commit._replace(id=number)

    def delete(self, name: str) -> None:
        """Delete a commit; what nothing else refers to is collected in time. May be repeated."""
        number = self._references.begin_delete_commit(name)
        self._store.objects.delete_many([commit_object_key(name, number)])
        self._references.end_delete_commit(number)

    def get(self, name: str) -> Commit:
        """Return a commit, or raise `UnknownCommit`."""
        return _of_row(self._references.commit(name))

    def list(self, prefix: str = "") -> list[Commit]:
        """Return all commits whose names begin so, in order of their names."""
        return [_of_row(row) for row in self._references.commits(prefix)]

    def latest(self, prefix: str = "") -> Commit | None:
        """Return the commit that was made last, by the database's clock."""
        rows = self._references.commits(prefix)
        newest = max(rows, key=lambda row: (row.created_s, row.id), default=None)
        return _of_row(newest) if newest else None

    def last(self, prefix: str) -> Commit | None:
        """Return the last commit by name, for a writer that numbers its own.

        If its publisher died before it was confirmed, that is made good first, as a collector
        would in time: all that it refers to is stored, and held.
        """
        row = self._references.last_commit(prefix)
        if row is not None and row.state is CommitState.PUBLISHING:
            # Whoever was first wrote the same bytes.
            key = commit_object_key(row.name, row.id)
            self._store.objects.put_many([(key, [row.record])])
            self._references.confirm_commit(row.id)
        return _of_row(row) if row is not None else None

    def log(self, name: str) -> Iterator[Commit]:
        """Yield a commit, its parent, and so on, as far as they still exist."""
        commit = self.get(name)
        yield commit
        while commit.parent is not None:
            try:
                older = self.get(commit.parent.name)
            except UnknownCommit:
                return
            if older.id != commit.parent.id:
                return  # another commit of that name
            commit = older
            yield commit

    def open(self, name: str) -> FileSet:
        """Return the files of a commit, pinned: they can be read though it is deleted meanwhile."""
        while True:
            commit = self.get(name)
            pin = self._references.pin(name)
            try:
                # A pin is by name. Read before and after: if the name meant the same commit both
                # times, then the pin in between was on it.
                if self.get(name).id == commit.id:
                    return FileSet(self._store, commit.layers, pin=pin)
            except BaseException:
                pin.release()
                raise
            pin.release()  # another commit took the name before it was pinned

    def compact(
        self,
        job: Job,
        name: str,
        new_name: str,
        *,
        level_factor: int = LEVEL_FACTOR,
        whole: bool = False,
        merge: Compact = compact,
    ) -> Commit:
        """Make a commit with the same files as another one, in fewer layers; `merge` makes them."""
        with self.open(name) as files:
            commit = self.get(name)
            layers = merge(self._store, job, files.layers, level_factor=level_factor, whole=whole)
            # The stored record with other layers, not a new one: batch records, and whatever a
            # later version has added, go along.
            record = pb.CommitRecord.FromString(self._references.commit(name).record)
            del record.layers[:]
            record.layers.extend(layer.to_message() for layer in layers)
            record.name = new_name
            record.created_ns = self._references.seam.clock.wall_ns()
            record.parent.name, record.parent.id = commit.name, f"{commit.id:016x}"
            return self._publish(job, record)

    def _check_collisions(self, layers: Sequence[Layer], before: Commit | None) -> None:
        """Refuse layers that make a path a file and a folder; a single one was checked before."""
        if len(layers) == 1:
            return
        known = (
            {bytes(chunk) for layer in before.layers for chunk in layer.chunks} if before else {}
        )
        first = next(
            (n for n, layer in enumerate(layers) if not all(c in known for c in layer.chunks)),
            len(layers),
        )
        files = FileSet(self._store, layers)
        added = sum(layer.entries for layer in layers[first:])
        # The layers of the parent were checked when it was made. Few new paths are looked up one
        # by one; many are checked in one walk over everything.
        if first and added * _FEW < sum(layer.entries for layer in layers):
            files.check_added(first)
        elif first < len(layers):
            files.check_collisions()


def _numbered(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers with seqs that grow: those of a parent keep theirs, new ones get more."""
    if len(layers) > LAYERS_MAX:
        raise BadInput(
            f"a commit cannot have {len(layers)} layers; {LAYERS_MAX} are the most",
            hint="Compact them first.",
        )
    numbered: list[Layer] = []
    last = 0
    for layer in layers:
        seq = layer.seq or last + 1
        if seq <= last:
            raise BadInput(
                "the layers of a commit are not in order of their age",
                hint="Put older layers first, and new ones behind those of the parent.",
            )
        numbered.append(layer.at(seq))
        last = seq
    return numbered


def _of_row(row: CommitRow) -> Commit:
    return _parse(row.record, row.id)


def _parse(data: bytes, number: CommitId) -> Commit:
    try:
        record = pb.CommitRecord.FromString(data)
    except DecodeError:
        raise Damaged(
            f"the record of commit number {number} cannot be read",
            hint="`holdfast store fsck` compares it with the commit's object.",
        ) from None
    if record.version != RECORD_VERSION:
        raise UnknownFormat(
            f"commit {record.name!r} was written by format version {record.version}; "
            f"this Holdfast knows {RECORD_VERSION}",
            hint="Use the version of Holdfast that wrote it, or a newer one.",
        )
    parent = None
    if record.HasField("parent"):
        parent = ParentRef(record.parent.name, CommitId(int(record.parent.id, 16)))
    return Commit(
        name=record.name,
        id=number,
        parent=parent,
        message=record.message,
        created_ns=record.created_ns,
        batch_records={batch.sink: batch.record for batch in record.batch_records},
        layers=tuple(map(Layer.from_message, record.layers)),
        seen=tuple(map(ref_of, record.seen)),
    )


# Commits of folders keep where the folder is as the record of this sink.
PUT_SINK = "holdfast files put"


def last_of_folder(references: References, record: bytes) -> Commit | None:
    """Return the last commit that a folder was put as, with what is known of its files."""
    rows = sorted(references.commits(), key=lambda row: (row.created_s, row.id), reverse=True)
    commits = map(_of_row, rows)
    return next(
        (one for one in commits if one.seen and one.batch_records.get(PUT_SINK) == record), None
    )


def parse_record(data: bytes, number: int) -> Commit:
    """Return the commit that a record stands for, wherever it was found."""
    return _parse(data, CommitId(number))


def roots_of(commit: Commit) -> list[Reached]:
    """Return the chunks that a commit refers to itself."""
    found: list[Reached] = []
    for layer in commit.layers:
        if layer.index is not None:
            found.append(index_range(layer.index))
        found += [Reached(ref.hash, Use.TOMBSTONES) for ref in layer.tombstones]
    found += [Reached(ref.hash, Use.SEEN) for ref in commit.seen]
    return list(dict.fromkeys(found))


def walk_record(objects: Objects) -> Walk:
    """Return how a rebuild walks commits: every chunk once that is a root, or refers to others."""
    from holdfast.store.gc.rebuild import WalkedChunk

    def walk(record: bytes, resolve: Resolve) -> Iterator[WalkedChunk]:
        commit = parse_record(record, 0)
        roots = roots_of(commit)
        yield from (WalkedChunk(root.hash, root=True) for root in roots if not root.use.refers)
        own = {root.hash for root in roots}
        trouble: list[Exception] = []

        def look_into(one: Reached) -> list[Reached] | None:
            try:
                return children_of(one, _read(objects, one.hash, resolve([one.hash])))
            except (Damaged, ObjectMissing) as error:
                trouble.append(error)
                return None

        for parent, children in walk_below([r for r in roots if r.use.refers], look_into):
            below = list(dict.fromkeys(child.hash for child in children or ()))
            yield WalkedChunk(parent.hash, below, root=parent.hash in own)
        if trouble:
            raise trouble[0]  # all that could be read was yielded

    return walk


def _read(objects: Objects, hash_: ChunkHash, keys: Mapping[ChunkHash, ChunkKey]) -> bytes:
    key = keys.get(hash_)
    if key is None:
        raise ObjectMissing(
            f"chunk {hash_.hex()} is not in the store",
            hint="run `holdfast store fsck` to see which files it belongs to",
        )
    return decode(objects.get(key.object_key()), key)
