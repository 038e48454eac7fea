"""Reads a folder for the store: sorted by path, small files by several threads, ahead of time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import BadInput
from holdfast.seam.folders import Folder, FolderEntry, OpenedFile
from holdfast.seam.owners import group_name, user_name
from holdfast.store.chunks.writer import NewChunks
from holdfast.store.filesets.folder_walk import FolderReport, FolderWalk, ForkedWalk, LeftOut
from holdfast.store.filesets.info import Metadata, Xattrs
from holdfast.store.filesets.paths import is_target, leads_out
from holdfast.store.objects.objects import DataRef

if TYPE_CHECKING:
    from concurrent.futures import Future

READ_THREADS = 3
# Small files and links that one thread reads at a time, their bytes, and all that stands between.
GROUP_FILES = 64
GROUP_ENTRIES = 1024
GROUP_BYTES = 2 * 1024 * 1024
# Groups that are read ahead of what was taken.
GROUPS_AHEAD = 8


def metadata_of(entry: FolderEntry, xattrs: Xattrs) -> Metadata:
    """Return what is kept of a file, folder or link besides its content."""
    return Metadata(
        mode=entry.mode if entry.kind != "link" else None,
        mtime_ns=entry.mtime_ns,
        uid=entry.uid,
        gid=entry.gid,
        user=user_name(entry.uid),
        group=group_name(entry.gid),
        xattrs=xattrs,
    )


class FoundFile(NamedTuple):
    """What stands in the folder. `small` is a small file's content; others are read by `open`.

    `is_again`: it is another name of a file that came before, and was not read again.
    """

    entry: FolderEntry
    small: bytes | None = None
    link_target: str | None = None
    is_skipped: bool = False
    is_again: bool = False
    has_changed: bool = False
    has_holes: bool = False
    xattrs: Xattrs = ()
    # Where its content is, if it was stored already.
    stored: tuple[DataRef, ...] | None = None


class ReadFile:
    """A file that is read piece by piece; after that, what there is to say of it."""

    def __init__(self, entry: FolderEntry, file: OpenedFile) -> None:
        self._entry = entry
        self._file = file
        self.error: OSError | None = None
        self.has_changed = False
        self.has_holes = file.has_holes
        self.xattrs: Xattrs = ()

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes, as far as they can be read: `error` says why they end."""
        with self._file as file:
            try:
                yield from file.blocks()
                self.xattrs = file.xattrs()
                self.has_changed = not file.looks_like(self._entry)
            except OSError as error:
                self.error = error


class FolderReader:
    """One pass over a folder.

    `skip(entry)` says of a file that it need not be read; it is yielded without content.
    """

    def __init__(
        self,
        walk: FolderWalk | ForkedWalk,
        *,
        small_bytes: int,
        skip: Callable[[FolderEntry], bool] = lambda entry: False,
        threads: int = READ_THREADS,
    ) -> None:
        self._walk = walk
        self._path = walk.path
        self._small_bytes = small_bytes
        self._skip = skip
        self._outside_links = walk.outside_links
        self._threads = threads
        self._own = threading.local()
        self._folders: list[Folder] = []
        self._lock = threading.Lock()
        # Files with several names that came before.
        self._met: set[tuple[int, int]] = set()
        self.report = FolderReport()
        # What others stored of it, as far as it was new.
        self.new = NewChunks()

    def files(self) -> Iterator[FoundFile]:
        """Yield everything below that is to be stored, in order, with small files read."""
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="read-folder")
        ahead: deque[Future[list[FoundFile]]] = deque()
        try:
            for group in self._groups():
                ahead.append(pool.submit(self._read_group, group))
                # Small files are read in groups, because each costs some system calls and hardly
                # any bytes; one future per file would cost more than reading it.
                if len(ahead) > GROUPS_AHEAD:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            for folder in self._folders:
                folder.close()

    def open(self, entry: FolderEntry) -> ReadFile | None:
        """Open a file to be read piece by piece; None, and a line in the report, if not."""
        try:
            return ReadFile(entry, self._folder().open_file(entry.path))
        except OSError as error:
            self.report.failed(entry.path, error)
            return None

    def xattrs(self, entry: FolderEntry) -> Xattrs:
        """Return the extended attributes of a file or folder; none if they cannot be read."""
        try:
            if entry.kind == "folder":
                return self._folder().xattrs(entry.path)
            with self._folder().open_file(entry.path) as file:
                return file.xattrs()
        except OSError:
            return ()  # it is gone, or is reported where its content is read

    def _groups(self) -> Iterator[list[FoundFile]]:
        """Yield what stands in the folder, nothing read yet."""
        group: list[FoundFile] = []
        reads = group_bytes = 0
        for found in self.found():
            group.append(found)
            if self._is_read_ahead(found):
                reads += 1
                group_bytes += found.entry.size_bytes
            if reads >= GROUP_FILES or group_bytes >= GROUP_BYTES or len(group) >= GROUP_ENTRIES:
                yield group
                group, reads, group_bytes = [], 0, 0
        if group:
            yield group

    def found(self) -> Iterator[FoundFile]:
        """Yield what is to be stored, nothing read, and say what of it need not be."""
        for entry in self._walk.items():
            if isinstance(entry, LeftOut):
                self.report.leave_out(*entry)
                continue
            is_again = entry.links > 1 and entry.kind == "file" and self._is_again(entry)
            # A file that looks as it did is not opened. A link is read all the same where links
            # that lead out are refused: its target is what matters, and looks say nothing about
            # it.
            is_skipped = self._skip(entry) and not self._is_asked(entry)
            yield FoundFile(entry, is_skipped=is_skipped, is_again=is_again)

    def _is_asked(self, entry: FolderEntry) -> bool:
        """Whether it must be seen where a link leads, however it looks."""
        return entry.kind == "link" and self._outside_links != "keep"

    def _is_again(self, entry: FolderEntry) -> bool:
        """Say whether another name of this file came before; its content is read once."""
        number = (entry.device, entry.inode)
        if number in self._met:
            return True
        self._met.add(number)
        return False

    def _is_read_ahead(self, found: FoundFile) -> bool:
        """Say whether a thread reads this entry: all but large files, which are streamed."""
        entry = found.entry
        if found.is_skipped or found.is_again:
            return False
        return entry.kind != "file" or entry.size_bytes <= self._small_bytes

    def _read_group(self, group: list[FoundFile]) -> list[FoundFile]:
        """Read the small files of a group; runs in a thread. The order stays."""
        read: list[FoundFile] = []
        for found in group:
            if self._is_read_ahead(found):
                read += self._read(found.entry)
            else:
                read.append(found)
        return read

    def _read(self, entry: FolderEntry) -> list[FoundFile]:
        """Read a small file, a link or the attributes of a folder; nothing if it cannot be read."""
        if entry.kind == "link":
            target = self.target(entry)
            return [FoundFile(entry, link_target=target)] if target is not None else []
        if entry.kind == "folder":
            return [FoundFile(entry, xattrs=self.xattrs(entry))]
        try:
            with self._folder().open_file(entry.path) as file:
                data = b"".join(file.blocks())
                xattrs, has_holes = file.xattrs(), file.has_holes
                # Compared after reading with what was listed before it: a file that was written to
                # meanwhile may be a mixture, and is reported. It is stored anyway, since the next
                # run finds it changed.
                has_changed = not file.looks_like(entry)
        except OSError as error:
            self.report.failed(entry.path, error)
            return []
        # It may have grown meanwhile; then it is read again, as a large one.
        small = data if len(data) <= self._small_bytes else None
        return [
            FoundFile(entry, small, has_changed=has_changed, has_holes=has_holes, xattrs=xattrs)
        ]

    def target(self, entry: FolderEntry) -> str | None:
        """Return where a link leads; None, and a line in the report, if it is not stored."""
        try:
            target = self._folder().read_link(entry.path)
        except OSError as error:
            self.report.failed(entry.path, error)
            return None
        if not is_target(target):
            self.report.leave_out(entry.path, "name", "it leads to what is no path")
            return None
        if self._outside_links == "keep" or not leads_out(entry.path, target):
            return target
        if self._outside_links == "skip":
            self.report.leave_out(entry.path, "outside_link", f"it leads to {target!r}")
            return None
        raise BadInput(
            f"the link {entry.path!r} leads to {target!r}, outside of the folder",
            hint="Remove it, leave such links out (outside_links='skip'), or keep them.",
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
