"""A folder of a bucket as a disk to read from: what reads files reads objects like this.

A request to a bucket takes as long as reading megabytes of it. So a part of an object is fetched
with what follows it, and the parts fetched last are kept, in bounded memory. What fails is tried
again, a bounded number of times; reading twice changes nothing.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TypeVar

from holdfast.errors import ObjectMissing, StoreUnavailable
from holdfast.seam.bucket import Bucket

Result = TypeVar("Result")

# What is fetched by one request, and how many of those are kept.
FETCH_BYTES = 8 * 2**20
FETCHES_KEPT = 4
# Of one request, and how long it is waited before the second; then twice as long each time.
READ_TRIES = 4
FIRST_PAUSE_S = 0.2


class BucketDisk:
    """A `ReadableDisk` of what was there when it was made. Safe to use from many threads."""

    def __init__(
        self, bucket: Bucket, folder: str = "", pause: Callable[[float], None] = time.sleep
    ) -> None:
        """List a folder of a bucket; paths begin at the bucket."""
        self._bucket = bucket
        self._pause = pause
        self._lock = threading.Lock()
        self._fetched: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._sizes_bytes = self._trying(lambda: dict(bucket.list(folder)))

    @property
    def keys(self) -> Sequence[str]:
        """All objects."""
        return list(self._sizes_bytes)

    def read(self, path: PurePath) -> bytes:
        """See `ReadableDisk`."""
        return self.read_range(path, 0, self.file_bytes(path))

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        """See `ReadableDisk`."""
        end = min(offset_bytes + size_bytes, self.file_bytes(path))
        found = []
        while offset_bytes < end:
            first = offset_bytes // FETCH_BYTES * FETCH_BYTES
            part = self._fetch(path.as_posix(), first)[offset_bytes - first : end - first]
            if not part:
                break  # it is shorter than the listing said
            found.append(part)
            offset_bytes += len(part)
        return b"".join(found)

    def _fetch(self, key: str, first: int) -> bytes:
        with self._lock:
            if (known := self._fetched.get((key, first))) is not None:
                self._fetched.move_to_end((key, first))
                return known
        size_bytes = min(FETCH_BYTES, self._sizes_bytes[key] - first)
        try:
            found = self._trying(lambda: self._bucket.get(key, first, size_bytes))
        except ObjectMissing as error:
            raise FileNotFoundError(errno.ENOENT, error.message, key) from error
        with self._lock:
            self._fetched[key, first] = found
            while len(self._fetched) > FETCHES_KEPT:
                self._fetched.popitem(last=False)
        return found

    def _trying(self, call: Callable[[], Result]) -> Result:
        for tried in range(READ_TRIES - 1):
            try:
                return call()
            except StoreUnavailable:
                self._pause(FIRST_PAUSE_S * 2**tried)
        return call()

    def map(self, path: PurePath) -> memoryview:
        """See `ReadableDisk`; it is a copy."""
        return memoryview(self.read(path))

    def file_bytes(self, path: PurePath) -> int:
        """See `ReadableDisk`."""
        size_bytes = self._sizes_bytes.get(path.as_posix())
        if size_bytes is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", str(path))
        return size_bytes

    def exists(self, path: PurePath) -> bool:
        """Whether there is an object of this name, or one below it."""
        key = path.as_posix()
        return key in self._sizes_bytes or any(
            one.startswith(f"{key}/") for one in self._sizes_bytes
        )
