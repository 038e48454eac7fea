"""Restores files into a folder, by several threads or processes, and never outside of it.

Files that share chunks stand beside each other in the order of paths, so each thread takes a run of
neighbours. A process is told with each run where its chunks are, and needs no database. Links are
made last, when nothing is written any more that one could lead astray (the folder's own code
follows none, either), and folders get their modes and times at the very end.

**An archive is an attacker's input.** A file set may come from a store that somebody else can
write to. So paths are checked again although they were checked when stored, no link is followed
while writing (`Folder` opens every step of a path by itself), rights that a file gives to whoever
runs it are not restored unless asked for, and nothing that exists is replaced unless asked for.
"""

from __future__ import annotations

import dataclasses
import errno
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import (
    BadInput,
    Damaged,
    HoldfastError,
    ObjectMissing,
    StoreError,
    UnknownPath,
)
from holdfast.seam.folders import Dress, Folder, Undone, new_folder, partial_prefix
from holdfast.seam.owners import group_number, is_root, user_number
from holdfast.seam.workers import Alive, Finish, WorkerPool
from holdfast.store.chunks.settings import CHUNK_BYTES_MAX, StoreSettings
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import LostRange
from holdfast.store.filesets.entry import message_of
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.info import FileInfo, Xattrs
from holdfast.store.filesets.merge import direct, readable_files
from holdfast.store.filesets.paths import (
    after_folder,
    check_folder,
    check_path,
    compile_glob,
    is_target,
    leads_out,
    literal_prefix,
)
from holdfast.store.filesets.selection import OutsideLinks
from holdfast.store.objects.objects import ChunkHash, ChunkKey
from holdfast.store.store import Store

if TYPE_CHECKING:
    from concurrent.futures import Future

WRITE_THREADS = 4
# Files that one thread restores at a time, and their bytes.
GROUP_FILES = 64
GROUP_BYTES = 4 * 1024 * 1024
# A group is not ended inside of a chunk, where it holds fewer files than this: two threads would
# both read and unpack it.
GROUP_FILES_MAX = 1024
# How far a disk's clock may be behind ours: times of its files go by ticks.
_TICK_NS = 50_000_000
# Groups that are handed out ahead of what is done.
GROUPS_AHEAD = 16
# Files that failed which are named; all are counted.
NAMED_FAILURES_MAX = 100

# Nothing more can be written: going on is no use.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SET_ID = stat.S_ISUID | stat.S_ISGID
# An extended attribute that gives rights to whoever runs the file, as set-id bits do.
_CAPABILITY = b"security.capability"

RestoreProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Restoring:
    """How files are restored.

    `owner` None: as they were if this process is root's. Owners are found by their names where this
    machine knows them, unless `numeric_ids`. `set_id`: set-user-id and set-group-id bits and
    capabilities are restored, too. `keep_going`: files that fail are
    reported, and the rest is restored.
    """

    overwrite: bool = False
    outside_links: OutsideLinks = "keep"
    owner: bool | None = None
    numeric_ids: bool = False
    set_id: bool = False
    keep_going: bool = False


class ExtractFailure(NamedTuple):
    """A path that was not restored."""

    path: str
    why: str


@dataclass
class Restored:
    """What was written, what failed, and what files did not get, by kind."""

    files: int = 0
    size_bytes: int = 0
    failed: int = 0
    failures: list[ExtractFailure] = field(default_factory=list)
    not_restored: Counter[str] = field(default_factory=Counter)

    def fail(self, path: str, why: str) -> None:
        """Note a path that was not restored."""
        self.failed += 1
        if len(self.failures) < NAMED_FAILURES_MAX:
            self.failures.append(ExtractFailure(path, why))


def extract(
    files: FileSet,
    target: PurePath | str,
    *,
    folder: str = "",
    only: Sequence[str] = (),
    how: Restoring = Restoring(),  # noqa: B008 - immutable
    threads: int | WorkerPool = WRITE_THREADS,
    progress: RestoreProgress = lambda files, size_bytes: None,
) -> Restored:
    """Restore a file set, or what is below one of its folders, into a folder on disk.

    With `only`, no more than these files and folders of it, or what matches these patterns.

    A file that is there already is an error, or is replaced with `overwrite`; others stay. No file
    has its name before all of it is there. Links that lead out of the folder are made by default,
    as they were stored; nothing is written through them. Files are written by so many threads, or
    by workers, each with a `RangeRestorer`. `progress` is called, in this thread, with how many
    files and bytes are restored.
    """
    below = check_folder(folder)
    listing = _Listing(files, below, only)  # what is not there is said before anything is made
    try:
        with new_folder(target) as root:
            return _Extraction(files, root, below, how).run(listing, threads, progress)
    except OSError as error:
        raise _failed(str(target), error) from error


def planned(files: FileSet, *, folder: str = "", only: Sequence[str] = ()) -> Restored:
    """Return what `extract` would restore; nothing is written."""
    done = Restored()
    for file in _Listing(files, check_folder(folder), only).chosen():
        if not file.is_folder:
            done.files += 1
            done.size_bytes += file.size_bytes
    return done


class _Listing:
    """The files of a file set that are to be restored."""

    def __init__(self, files: FileSet, below: str, only: Sequence[str]) -> None:
        self._files = files
        self._below = below
        self._chosen = [self._chooser(named) for named in only]

    def chosen(self, lost: Callable[[LostRange], None] | None = None) -> Iterator[FileInfo]:
        """Yield them, in order; with `lost`, as far as the index is there."""
        for file in self._everything(lost):
            if not self._chosen or any(is_chosen(file.path) for is_chosen in self._chosen):
                yield file

    def _everything(self, lost: Callable[[LostRange], None] | None) -> Iterator[FileInfo]:
        lo, hi = self._below, after_folder(self._below)
        if lost is None:
            yield from self._files.files(lo, hi)
            return
        for path, index in readable_files(self._files.nodes, self._files.sources, lost):
            if lo <= path and (hi is None or path < hi):
                yield FileInfo(path, index)

    def _chooser(self, named: str) -> Callable[[str], bool]:
        """Return what chooses a file, a folder or all that matches; they must be there."""
        if literal_prefix(named) != named:
            matches = compile_glob(named).fullmatch
            if not any(matches(file.path) for file in self._everything(None)):
                raise UnknownPath(
                    f"nothing in the file set matches {named!r}",
                    hint="List it to see what there is.",
                )
            return lambda path: matches(path) is not None
        found = self._files.stat(named)
        if found.is_folder:
            return lambda path: path.startswith(found.path)
        return lambda path: path == found.path


class _Extraction:
    """One restore: groups of files by threads; links, other names and folders after all files.

    Links come last, so that no file is ever written through one. Folders get their times and modes
    at the very end: writing into them would change the times, and a mode may forbid writing.
    """

    def __init__(self, files: FileSet, root: Folder, below: str, how: Restoring) -> None:
        self._files = files
        self._root = root
        self._below = below
        self._how = how
        self._is_root = is_root()
        self._gives_owner = self._is_root if how.owner is None else how.owner
        self._own = threading.local()
        self._folders: list[Folder] = []
        # Guards `_done`.
        self._lock = threading.Lock()
        self._done = Restored()
        # The first restored name of files that have several, and the others.
        self._first_names: dict[tuple[str, bytes], str] = {}
        self._other_names: list[tuple[FileInfo, str]] = []
        # Folders that could not be made when they were met.
        self._unmade: list[FileInfo] = []
        # What another worker wrote that died is newer than this. It is replaced, if it is nothing
        # but the beginning of what is restored: a file of the user's may be as new.
        self._written_since_ns: int | None = None
        self._alive: Alive = lambda: None

    def run(
        self, listing: _Listing, threads: int | WorkerPool, progress: RestoreProgress
    ) -> Restored:
        """Restore everything: files, then other names of them, then links, then folders."""
        links: list[FileInfo] = []
        folders: list[FileInfo] = []
        listed = listing.chosen(self._lost if self._how.keep_going else None)
        groups = self._groups(listed, links, folders)
        if isinstance(threads, int):
            self._run_threads(groups, threads, progress)
        else:
            self._run_workers(groups, threads, progress)
        for file, first in self._other_names:
            self._try(file, partial(self._name_again, file, first))
        for link in links:
            self._try(link, partial(self._link, link))
        self._finish(folders)
        return self._done

    def _run_threads(
        self, groups: Iterator[list[FileInfo]], threads: int, progress: RestoreProgress
    ) -> None:
        """Restore files by threads, a few groups ahead of the one that is waited for."""
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(threads, thread_name_prefix="restore")
        coming: deque[Future[None]] = deque()
        done = self._done
        try:
            for group in groups:
                coming.append(pool.submit(self._write, group))
                # The bound on what is fetched and not written yet: the results are waited for in
                # order, so an error of a group ends the run soon after it happened.
                if len(coming) > GROUPS_AHEAD:
                    coming.popleft().result()
                    progress(done.files, done.size_bytes)
            while coming:
                coming.popleft().result()
                progress(done.files, done.size_bytes)
        finally:
            pool.shutdown(cancel_futures=True)
            for folder in self._folders:
                folder.close()

    def _run_workers(
        self, groups: Iterator[list[FileInfo]], pool: WorkerPool, progress: RestoreProgress
    ) -> None:
        """Restore files by workers. A worker that dies is followed by one that knows of it."""
        since_ns = self._files.store.references.seam.clock.wall_ns() - _TICK_NS
        how = dataclasses.astuple(self._how)
        pool.begin((self._files.store.url, str(self._root.path), self._below, how, since_ns))
        coming: set[int] = set()
        for group in groups:
            coming.add(pool.submit(self._task(group)))
            if pool.unanswered > pool.ahead:
                self._take_answers(pool, coming, progress)
        while coming:
            self._take_answers(pool, coming, progress)
        if pool.lost_pids:
            self._remove_partials(tuple(map(partial_prefix, pool.lost_pids)))

    def _remove_partials(self, prefixes: tuple[str, ...]) -> None:
        """Remove what workers had begun to write when they died."""
        for entry in list(self._root.walk(failed=lambda path, error: None)):
            if entry.path.rpartition("/")[2].startswith(prefixes):
                self._root.remove(entry.path)

    def _task(self, group: list[FileInfo]) -> tuple[Any, ...]:
        """Return what a worker is told of a group: its files, and where their chunks are."""
        reader = self._files.reader
        told: list[tuple[str, bytes]] = []
        hashes: dict[ChunkHash, None] = {}
        for file in group:
            refs = file.refs
            try:
                # Lists of references are resolved here: what they lead to has keys as well.
                if any(ref.indirect for ref in refs):
                    refs = [message_of(ref) for _, ref in direct(reader, refs)]
            except (Damaged, ObjectMissing) as error:
                if not self._how.keep_going:
                    raise
                self._fail(file, error)
                continue
            told.append((file.path, file.to_bytes(refs)))
            hashes |= dict.fromkeys([ChunkHash(ref.chunk.hash) for ref in refs])
        return told, [(key.hash, key.generation) for key in reader.keys(hashes)]

    def _take_answers(self, pool: WorkerPool, coming: set[int], progress: RestoreProgress) -> None:
        """Wait for an answer, and count what all that came say; in any order.

        Beside a group that is one large file, others do many small ones.
        """
        try:
            pool.wait()
        except ObjectMissing:
            if self._files.pin is not None:
                self._files.pin.confirm()  # if it ended, nothing is wrong with the store
            raise
        done = self._done
        for ticket in [ticket for ticket in coming if pool.is_answered(ticket)]:
            coming.remove(ticket)
            files, size_bytes, failed, failures, not_restored = pool.result(ticket)
            done.files += files
            done.size_bytes += size_bytes
            done.failed += failed
            room = NAMED_FAILURES_MAX - len(done.failures)
            done.failures += [ExtractFailure(*failure) for failure in failures[:room]]
            done.not_restored.update(not_restored)
        progress(done.files, done.size_bytes)

    def _lost(self, lost: LostRange) -> None:
        last = "the end" if lost.last_path is None else lost.last_path
        with self._lock:
            self._done.fail(f"{lost.first_path} … {last}", f"the index is lost: {lost.why}")

    def _groups(
        self, listed: Iterator[FileInfo], links: list[FileInfo], folders: list[FileInfo]
    ) -> Iterator[list[FileInfo]]:
        """Yield runs of files; what is not a file is set aside."""
        group: list[FileInfo] = []
        group_bytes = 0
        last_chunk = b""
        for file in listed:
            if file.is_folder:
                folders.append(file)
                self._make_early(file)
                continue
            if file.is_link:
                links.append(file)
                continue
            if file.hard_link is not None and self._is_other_name(file, file.hard_link):
                continue
            refs = file.refs
            is_full = len(group) >= GROUP_FILES or group_bytes >= GROUP_BYTES
            shares = bool(refs) and refs[0].chunk.hash == last_chunk
            if is_full and (not shares or len(group) >= GROUP_FILES_MAX):
                yield group
                group, group_bytes = [], 0
            group.append(file)
            group_bytes += file.size_bytes
            last_chunk = refs[-1].chunk.hash if refs else last_chunk
        if group:
            yield group

    def _is_other_name(self, file: FileInfo, hard_link: str) -> bool:
        """Set aside a file that is restored under another name, if it is still the same one."""
        # With the content: two names of one file in the commit may have been changed apart since
        # by a layer on top, and are two files then.
        same = (hard_link, file.content_id)
        first = self._first_names.setdefault(same, file.path)
        if first == file.path:
            return False
        self._other_names.append((file, self._inner(first)))
        return True

    def _write(self, group: list[FileInfo]) -> None:
        """Restore a group of files, in a thread that has its own handle of the folder."""
        self._files.reader.expect(
            ChunkHash(ref.chunk.hash) for file in group for ref in file.refs if not ref.indirect
        )
        root = self._own_root()
        for file in group:
            self._alive()
            self._try(file, partial(self._write_file, root, file))

    def write_alone(self, group: list[FileInfo], alive: Alive, since_ns: int | None) -> Restored:
        """Restore a group of files, and nothing else; return what was done of it."""
        self._done = Restored()
        self._alive = alive
        self._written_since_ns = since_ns
        self._write(group)
        return self._done

    def _try(self, file: FileInfo, restore: Callable[[], list[Undone]]) -> None:
        """Restore one file, and count it; an error ends all, unless the rest is to go on."""
        path = f"{self._root.path}/{self._inner(file)}"
        try:
            undone = restore()
        except OSError as error:
            failed = _failed(path, error)
            # A full or read-only disk fails for every further file as well: a report of a million
            # failures would hide the one reason.
            if not self._how.keep_going or error.errno in _NO_ROOM:
                raise failed from error
            self._fail(file, failed)
        except (Damaged, ObjectMissing) as error:
            if not self._how.keep_going:
                raise
            self._fail(file, error)
        else:
            with self._lock:
                self._done.files += 1
                self._done.size_bytes += file.size_bytes
                self._done.not_restored.update(undone)

    def _fail(self, file: FileInfo, error: HoldfastError) -> None:
        with self._lock:
            self._done.fail(file.path, str(error))

    def _write_file(self, root: Folder, file: FileInfo) -> list[Undone]:
        path = self._inner(file)
        if self._how.overwrite:
            root.remove(path)
        elif self._written_since_ns is not None:
            root.remove_begun(path, self._written_since_ns, self._files.content(file))
        return root.write(path, self._files.content(file), self._dress(file), holes=file.is_sparse)

    def _name_again(self, file: FileInfo, first: str) -> list[Undone]:
        """Make a hard link to the name that was restored first, or a copy where that cannot be."""
        path = self._inner(file)
        if self._how.overwrite:
            self._root.remove(path)
        try:
            self._root.hard_link(first, path)
        except FileExistsError:
            raise
        # A copy has the same content; that it is not the same file is reported.
        except OSError:  # the first one failed, or the disk has no such links
            with self._lock:
                self._done.not_restored["hard_link"] += 1
            return self._write_file(self._root, file)
        return []

    def _link(self, link: FileInfo) -> list[Undone]:
        """Make a symbolic link, unless it leads out of the folder and that is not wanted."""
        target = link.link_target or ""
        if not is_target(target):
            raise Damaged(
                f"the link {link.path!r} leads to {target!r}, which is no path",
                hint="Such links are not stored by Holdfast. Do not trust this file set.",
            )
        if self._how.outside_links != "keep" and leads_out(link.path, target):
            if self._how.outside_links == "refuse":
                raise BadInput(
                    f"the link {link.path!r} leads out of the file set, to {target!r}",
                    hint="Leave such links out, or keep them if you trust who stored them.",
                )
            with self._lock:
                self._done.not_restored["outside_link"] += 1
                self._done.files -= 1  # it counts as done, and is not there
            return []
        path = self._inner(link)
        if self._how.overwrite:
            self._root.remove(path)
        return self._root.link(path, target, self._dress(link))

    def _make_early(self, folder: FileInfo) -> None:
        """Make a folder once, before several threads or workers try to, each for its own files."""
        try:
            self._root.make_folder(self._inner(folder))
        except OSError:
            self._unmade.append(folder)  # what can be restored is, before this is an error

    def _finish(self, folders: list[FileInfo]) -> None:
        """Dress all folders, inner ones first."""
        for folder in self._unmade:
            self._root.make_folder(self._inner(folder))
        # Sorted paths list a folder before what is in it, so backwards is from the inside out.
        for folder in reversed(folders):
            if folder.path != self._below:
                undone = self._root.dress(self._inner(folder), self._dress(folder))
                self._done.not_restored.update(undone)

    def _dress(self, file: FileInfo) -> Dress:
        """Return what a file gets besides its content."""
        known, mode = file.metadata, file.mode
        owner: tuple[int, int] | None = None
        if self._gives_owner and known.uid is not None and known.gid is not None:
            uid = self._owner(known.uid, known.user, user_number)
            owner = uid, self._owner(known.gid, known.group, group_number)
        # Such bits of another owner's file would give away this one's rights.
        # As root without owners, a set-user-id file of somebody would become one of root's.
        is_safe = self._how.set_id and (owner is not None or not self._is_root)
        if mode & _SET_ID and not is_safe and not file.is_folder:
            mode &= ~_SET_ID
            with self._lock:
                self._done.not_restored["set_id"] += 1
        return Dress(mode, known.mtime_ns, owner, self._xattrs(known.xattrs))

    def _owner(self, number: int, name: str | None, find: Callable[[str], int | None]) -> int:
        found = find(name) if name is not None and not self._how.numeric_ids else None
        return number if found is None else found

    def _xattrs(self, xattrs: Xattrs) -> Xattrs:
        """Return extended attributes without capabilities, which are rights like set-id bits."""
        if self._how.set_id or not xattrs:
            return xattrs
        kept = tuple(pair for pair in xattrs if pair[0] != _CAPABILITY)
        if len(kept) < len(xattrs):
            with self._lock:
                self._done.not_restored["set_id"] += 1
        return kept

    def _inner(self, file: FileInfo | str) -> str:
        """Return where a file goes, checked again: an index is only as good as who wrote it."""
        path = file if isinstance(file, str) else file.path
        return check_path(path)[len(self._below) :]

    def _own_root(self) -> Folder:
        """Return this thread's own handle of the folder."""
        found: Folder | None = getattr(self._own, "root", None)
        if found is None:
            found = self._own.root = Folder(self._root.path)
            with self._lock:
                self._folders.append(found)
        return found


class RangeRestorer:
    """What a worker does of a `get`: it writes groups of files."""

    def __init__(self, given: tuple[Any, ...]) -> None:
        url, target, below, how, self._since_ns = given
        # One thread does all: what is fetched ahead of it would be fetched on its core. Files that
        # share a chunk are neighbours, so the largest one is as much as need be remembered; memory
        # that is used again is cheaper than memory that is new.
        settings = StoreSettings(prefetch_bytes=0, cache_bytes=CHUNK_BYTES_MAX)
        self._store = Store.open_objects(url, settings=settings)
        self._keys: dict[ChunkHash, ChunkKey] = {}
        self._root = Folder(target)
        files = FileSet(self._store, (), keys=self._keys)
        self._extraction = _Extraction(files, self._root, below, Restoring(*how))

    def close(self) -> None:
        """End what this process has opened."""
        self._root.close()
        self._store.close()

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        """Write a group. Again: what the other worker wrote of it is replaced."""
        told, keys = task
        self._keys.clear()
        self._keys.update({ChunkHash(hash_): ChunkKey(ChunkHash(hash_), n) for hash_, n in keys})
        files = [FileInfo(path, pb.Index.FromString(data)) for path, data in told]
        done = self._extraction.write_alone(files, alive, self._since_ns if again else None)
        answer = (
            *(done.files, done.size_bytes, done.failed, [tuple(one) for one in done.failures]),
            dict(done.not_restored),
        )
        return lambda: answer


def _failed(path: str, error: OSError) -> StoreError | BadInput:
    """Return what an operating system's error means to whoever restores."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return BadInput(
            "something is there already where a file is to be restored",
            hint="Restore into an empty folder, or overwrite what is there.",
            path=path,
        )
    return StoreError(
        f"a file cannot be restored: {error.strerror or error}",
        hint="Make room, or the folder writable; what was restored so far can be overwritten.",
        path=path,
    )
