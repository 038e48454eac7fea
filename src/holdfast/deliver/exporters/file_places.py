"""Where complete files go: a folder of this machine, or a bucket.

Either way a file appears under its name at once and whole, and a second time replaces the first.
That is all that exactly once needs of the place, since names and bytes follow from the journal: in
a bucket a request whose answer was lost is simply made again, and one that lands late, or twice,
changes nothing.

Files for a bucket are put together on this machine, and sent from there, part by part: how many of
them are open at once, and how large they are, then costs no memory.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePath

from holdfast.deliver.exporters.complete_file import NAME, make_dirs
from holdfast.seam.bucket import Bucket
from holdfast.seam.disk import Disk, pieces
from holdfast.seam.points import FaultPoint

_PARTITION = re.compile(r"(date|hour|service)=.+")
# Written when an exporter starts, to learn whether it may write. Readers of a data lake skip such
# names.
CHECK_KEY = ".holdfast/writable"


class FilesPoint(FaultPoint):
    """The moments around an object, as fault injection names them: see `Seam.reached`."""

    SENDING = "files-sending", "a file is complete here, and about to be sent into its bucket"
    SENT = "files-sent", "the bucket has a file, which is still here, too"


class FolderPlace:
    """A folder, on the disk on which its files are put together."""

    wants_synced = True

    def __init__(self, disk: Disk, folder: PurePath) -> None:
        self._disk = disk
        self._folder = folder

    def check(self) -> None:
        """A folder shows with the first event whether it can be written."""

    def take(self, file: PurePath, name: PurePath) -> None:
        path = self._folder / name
        make_dirs(self._disk, path.parent)
        self._disk.rename(file, path, "files.publish.rename")
        self._disk.sync_dir(path.parent, "files.publish.sync_dir")

    def remove_oldest(self, max_bytes: int, below: Collection[str]) -> list[PurePath]:
        """The folders that become empty go with them. Files with other names are not counted."""
        removed: list[PurePath] = []
        files = sorted(self._files(self._folder, below), key=lambda file: file[0].name)
        total_bytes = sum(size_bytes for _, size_bytes in files)
        # Never the newest: a limit below the size of one file would otherwise leave nothing at
        # all.
        for path, size_bytes in files[:-1]:
            if total_bytes <= max_bytes:
                break
            self._disk.unlink(path, "files.remove.unlink")
            total_bytes -= size_bytes
            removed.append(path)
        for folder in {path.parent for path in removed} - {self._folder}:
            self._remove_empty(folder)
        return removed

    def _remove_empty(self, folder: PurePath) -> None:
        while folder != self._folder and not self._disk.list(folder):
            with contextlib.suppress(OSError):
                self._disk.remove_dir(folder, "files.remove.dir")
            folder = folder.parent

    def _files(
        self, folder: PurePath, below: Collection[str] = ()
    ) -> Iterator[tuple[PurePath, int]]:
        """Yield the files that bear our names, with their sizes, also in partitions and `below`.

        Nothing else is ever counted or removed: the directory belongs to the user.
        """
        for entry in self._disk.list(folder):
            if entry.is_dir and (_PARTITION.fullmatch(entry.name) or entry.name in below):
                yield from self._files(folder / entry.name)
            elif not entry.is_dir and NAME.fullmatch(entry.name):
                yield folder / entry.name, entry.size_bytes


class BucketPlace:
    """A bucket. It is never listed, so it may hold any number of objects."""

    wants_synced = False

    def __init__(self, disk: Disk, bucket: Bucket, reached: Callable[[str], None]) -> None:
        self._disk = disk
        self._bucket = bucket
        self._reached = reached

    def check(self) -> None:
        """Write an empty object: credentials that may do that need not be allowed to read."""
        self._bucket.put(CHECK_KEY, 0, iter(()))

    def take(self, file: PurePath, name: PurePath) -> None:
        self._reached(FilesPoint.SENDING)
        size_bytes = self._disk.file_bytes(file)
        self._bucket.put(name.as_posix(), size_bytes, pieces(self._disk, file))
        self._reached(FilesPoint.SENT)
        self._disk.unlink(file, "files.publish.unlink")

    def remove_oldest(self, max_bytes: int, below: Collection[str]) -> list[PurePath]:
        raise AssertionError("BUG: rules of the bucket remove its objects")
