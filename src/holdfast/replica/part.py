"""A part: a sealed segment as it goes to data nodes, byte for byte.

A part is known by the quiver that its manifest names and by its range of seqs. Not by its folder:
a range that is sealed again has another number. And not by the present id of the quiver it is
in: a restored quiver has a new id, and its segments keep the old one.

All slots of its bundles are in one part, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from xxhash import xxh3_128_hexdigest

from holdfast.errors import BadInput, UnknownPosition
from holdfast.quiver.base import names
from holdfast.quiver.segments.data_file import unreadable
from holdfast.quiver.segments.manifest import Summary
from holdfast.remote.wire import SEQ_MAX
from holdfast.seam.disk import Disk

# A file is read, sent and written in pieces of this size.
SLICE_BYTES = 1 << 20
# Far more than a sealer makes; what claims to have more is refused before anything is written.
FILES_MAX = 10_000

_TEXT_PATTERN = re.compile(r"([0-9a-f-]{36}):(\d{1,19})-(\d{1,19})")


class PartId(NamedTuple):
    """Which part: the quiver of its manifest, and its first and last seq, both included."""

    quiver_id: str
    first_seq: int
    last_seq: int

    @property
    def end_seq(self) -> int:
        """The first seq behind it, as interval sets count."""
        return self.last_seq + 1

    def __str__(self) -> str:
        """Return it as operators write it."""
        return f"{self.quiver_id}:{self.first_seq}-{self.last_seq}"

    @classmethod
    def parse(cls, text: str) -> PartId:
        """Return what `str` gave; raise `BadInput` for anything else."""
        match = _TEXT_PATTERN.fullmatch(text)
        if match is None:
            raise BadInput(
                f"{text!r} is not the name of a part", hint="write QUIVER_ID:FIRST_SEQ-LAST_SEQ"
            )
        return checked_id(match[1], int(match[2]), int(match[3]))


def checked_id(quiver_id: str, first_seq: int, last_seq: int) -> PartId:
    """Return the identity of a part, or raise `BadInput` if no part can have it."""
    require_quiver_id(quiver_id)
    if not 0 <= first_seq <= last_seq < SEQ_MAX:
        raise BadInput(
            f"no part has the seqs {first_seq} to {last_seq}",
            hint="the first is not below zero, and not behind the last",
        )
    return PartId(quiver_id, first_seq, last_seq)


def require_quiver_id(text: str) -> None:
    """Raise `BadInput` unless this is an id as quivers have them: it becomes a folder's name."""
    if not _is_quiver_id(text):
        raise BadInput(
            f"{text!r} is not the id of a quiver", hint="it is a UUID, in lower case, with dashes"
        )


@lru_cache(maxsize=1024)
def _is_quiver_id(text: str) -> bool:
    """Whether it is an id; kept, because the same few are asked about for every part."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


class PartFile(NamedTuple):
    """One file of a part."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Part:
    """A part as it is offered: what it is called, and how much there is to send."""

    id: PartId
    # Of the folder, as the sender has it and the node will.
    folder_name: str
    segment_version: int
    files: tuple[PartFile, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all its files."""
        return sum(file.size_bytes for file in self.files)


def part_of(disk: Disk, folder: PurePath, summary: Summary) -> Part:
    """Return the part that a sealed segment is; its manifest says what belongs to it.

    Sizes are the disk's: a file that is cut short is offered as it is, and found by its checksum.
    """
    wanted = file_names(summary)
    files = tuple(map(PartFile, wanted, disk.files_bytes(folder, wanted)))
    return Part(part_id(summary), folder.name, summary.version, files)


def file_names(summary: Summary) -> list[str]:
    """Return the names of a part's files, in the order in which they are sent."""
    return [names.MANIFEST, names.BUNDLES, *[file.name for file in summary.files]]


def content_checksum(summary: Summary) -> str:
    """Return a text that is the same for two parts whose every data byte is the same.

    It is made of the manifest's checksums, so nothing is read: whether the bytes still are what the
    manifest says, only a scrub can tell.
    """
    found = [
        summary.bundle_table_checksum,
        *(
            (one.name, one.frame_checksum, *(b.checksum for b in one.batches))
            for one in summary.files
        ),
    ]
    return xxh3_128_hexdigest(json.dumps(found, separators=(",", ":")).encode())


def part_id(summary: Summary) -> PartId:
    """Return the identity of a segment as a part."""
    return PartId(summary.quiver_id, summary.first_seq, summary.last_seq)


class Slice(NamedTuple):
    """A piece of one file of a part."""

    # The file's place in the part's list.
    file: int
    offset_bytes: int
    data: bytes | memoryview


def slices(disk: Disk, folder: PurePath, part: Part) -> Iterator[Slice]:
    """Yield a part's files in order; an empty file has one empty slice, so that it is made."""
    for place, file in enumerate(part.files):
        for offset_bytes in range(0, max(1, file.size_bytes), SLICE_BYTES):
            size_bytes = min(SLICE_BYTES, file.size_bytes - offset_bytes)
            path = folder / file.name
            try:
                data = disk.read_range(path, offset_bytes, size_bytes)
            except FileNotFoundError as error:
                raise UnknownPosition(
                    "the part is no longer here", hint="retention took it", path=str(path)
                ) from error
            except OSError as error:
                raise unreadable(path, error) from error
            yield Slice(place, offset_bytes, data)
