"""A stored file as an open one: seekable, reading ahead as long as it is read in order."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.store.chunks import ChunkReader
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.sources import read_content

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What a buffered file asks for at once.
BUFFER_BYTES = 256 * 1024


class StoredFile(io.RawIOBase):
    """The bytes of a file, read where they are asked for. Wrap it in `io.BufferedReader`."""

    def __init__(self, reader: ChunkReader, refs: Sequence[pb.DataRef], size_bytes: int) -> None:
        super().__init__()
        self._reader = reader
        self._refs = refs
        self.size_bytes = size_bytes
        self._at_bytes = 0
        # What was begun to be read in order, and the part of it that was not given out yet.
        self._stream: Iterator[bytes] | None = None
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at_bytes, io.SEEK_END: self.size_bytes}
        at_bytes = bases[whence] + offset
        if at_bytes < 0:
            raise BadInput("a file has nothing before its beginning", hint="Seek to 0 or behind.")
        if at_bytes != self._at_bytes:
            self._stream, self._rest = None, memoryview(b"")
            self._at_bytes = at_bytes
        return at_bytes

    def readinto(self, buffer: Buffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if self._at_bytes >= self.size_bytes or not target.nbytes:
            return 0
        if self._stream is None:
            self._stream = read_content(self._reader, self._refs, self._at_bytes, None)
        while not self._rest.nbytes:
            self._rest = memoryview(next(self._stream))
        taken = self._rest[: target.nbytes]
        target[: taken.nbytes] = taken
        self._rest = self._rest[taken.nbytes :]
        self._at_bytes += taken.nbytes
        return taken.nbytes

    def close(self) -> None:
        self._stream, self._rest = None, memoryview(b"")
        super().close()
