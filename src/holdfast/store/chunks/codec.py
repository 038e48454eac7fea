"""The stored form of a chunk: sixteen bytes of header, then its bytes, compressed if that helps.

    magic "HFCK", version u8, codec u8 (0 plain, 1 zstd), zero u16, size of the plain bytes u64

The header has no checksum of its own. What counts is that the plain bytes have the hash they are
called by, and whatever is wrong with the header shows there, or before.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import zstandard

from holdfast.errors import Damaged
from holdfast.store.chunks.settings import CHUNK_BYTES_MAX
from holdfast.store.objects.objects import ChunkKey, hash_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"HFCK"
VERSION = 1
PLAIN = 0
ZSTD = 1

_HEADER = struct.Struct("<4sBBHQ")
HEADER_BYTES = _HEADER.size

# Compressors and decompressors serve one thread each.
_own = threading.local()


def encode(data: memoryview, zstd_level: int) -> tuple[bytes, Buffer]:
    """Return header and body of the object that stores a chunk."""
    body = _compressor(zstd_level).compress(data)
    # Bytes that do not compress are stored as they are: decompressing them would only cost time.
    if len(body) < data.nbytes:
        return _HEADER.pack(MAGIC, VERSION, ZSTD, 0, data.nbytes), body
    return _HEADER.pack(MAGIC, VERSION, PLAIN, 0, data.nbytes), data


def decode(stored: bytes, key: ChunkKey) -> bytes:
    """Return the plain bytes of a stored chunk, or raise `Damaged` if they are not what it says."""
    if len(stored) < HEADER_BYTES:
        raise _damaged(key, f"it has {len(stored)} bytes, which is less than a header")
    magic, version, codec, zero, size_bytes = _HEADER.unpack_from(stored)
    if magic != MAGIC or zero != 0 or codec not in (PLAIN, ZSTD):
        raise _damaged(key, "its header is none")
    if version != VERSION:
        # The version of the whole store was checked when it was opened.
        raise _damaged(key, f"its header says version {version} instead of {VERSION}")
    if size_bytes > CHUNK_BYTES_MAX:
        raise _damaged(key, f"it claims to hold {size_bytes} bytes")
    body = memoryview(stored)[HEADER_BYTES:]
    plain = bytes(body) if codec == PLAIN else _decompressed(body, size_bytes, key)
    if len(plain) != size_bytes:
        raise _damaged(key, f"it holds {len(plain)} bytes instead of {size_bytes}")
    if hash_of(plain) != key.hash:
        raise _damaged(key, "its bytes do not have its hash")
    return plain


def _decompressed(body: memoryview, size_bytes: int, key: ChunkKey) -> bytes:
    try:
        # What the frame says of its own size must agree before that much memory is taken.
        if zstandard.frame_content_size(body) != size_bytes:
            raise _damaged(key, "its two sizes differ")
        return _decompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _damaged(key, f"it cannot be decompressed ({error})") from None


def _compressor(level: int) -> zstandard.ZstdCompressor:
    compressors: dict[int, zstandard.ZstdCompressor] = _own.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = zstandard.ZstdCompressor(level=level, write_checksum=False)
    return compressors[level]


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_own, "decompressor"):
        _own.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _own.decompressor
    return decompressor


def _damaged(key: ChunkKey, why: str) -> Damaged:
    return Damaged(
        f"chunk {key.hash.hex()} is damaged: {why}",
        hint="run `holdfast store fsck` to see which files it belongs to, and what can be repaired",
        path=key.object_key(),
    )
