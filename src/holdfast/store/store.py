"""Opens a store: where its objects are, and which database counts its references.

`store.json` is the first object of a store. It says which format the store has, which id, and how
its data is cut into chunks; it never changes. The database is part of the store, and knows its id:
without it nothing shows what is used, so it is never recreated behind the user's back.

The order in which things come into being is the order in which they are looked for: `store.json`,
then the database, then chunks. So every state that an interrupted `create` leaves can be told from
a store that has lost something: a store without database and without chunks is an attempt, and is
continued; one without database and with chunks is a loss, and is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.errors import (
    BadInput,
    CannotOpen,
    Damaged,
    DatabaseLost,
    ObjectMissing,
    UnknownFormat,
)
from holdfast.seam import Seam
from holdfast.seam.process import bind_to_process
from holdfast.store.chunks.reader import ChunkCache, ChunkReader
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.chunks.writer import ChunkWriter, SmallFiles
from holdfast.store.gc.commit_rows import check_database
from holdfast.store.gc.references import NoReferences, References
from holdfast.store.objects.local import Leftovers, LocalObjects
from holdfast.store.objects.objects import (
    REMOTE_SCHEMES,
    ChunkHash,
    ChunkKey,
    ObjectExists,
    Objects,
)

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from holdfast.store.gc.leases import CommitPin, Job
    from holdfast.store.gc.references import References


class ChunkStore:
    """The chunks of a store: writers for jobs, and readers that share one cache."""

    def __init__(
        self, objects: Objects, references: References, chunking: Chunking, settings: StoreSettings
    ) -> None:
        self.chunking = chunking
        self._objects = objects
        self._references = references
        self._settings = settings
        self._cache = ChunkCache(settings.cache_bytes)
        self._lock = threading.Lock()
        self._read_threads: ThreadPoolExecutor | None = None

    def writer(self, job: Job) -> ChunkWriter:
        """Return a writer of chunks under a job's lease."""
        return ChunkWriter(self._objects, self._references, job, self.chunking, self._settings)

    def small_files(self, writer: ChunkWriter) -> SmallFiles:
        """Return what packs small files for a writer."""
        return SmallFiles(writer, self.chunking)

    def reader(
        self, keys: Mapping[ChunkHash, ChunkKey] | None = None, pin: CommitPin | None = None
    ) -> ChunkReader:
        """Return a reader; it looks up the keys it is not given. A pin keeps what it reads."""
        # Counted in the largest chunks there can be, so that the bound on bytes holds however they
        # are cut. Two at least: with one, nothing would be read ahead.
        ahead_bytes = self._settings.prefetch_bytes
        prefetch_chunks = max(2, ahead_bytes // self.chunking.max_bytes) if ahead_bytes else 0
        return ChunkReader(
            self._objects,
            self._references,
            keys if keys is not None else {},
            self._cache,
            self._threads,
            prefetch_chunks,
            pin,
        )

    def close(self) -> None:
        """End the threads that read ahead."""
        with self._lock:
            threads, self._read_threads = self._read_threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)

    def _threads(self) -> ThreadPoolExecutor:
        """Made when the first reader wants them: most processes that open a store write, or only
        list.
        """
        with self._lock:
            if self._read_threads is None:
                from concurrent.futures import ThreadPoolExecutor

                self._read_threads = ThreadPoolExecutor(
                    self._settings.reader_threads, thread_name_prefix="read-ahead"
                )
            return self._read_threads


FORMAT_VERSION = 1
FORMAT_KEY = "store.json"
DATABASE_FILE = "gc.sqlite"


class StoreFormat(NamedTuple):
    """What `store.json` holds, beside its format's version."""

    store_id: str
    chunking: Chunking


class Store:
    """Objects, the references between them, and the chunks they make up. Thread-safe."""

    def __init__(
        self,
        url: str,
        objects: Objects,
        references: References,
        settings: StoreSettings,
        store_format: StoreFormat,
    ) -> None:
        self.url = url
        self.id = store_format.store_id
        self.objects = objects
        self.references = references
        self.settings = settings
        # Temporary files of killed processes that were found when it was opened.
        self.leftovers = Leftovers()
        self.chunks = ChunkStore(objects, references, store_format.chunking, settings)
        bind_to_process(self)

    @classmethod
    def create(
        cls,
        url: str,
        *,
        database: str | None = None,
        settings: StoreSettings | None = None,
        seam: Seam | None = None,
    ) -> Self:
        """Make a new store in a folder, or below the prefix of a bucket (`s3://bucket/prefix`)."""
        target = _StoreTarget(url, database, settings or StoreSettings(), seam or Seam())
        try:
            wanted = target.new_format()
            try:
                # The file before the database: of two processes that create the same store, one
                # loses here, on a name that exists, and before either has made tables.
                target.objects.put(FORMAT_KEY, [_to_json(wanted)])
            except ObjectExists:
                wanted = target.unfinished_format()
            references = target.references(wanted.store_id, create=True)
            if references.database.reserve is not None:
                references.database.reserve.need()
        except BaseException:
            target.objects.close()
            raise
        return cls(url, target.objects, references, target.settings, wanted)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        database: str | None = None,
        settings: StoreSettings | None = None,
        seam: Seam | None = None,
    ) -> Self:
        """Open a store that exists, with the database it was created with."""
        target = _StoreTarget(url, database, settings or StoreSettings(), seam or Seam())
        try:
            found = target.format()
            references = target.references(found.store_id, create=False)
            try:
                # An old copy of the database opens without complaint and gives out numbers a
                # second time. The names of the commits show it, for the price of one listing.
                check_database(references.database, target.objects)
            except BaseException:
                references.close()
                raise
        except BaseException:
            target.objects.close()
            raise
        opened = cls(url, target.objects, references, target.settings, found)
        if isinstance(target.objects, LocalObjects) and not target.settings.gc.read_only:
            # Last: only of what has turned out to be a store, with its own database, is anything
            # removed.
            opened.leftovers = target.objects.remove_leftovers()
        return opened

    @classmethod
    def open_objects(
        cls, url: str, *, settings: StoreSettings | None = None, seam: Seam | None = None
    ) -> Self:
        """Open a store without its database: to read chunks whose keys are given.

        For workers of a plan that was made where the database is. Whatever asks for references
        finds none, so nothing can be written, pinned or looked up by name.
        """
        target = _StoreTarget(url, "", settings or StoreSettings(), seam or Seam())
        try:
            found = target.format()
        except BaseException:
            target.objects.close()
            raise
        return cls(url, target.objects, NoReferences(), target.settings, found)

    def close(self) -> None:
        """End all threads and connections.

        Chunks first, since their threads still read through the objects.
        """
        self.chunks.close()
        self.references.close()
        self.objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class StoreObjects(NamedTuple):
    """A store without its database, and where that is to be: what a rebuild begins with."""

    objects: Objects
    database_url: str
    store_id: str


@contextlib.contextmanager
def open_objects(
    url: str,
    *,
    database: str | None = None,
    settings: StoreSettings | None = None,
    seam: Seam | None = None,
) -> Iterator[StoreObjects]:
    """Give the objects of a store whose database may be lost."""
    target = _StoreTarget(url, database, settings or StoreSettings(), seam or Seam())
    try:
        yield StoreObjects(target.objects, target.database_url(), target.format().store_id)
    finally:
        target.objects.close()


class _StoreTarget:
    """Where a store is, or is to be."""

    def __init__(self, url: str, database: str | None, settings: StoreSettings, seam: Seam) -> None:
        self.url = url
        self.settings = settings
        self._seam = seam
        self._folder: PurePath | None = None
        self.objects: Objects
        scheme, divider, _ = url.partition("://")
        if not divider:
            self._folder = PurePath(url)
            self.objects = LocalObjects(self._folder, seam)
        elif scheme in REMOTE_SCHEMES:
            if database is None:
                raise BadInput(
                    "a store in a bucket needs a database",
                    hint="name one with `database`, such as postgresql://user@host/name",
                    path=url,
                )
            self.objects = _remote(url, seam, settings)
        else:
            raise BadInput(
                f"a store cannot be at a {scheme}:// address",
                hint=f"use a folder, or one of {', '.join(REMOTE_SCHEMES)}",
                path=url,
            )
        self._database = database

    def new_format(self) -> StoreFormat:
        """Return what is written into a new store; make its folder."""
        if isinstance(self.objects, LocalObjects):
            self.objects.make_root()
        store_id = f"{self._seam.randomness.getrandbits(128):032x}"
        return StoreFormat(store_id=store_id, chunking=self.settings.chunking)

    def format(self) -> StoreFormat:
        """Return what the store's own file says of it."""
        try:
            written = self.objects.get(FORMAT_KEY)
        except ObjectMissing:
            raise CannotOpen(
                "there is no store here",
                hint="correct the address, or create a store with `holdfast store create`",
                path=self.url,
            ) from None
        return _from_json(written, self.url)

    def unfinished_format(self) -> StoreFormat:
        """Return the format of a store whose creation was interrupted before its database."""
        found = self.format()
        try:
            self.references(found.store_id, create=False).close()
        except DatabaseLost:
            # No database, and yet there are chunks: it was lost, and this is a store and not an
            # attempt at one.
            if next(self.objects.list("chunks/"), None) is not None:
                raise
            return found
        raise CannotOpen(
            "a store already exists here", hint="open it, or choose another location", path=self.url
        )

    def references(self, store_id: str, *, create: bool) -> References:
        """Open the database, which must be there unless the store is new."""
        if self._database is None and self._folder is not None:
            path = self._folder / DATABASE_FILE
            if not create and self._seam.disk.is_shared and not self._seam.disk.exists(path):
                raise DatabaseLost(
                    "the store's database is missing",
                    hint="make a new one from the store's objects (`holdfast store rebuild`, or "
                    "`holdfast store fsck --repair`), or bring it back from a copy of today",
                    path=str(path),
                )
        return References(
            self.database_url(),
            settings=self.settings.gc,
            store_id=store_id,
            create=create,
            seam=self._seam,
        )

    def database_url(self) -> str:
        """Return where the database is: as the caller says, or a file in the store's folder."""
        if self._database is not None:
            return self._database
        assert self._folder is not None, "BUG: only a folder has a database of its own"
        return f"sqlite:///{self._folder / DATABASE_FILE}"


def _remote(url: str, seam: Seam, settings: StoreSettings) -> Objects:
    # The client of object stores is loaded by those who use it.
    from holdfast.store.objects.remote import RemoteLimits, RemoteObjects

    limits = RemoteLimits(
        settings.request_timeout_s, settings.retries, settings.retry_timeout_s, settings.connections
    )
    return RemoteObjects(url, seam, limits)


def _to_json(store_format: StoreFormat) -> bytes:
    fields = {"format_version": FORMAT_VERSION, "store_id": store_format.store_id}
    whole = {**fields, "chunking": dataclasses.asdict(store_format.chunking)}
    return json.dumps(whole, indent=2).encode() + b"\n"


def _from_json(written: bytes, url: str) -> StoreFormat:
    # The version alone at first: a later one may have fields that are not known here, and then the
    # message would be about them.
    try:
        fields = json.loads(written)
        version = fields.pop("format_version")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(url) from None
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"the store has format version {version}; this Holdfast knows {FORMAT_VERSION}",
            hint="use the version of Holdfast that made it, or a newer one",
            path=url,
        )
    try:
        chunking = Chunking(**fields.pop("chunking"))
        store_id = fields.pop("store_id")
    except (ValueError, KeyError, TypeError):
        raise _damaged(url) from None
    if fields or not isinstance(store_id, str):
        raise _damaged(url)
    return StoreFormat(store_id, chunking)


def _damaged(url: str) -> Damaged:
    return Damaged(
        f"{FORMAT_KEY} cannot be read",
        hint="bring it back from a copy: it says how the data is cut, and which store this is",
        path=url,
    )
