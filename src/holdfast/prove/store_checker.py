"""Compares what is left in a store with what its users noted down.

The checker reads everything that is left through the store's own front door, and notes which
objects that took: those are all that may be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.prove.journal import CommitHistories, digest_of, read_histories
from holdfast.store.filesets import Commits
from holdfast.store.gc.commit_rows import COMMIT_PREFIX, commit_object_key
from holdfast.store.objects.objects import CHUNK_PREFIX, Objects, StoredObject
from holdfast.store.store import Store, StoreFormat

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class StoreVerdict:
    """What was found; `ok` if nothing is missing, wrong or left over."""

    commits_made: int
    commits_deleted: int
    commits_left: int
    reads: int
    lost_commits: int
    """Made, never to be deleted, and not there."""
    revived_commits: int
    """Deleted, and there."""
    wrong_commits: int
    """There, and not what was written."""
    missing_chunks: int
    """Referenced, and not there or not readable; one per commit that met it."""
    wrong_reads: int
    leaked_objects: int
    leaked_rows: int
    details: list[str]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not (
            self.lost_commits
            or self.revived_commits
            or self.wrong_commits
            or self.missing_chunks
            or self.wrong_reads
            or self.leaked_objects
            or self.leaked_rows
        )


class NotedObjects:
    """Objects, and which of them were read."""

    def __init__(self, inner: Objects) -> None:
        self._inner = inner
        self.read: set[str] = set()

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """Read an object, and note it."""
        self.read.add(key)
        return self._inner.get(key, offset_bytes, size_bytes)

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        """Store an object."""
        self._inner.put(key, data)

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Store objects."""
        self._inner.put_many(items)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        self._inner.delete_many(keys)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """List objects."""
        return self._inner.list(prefix)

    def now_s(self) -> float:
        """Return the time."""
        return self._inner.now_s()

    def close(self) -> None:
        """Close what is behind."""
        self._inner.close()


def check_store(store: Store, journals: Path) -> StoreVerdict:
    """Return the verdict over a store that nobody uses any more, and that was collected."""
    stories = read_histories(journals)
    noted = NotedObjects(store.objects)
    known = StoreFormat(store_id=store.id, chunking=store.chunks.chunking)
    reading = Store(store.url, noted, store.references, store.settings, known)
    details: list[str] = []
    left: dict[str, str] = {}
    missing = 0
    commits = Commits(reading)
    for commit in commits.list():
        try:
            with commits.open(commit.name) as files:
                contents = [(file.path, files.read(file.path)) for file in files.files()]
            left[commit.name] = digest_of(contents)
        except HoldfastError as error:
            missing += 1
            left[commit.name] = "unreadable"
            details.append(f"{commit.name}: {error}")
    keys = {commit_object_key(commit.name, commit.id) for commit in commits.list()}
    leaked = _leaked_objects(store, noted.read, keys)
    details += [f"left over: {key}" for key in leaked[:10]]
    reading.chunks.close()
    return _judge(stories, left, missing, leaked, _leaked_rows(store, noted.read), details)


def _leaked_objects(store: Store, read: set[str], commits: set[str]) -> list[str]:
    """Return what is stored and was not needed to read all that is left.

    The database is not asked: a leak may be an object that it knows nothing of.
    """
    chunks = {stored.key for stored in store.objects.list(CHUNK_PREFIX)} - read
    records = {stored.key for stored in store.objects.list(COMMIT_PREFIX)} - commits
    return sorted(chunks | records)


def _leaked_rows(store: Store, read: set[str]) -> int:
    """Count rows of chunks that nothing was read from, whatever their state."""
    rows = sum(totals.chunks for totals in store.references.statistics().states.values())
    return abs(rows - sum(1 for key in read if key.startswith(CHUNK_PREFIX)))


def _judge(
    stories: CommitHistories,
    left: dict[str, str],
    missing: int,
    leaked: list[str],
    leaked_rows: int,
    details: list[str],
) -> StoreVerdict:
    """Compare the commits that are left with what the journals say of each.

    One whose making or deletion was cut off by a kill may be there or not; what is there must be
    what was written.
    """
    commits = stories.commits
    lost = [
        name
        for name, story in commits.items()
        if story.made and not story.to_be_deleted and name not in left
    ]
    revived = [name for name, story in commits.items() if story.deleted and name in left]
    wrong = [
        name
        for name, digest in left.items()
        if digest != "unreadable" and (name not in commits or commits[name].digest != digest)
    ]
    for what, names in (("lost", lost), ("revived", revived), ("wrong", wrong)):
        details += [f"{what}: {name}" for name in names[:10]]
    return StoreVerdict(
        commits_made=sum(story.made for story in commits.values()),
        commits_deleted=sum(story.deleted for story in commits.values()),
        commits_left=len(left),
        reads=stories.reads,
        lost_commits=len(lost),
        revived_commits=len(revived),
        wrong_commits=len(wrong),
        missing_chunks=missing,
        wrong_reads=len(stories.wrong_reads),
        leaked_objects=len(leaked),
        leaked_rows=leaked_rows,
        details=[*details, *stories.wrong_reads[:10]],
    )
