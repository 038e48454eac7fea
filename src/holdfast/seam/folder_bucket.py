"""A folder that is used as a bucket: an object appears at once and whole, durable, and may be put
again.

An object that is being put lies beside its place under a temporary name, and goes if that fails.
One that a crash left is replaced when the object is put again; a listing passes over it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import PurePath

from holdfast.errors import ObjectMissing, StoreUnavailable
from holdfast.seam.bucket import BucketObject
from holdfast.seam.disk import CANNOT_BE_READ, Disk, entries_of, write_all
from holdfast.seam.points import FaultPoint

_TEMPORARY = ".new"


class FolderBucketPoint(FaultPoint):
    """The steps of a put."""

    MAKE_DIR = "folder-bucket.make_dir", "make a folder of an object"
    SYNC_PARENT = "folder-bucket.sync_parent", "make that folder's name durable"
    CREATE = "folder-bucket.create", "create an object under a temporary name"
    WRITE = "folder-bucket.write", "write an object"
    SYNC = "folder-bucket.sync", "sync an object"
    RENAME = "folder-bucket.rename", "give an object its name: it appears"
    SYNC_DIR = "folder-bucket.sync_dir", "make an object's name durable"
    UNLINK = "folder-bucket.unlink", "remove what an interrupted put left"


class FolderBucket:
    """Objects as files. Several threads may put, but not one object at once."""

    def __init__(self, disk: Disk, folder: PurePath) -> None:
        self.url = str(folder)
        self._disk = disk
        self._folder = folder

    def put(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        """See `Bucket`."""
        del size_bytes
        path = self._folder / key
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            self._make_dirs(path.parent)
            self._remove_rest(temporary)
            try:
                self._write(temporary, pieces)
            except Exception:
                # Not left until the next try: that may not come, and a full disk needs the room.
                with contextlib.suppress(OSError):
                    self._remove_rest(temporary)
                raise
            self._disk.rename(temporary, path, FolderBucketPoint.RENAME)
            self._disk.sync_dir(path.parent, FolderBucketPoint.SYNC_DIR)
        except OSError as error:
            raise self._failed(path, error) from error

    def _remove_rest(self, temporary: PurePath) -> None:
        if self._disk.exists(temporary):
            self._disk.unlink(temporary, FolderBucketPoint.UNLINK)

    def _write(self, path: PurePath, pieces: Iterator[bytes]) -> None:
        handle = self._disk.create(path, FolderBucketPoint.CREATE)
        try:
            for piece in pieces:
                write_all(self._disk, handle, [piece], FolderBucketPoint.WRITE)
            self._disk.sync(handle, FolderBucketPoint.SYNC)
        finally:
            self._disk.close(handle)

    def _make_dirs(self, folder: PurePath) -> None:
        missing = [folder, *folder.parents]
        missing = [one for one in missing if one.name and not self._disk.exists(one)]
        for one in reversed(missing):
            self._disk.make_dir(one, FolderBucketPoint.MAKE_DIR)
        # Also those that are there: whoever made them may have been killed before this.
        below = [one for one in (folder, *folder.parents) if one.is_relative_to(self._folder)]
        for one in dict.fromkeys((*missing, *below)):
            with contextlib.suppress(PermissionError):  # then somebody else made it
                self._disk.sync_dir(one.parent, FolderBucketPoint.SYNC_PARENT)

    def sync(self, folder: str) -> None:
        """See `Bucket`: a put may have been cut off between its rename and its sync."""
        path = self._folder / folder
        try:
            self._make_dirs(path)
            self._disk.sync_dir(path, FolderBucketPoint.SYNC_DIR)
        except OSError as error:
            raise self._failed(path, error) from error

    def get(self, key: str, offset_bytes: int, size_bytes: int) -> bytes:
        """See `Bucket`."""
        path = self._folder / key
        try:
            return self._disk.read_range(path, offset_bytes, size_bytes)
        except FileNotFoundError:
            raise ObjectMissing(
                "the object, or its folder, does not exist", hint="check the path", path=str(path)
            ) from None
        except OSError as error:
            if error.errno in CANNOT_BE_READ:
                raise
            raise self._failed(path, error) from error

    def list(self, folder: str) -> Iterator[BucketObject]:
        """See `Bucket`."""
        path = self._folder / folder
        try:
            entries = entries_of(self._disk, path)
        except OSError as error:
            raise self._failed(path, error) from error
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir:
                yield from self.list(key)
            elif not entry.name.endswith(_TEMPORARY):
                yield BucketObject(key, entry.size_bytes)

    def _failed(self, path: PurePath, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the folder cannot be used: {error.strerror or error}",
            hint="see that it is mounted, that it may be written, and that there is room",
            path=str(path),
        )
