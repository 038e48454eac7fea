"""The head of a log file: fields stored twice, each copy in a sector of its own with its checksum.

Each copy ends with its checksum, in this and in all later versions, so that a program tells a newer
header from a damaged one.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 8192

# What a disk loses at once. (Those that tell of sectors of 512 bytes have larger ones inside.)
_COPY_BYTES = 4096
_SUM_OFFSET = _COPY_BYTES - 8
_LEAD = struct.Struct("<8sHHI")
_SUM = struct.Struct("<Q")


class HeaderFault(Exception):
    """A file has no sound header."""


class NewerVersion(Exception):
    """A sound header of a version this program does not know."""


def encode_block(magic: bytes, version: int, fields: bytes) -> bytes:
    """Return the first `BLOCK_BYTES` of a file."""
    content = (_LEAD.pack(magic, version, BLOCK_BYTES, 0) + fields).ljust(_SUM_OFFSET, b"\0")
    return (content + _SUM.pack(xxh3_64_intdigest(content))) * 2


def sound_copies(view: memoryview) -> int:
    """Return how many of the two copies match their checksums."""
    copies = (view[:_COPY_BYTES], view[_COPY_BYTES:BLOCK_BYTES])
    return sum(
        len(copy) == _COPY_BYTES
        and _SUM.unpack_from(copy, _SUM_OFFSET)[0] == xxh3_64_intdigest(copy[:_SUM_OFFSET])
        for copy in copies
    )


def decode_block(view: memoryview, magic: bytes, version: int) -> memoryview:
    """Return the fields from whichever copy is sound."""
    if len(view) < BLOCK_BYTES:
        raise HeaderFault("the file is shorter than its header")
    for copy in (view[:_COPY_BYTES], view[_COPY_BYTES:BLOCK_BYTES]):
        (checksum,) = _SUM.unpack_from(copy, _SUM_OFFSET)
        if bytes(copy[:8]) != magic or xxh3_64_intdigest(copy[:_SUM_OFFSET]) != checksum:
            continue
        _, found, _, _ = _LEAD.unpack_from(copy)
        if found != version:
            raise NewerVersion(f"version {found}")
        return copy[_LEAD.size : _SUM_OFFSET]
    raise HeaderFault("both copies of the header are damaged")
