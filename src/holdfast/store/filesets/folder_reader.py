"""Reads a folder for the store: sorted by path, small files by several threads, ahead of time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePath
from typing import Literal, NamedTuple

from holdfast.errors import BadInput, StoreError
from holdfast.seam.folders import Folder, FolderEntry
from holdfast.store.filesets.paths import check_path, leads_out

READ_THREADS = 3
# Small files and links that one thread reads at a time, their bytes, and all that stands between.
GROUP_FILES = 64
GROUP_ENTRIES = 1024
GROUP_BYTES = 2 * 1024 * 1024
# Groups that are read ahead of what was taken.
GROUPS_AHEAD = 8

OutsideLinks = Literal["refuse", "skip"]


class FoundFile(NamedTuple):
    """What stands in the folder. `small` is a small file's content; others are read by `blocks`."""

    entry: FolderEntry
    small: bytes | None = None
    link_target: str | None = None
    is_skipped: bool = False


class FolderReader:
    """One pass over a folder. Paths that cannot be stored are refused before anything is read.

    `skip(entry)` says of a file that it need not be read; it is yielded without content.
    """

    def __init__(
        self,
        path: PurePath | str,
        *,
        small_bytes: int,
        skip: Callable[[FolderEntry], bool] = lambda entry: False,
        outside_links: OutsideLinks = "refuse",
        threads: int = READ_THREADS,
    ) -> None:
        self._path = path
        self._small_bytes = small_bytes
        self._skip = skip
        self._outside_links = outside_links
        self._threads = threads
        self._own = threading.local()
        self._folders: list[Folder] = []
        self._lock = threading.Lock()
        self.skipped_links = 0

    def files(self) -> Iterator[FoundFile]:
        """Yield everything below, in order, with small files read."""
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="read-folder")
        ahead: deque[Future[list[FoundFile]]] = deque()
        try:
            for group in self._groups():
                ahead.append(pool.submit(self._read_group, group))
                if len(ahead) > GROUPS_AHEAD:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            for folder in self._folders:
                folder.close()

    def blocks(self, entry: FolderEntry) -> Iterator[bytes] | None:
        """Return the bytes of a file, piece by piece; None if it went since it was found."""
        blocks = self._folder().blocks(entry.path)
        try:
            first = next(blocks, b"")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(entry.path, error) from error
        return self._from(entry, first, blocks)

    def _from(self, entry: FolderEntry, first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
        yield first
        try:
            yield from rest
        except OSError as error:
            raise self._failed(entry.path, error) from error

    def _groups(self) -> Iterator[list[FoundFile]]:
        """Yield what stands in the folder, nothing read yet."""
        group: list[FoundFile] = []
        reads = group_bytes = 0
        for entry in self._walk():
            is_skipped = entry.kind == "file" and self._skip(entry)
            group.append(FoundFile(entry, is_skipped=is_skipped))
            if self._is_read_ahead(group[-1]):
                reads += 1
                group_bytes += entry.size_bytes
            if reads >= GROUP_FILES or group_bytes >= GROUP_BYTES or len(group) >= GROUP_ENTRIES:
                yield group
                group, reads, group_bytes = [], 0, 0
        if group:
            yield group

    def _is_read_ahead(self, found: FoundFile) -> bool:
        entry = found.entry
        if entry.kind == "link":
            return True
        return (
            entry.kind == "file" and entry.size_bytes <= self._small_bytes and not found.is_skipped
        )

    def _walk(self) -> Iterator[FolderEntry]:
        try:
            for entry in self._folder().walk():
                if entry.kind == "other":
                    raise BadInput(
                        f"{entry.path!r} is neither a file, a folder nor a link",
                        hint="Leave out sockets, pipes and devices.",
                        path=str(self._path),
                    )
                check_path(entry.path)
                yield entry
        except OSError as error:
            raise self._failed("", error) from error

    def _read_group(self, group: list[FoundFile]) -> list[FoundFile]:
        read: list[FoundFile] = []
        for found in group:
            if self._is_read_ahead(found):
                read += self._read(found.entry)
            else:
                read.append(found)
        return read

    def _read(self, entry: FolderEntry) -> list[FoundFile]:
        folder = self._folder()
        try:
            if entry.kind == "link":
                return self._link(folder, entry)
            data = folder.read(entry.path)
        except FileNotFoundError:
            return []  # it went while we looked
        except OSError as error:
            raise self._failed(entry.path, error) from error
        # It may have grown meanwhile; then it is read again, as a large one.
        return [FoundFile(entry, data if len(data) <= self._small_bytes else None)]

    def _link(self, folder: Folder, entry: FolderEntry) -> list[FoundFile]:
        target = folder.read_link(entry.path)
        if not leads_out(entry.path, target):
            return [FoundFile(entry, link_target=target)]
        if self._outside_links == "skip":
            with self._lock:
                self.skipped_links += 1
            return []
        raise BadInput(
            f"the link {entry.path!r} leads to {target!r}, outside of the folder",
            hint="Remove it, or leave such links out (outside_links='skip').",
            path=str(self._path),
        )

    def _folder(self) -> Folder:
        """Return this thread's own view of the folder."""
        found: Folder | None = getattr(self._own, "folder", None)
        if found is None:
            found = self._own.folder = Folder(self._path)
            with self._lock:
                self._folders.append(found)
        return found

    def _failed(self, path: str, error: OSError) -> StoreError:
        return StoreError(
            f"{path or 'the folder'} cannot be read: {error.strerror or error}",
            hint="Make it readable, or leave it out; nothing was committed.",
            path=str(self._path),
        )
