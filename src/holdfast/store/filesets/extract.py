"""Restores files into a folder, by several threads, and never outside of it.

Files that share chunks stand beside each other in the order of paths, so each thread takes a run of
neighbours. Links are made last, when nothing is written any more that one could lead astray (the
folder's own code follows none, either), and folders get their modes and times at the very end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePath
from typing import NamedTuple

from holdfast.errors import BadInput, Damaged, StoreError
from holdfast.seam.folders import Folder, new_folder
from holdfast.store.address import ChunkHash
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.info import FileInfo
from holdfast.store.filesets.paths import (
    after_folder,
    check_folder,
    check_path,
    is_target,
    leads_out,
)
from holdfast.store.filesets.selection import OutsideLinks

WRITE_THREADS = 4
# Files that one thread restores at a time, and their bytes.
GROUP_FILES = 64
GROUP_BYTES = 4 * 1024 * 1024
# Groups that are handed out ahead of what is done.
GROUPS_AHEAD = 16

Progress = Callable[[int, int], None]


class Restored(NamedTuple):
    """What was written."""

    files: int
    size_bytes: int


def extract(
    files: FileSet,
    target: PurePath | str,
    *,
    folder: str = "",
    overwrite: bool = False,
    outside_links: OutsideLinks = "keep",
    threads: int = WRITE_THREADS,
    progress: Progress = lambda files, size_bytes: None,
) -> Restored:
    """Restore a file set, or what is below one of its folders, into a folder on disk.

    A file that is there already is an error, or is replaced with `overwrite`; others stay.
    Links that lead out of the folder are made by default, as they were stored; nothing is written
    through them. `progress` is told, in this thread, how many files and bytes are restored.
    """
    below = check_folder(folder)
    try:
        with new_folder(target) as root:
            extraction = _Extraction(files, root, below, overwrite, outside_links)
            return extraction.run(threads, progress)
    except OSError as error:
        raise _failed(str(target), error) from error


class _Extraction:
    def __init__(
        self,
        files: FileSet,
        root: Folder,
        below: str,
        overwrite: bool,
        outside_links: OutsideLinks,
    ) -> None:
        self._files = files
        self._root = root
        self._below = below
        self._overwrite = overwrite
        self._outside_links = outside_links
        self._own = threading.local()
        self._folders: list[Folder] = []
        self._lock = threading.Lock()

    def run(self, threads: int, progress: Progress) -> Restored:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="restore")
        links: list[FileInfo] = []
        folders: list[FileInfo] = []
        coming: deque[Future[Restored]] = deque()
        done = Restored(0, 0)
        try:
            for group in self._groups(links, folders):
                coming.append(pool.submit(self._write, group))
                if len(coming) > GROUPS_AHEAD:
                    done = _sum(done, coming.popleft().result())
                    progress(*done)
            while coming:
                done = _sum(done, coming.popleft().result())
                progress(*done)
        finally:
            pool.shutdown(cancel_futures=True)
            for folder in self._folders:
                folder.close()
        self._finish(links, folders)
        return _sum(done, Restored(len(links), 0))

    def _groups(self, links: list[FileInfo], folders: list[FileInfo]) -> Iterator[list[FileInfo]]:
        """Yield runs of files; what is not a file is set aside."""
        group: list[FileInfo] = []
        group_bytes = 0
        for file in self._files.files(self._below, after_folder(self._below)):
            if file.is_folder:
                folders.append(file)
                continue
            if file.is_link:
                links.append(file)
                continue
            group.append(file)
            group_bytes += file.size_bytes
            if len(group) >= GROUP_FILES or group_bytes >= GROUP_BYTES:
                yield group
                group, group_bytes = [], 0
        if group:
            yield group

    def _write(self, group: list[FileInfo]) -> Restored:
        root = self._own_root()
        size_bytes = 0
        self._files.reader.expect(
            ChunkHash(ref.chunk.hash) for file in group for ref in file.refs if not ref.indirect
        )
        for file in group:
            path = self._inner(file)
            try:
                if self._overwrite:
                    root.remove(path)
                root.write(path, self._files.content(file), file.mode, file.mtime_ns)
            except OSError as error:
                raise _failed(f"{root.path}/{path}", error) from error
            size_bytes += file.size_bytes
        return Restored(len(group), size_bytes)

    def _finish(self, links: list[FileInfo], folders: list[FileInfo]) -> None:
        for link in links:
            target = link.link_target or ""
            if not is_target(target):
                raise Damaged(
                    f"the link {link.path!r} leads to {target!r}, which is no path",
                    hint="Such links are not stored by Holdfast. Do not trust this file set.",
                )
            if self._outside_links != "keep" and leads_out(link.path, target):
                if self._outside_links == "skip":
                    continue
                raise BadInput(
                    f"the link {link.path!r} leads out of the file set, to {target!r}",
                    hint="Leave such links out, or keep them if you trust who stored them.",
                )
            path = self._inner(link)
            try:
                if self._overwrite:
                    self._root.remove(path)
                self._root.link(path, target)
            except OSError as error:
                raise _failed(f"{self._root.path}/{path}", error) from error
        for folder in folders:
            self._root.make_folder(self._inner(folder))
        for folder in reversed(folders):
            if folder.path != self._below:
                self._root.dress(self._inner(folder), folder.mode, folder.mtime_ns)

    def _inner(self, file: FileInfo) -> str:
        """Return where a file goes, checked again: an index is only as good as who wrote it."""
        return check_path(file.path)[len(self._below) :]

    def _own_root(self) -> Folder:
        found: Folder | None = getattr(self._own, "root", None)
        if found is None:
            found = self._own.root = Folder(self._root.path)
            with self._lock:
                self._folders.append(found)
        return found


def _sum(one: Restored, other: Restored) -> Restored:
    return Restored(one.files + other.files, one.size_bytes + other.size_bytes)


def _failed(path: str, error: OSError) -> StoreError | BadInput:
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
