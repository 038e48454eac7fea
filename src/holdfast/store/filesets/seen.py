"""What files looked like on disk when they were stored, so that the next time they need no reading.

A table beside the commit's index, not in it: it says nothing about the files' content, and equal
folders on two disks must have equal indexes. For each file two numbers of 64 bits, little-endian:
xxh3-64 of its path, and of its size, time of change of content, time of change of anything, and
inode (four numbers of 64 bits). The rows are sorted by the first. A file that was changed less than
`RACY_NS` before the folder was read is left out: another change may have the same time.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from holdfast.errors import Damaged
from holdfast.seam.folders import FolderEntry

RACY_NS = 1_000_000_000

_ROW = struct.Struct("<QQ")
_LOOK = struct.Struct("<QqqQ")


def path_number(path: str) -> int:
    """Return the number that stands for a path."""
    return xxh3_64_intdigest(path.encode())


def look_number(entry: FolderEntry) -> int:
    """Return the number that stands for how a file looked."""
    look = (entry.size_bytes, entry.mtime_ns, entry.ctime_ns, entry.inode)
    return xxh3_64_intdigest(_LOOK.pack(*look))


class SeenFiles:
    """The table of a commit."""

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % _ROW.size:
            raise Damaged(
                "the table of files seen on disk is cut off",
                hint="Store the folder without the parent commit; `holdfast store fsck` says more.",
            )
        self._looks: dict[int, int] = dict(_ROW.iter_unpack(data))

    def is_same(self, entry: FolderEntry) -> bool:
        """Whether a file looks as it did when it was stored."""
        return self._looks.get(path_number(entry.path)) == look_number(entry)


class SeenWriter:
    """Collects the table while files are stored: 16 bytes for each."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._rows: list[tuple[int, int]] = []

    def add(self, entry: FolderEntry) -> None:
        """Note a file as it looked before it was read."""
        if self._began_ns - max(entry.mtime_ns, entry.ctime_ns) > RACY_NS:
            self._rows.append((path_number(entry.path), look_number(entry)))

    def data(self) -> Iterator[bytes]:
        """Yield the bytes of the table."""
        self._rows.sort(key=operator.itemgetter(0))
        yield b"".join(itertools.starmap(_ROW.pack, self._rows))
