"""The scrub: reads every stored chunk again, and compares its bytes with its name.

It goes through the objects in the order of their names, no faster than it may, and notes in the
database how far it came and what it found, so that it goes on there after an interruption. Chunks
that are collected meanwhile are passed over. Nothing that is wrong is kept to itself: a chunk whose
bytes do not match, and one that cannot be read at all, is a finding.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.seam.rate import TokenBucket
from holdfast.store.fsck.check import locate
from holdfast.store.fsck.confirm import Confirm
from holdfast.store.fsck.findings import StoreFinding
from holdfast.store.fsck.indexes import verify
from holdfast.store.fsck.tables import PREFIXES, FsckSettings
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database
from holdfast.store.gc.tables import ONE_CHUNK
from holdfast.store.objects.objects import CHUNK_PREFIX, ChunkKey, StoredObject
from holdfast.store.store import Store

POSITION = "scrub"
# Damaged chunks that an interrupted scrub remembers for the next; what is more is found again by
# the next scrub from the beginning.
REMEMBERED_MAX = 1000


@dataclass
class ScrubReport:
    """What was read, and what was found."""

    findings: list[StoreFinding] = field(default_factory=list)
    objects: int = 0
    size_bytes: int = 0
    """As stored."""
    resumed_after: str = ""
    """The object behind which this run began; nothing if it began at the first."""
    complete: bool = False

    @property
    def ok(self) -> bool:
        """Whether no chunk is damaged."""
        return not self.findings


def scrub(
    store: Store,
    *,
    settings: FsckSettings | None = None,
    restart: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> ScrubReport:
    """Read all chunks, or resume a stopped scrub; `progress` is called with the bytes done."""
    run = _ScrubRun(store, settings or FsckSettings(), stop or threading.Event(), progress)
    if restart:
        forget_position(store.references.database)
    return run.run()


_FORGET = "DELETE FROM gc_meta WHERE name = :name"


def forget_position(database: Database) -> None:
    """Let the next scrub begin at the first object."""
    database.transact(lambda connection: connection.change(_FORGET, name=POSITION))


class _ScrubRun:
    """One run."""

    def __init__(
        self,
        store: Store,
        settings: FsckSettings,
        stop: threading.Event,
        progress: Callable[[int], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._database = store.references.database
        self._stop = stop
        self._progress = progress
        rate, clock = settings.scrub_bytes_per_s, store.references.seam.clock
        self._rate = TokenBucket(rate, rate, clock) if rate else None
        self._report = ScrubReport()
        self._damaged: dict[str, StoreFinding] = {}
        # Sizes of objects that were read since the last save, and are whole.
        self._sizes: dict[ChunkKey, int] = {}

    def run(self) -> ScrubReport:
        last, suspects = self._load()
        self._report.resumed_after = last
        # What an interrupted run had found: looked at again first, since the chunk may have been
        # repaired, or collected, since then.
        for name in suspects:
            self._verify(name)
        done = last
        for number, stored in enumerate(self._behind(last), 1):
            self._pace(stored.size_bytes)
            if self._stop.is_set():
                break
            self._verify(stored.key, stored.size_bytes)
            self._report.objects += 1
            self._report.size_bytes += stored.size_bytes
            self._progress(stored.size_bytes)
            done = stored.key
            if number % self._settings.scrub_save_objects == 0:
                self._save(done)
        else:
            self._report.complete = True
        self._save(done)
        if self._report.complete:
            forget_position(self._database)
        confirm = Confirm(self._store.references, self._store.objects)
        found = confirm.confirm(list(self._damaged.values()))
        self._report.findings = list(locate(self._store, found, self._settings))
        return self._report

    def _behind(self, last: str) -> Iterator[StoredObject]:
        """Yield the objects behind a name, in order: one prefix at a time is held in memory."""
        for byte in range(PREFIXES):
            prefix = f"{CHUNK_PREFIX}{byte:02x}/"
            # Prefixes that were finished are not even listed.
            if last[: len(prefix)] <= prefix:
                listed = self._store.objects.list(prefix)
                yield from sorted(stored for stored in listed if stored.key > last)

    def _verify(self, name: str, size_bytes: int | None = None) -> None:
        """Read a chunk and compare it; its whole object, because a damaged byte may be anywhere.

        One that is gone by now was collected, and is no finding.
        """
        key = ChunkKey.parse(name)
        found = verify(self._store.objects, key) if key else None
        if found is not None:
            self._damaged[name] = found
        elif key is not None and size_bytes is not None:
            self._sizes[key] = size_bytes

    def _pace(self, size_bytes: int) -> None:
        if self._rate and (wait_s := self._rate.take(size_bytes)):
            self._stop.wait(wait_s)

    def _save(self, last: str) -> None:
        """Note how far it came, in the database: a scrub of a bucket may be continued elsewhere."""
        words = json.dumps({"after": last, "damaged": list(self._damaged)[:REMEMBERED_MAX]})

        def save(connection: DatabaseConnection) -> None:
            connection.change(_FORGET, name=POSITION)
            inserted = "INSERT INTO gc_meta (name, number, words) VALUES (:name, 0, :words)"
            connection.change(inserted, name=POSITION, words=words)
            # A by-product: the size of an object that was read whole is worth keeping, so that a
            # later check sees a truncated one without reading it.
            self._note_sizes(connection)

        self._database.transact(save)
        self._sizes.clear()

    def _note_sizes(self, connection: DatabaseConnection) -> None:
        """Say how large objects are that an older version stored, or whose rows were rebuilt."""
        noted = (
            "UPDATE gc_chunk SET stored_bytes = :stored_bytes "
            f"WHERE {ONE_CHUNK} AND stored_bytes IS NULL"
        )
        sizes = sorted(self._sizes.items())
        given = [{**key._asdict(), "stored_bytes": size_bytes} for key, size_bytes in sizes]
        connection.change_many(noted, given)

    def _load(self) -> tuple[str, list[str]]:
        asked = "SELECT words FROM gc_meta WHERE name = :name"
        words = self._database.read(lambda connection: connection.value(asked, name=POSITION))
        if not words:
            return "", []
        saved = json.loads(words)
        return saved["after"], saved["damaged"]
