"""Small files share chunks: one object for each would cost more than its bytes.

A pack is cut behind a file that its own path chooses: the hash of the path, as a fraction, is less
than the file's share of `pack_spread_bytes`. The chance is in proportion to the size, so packs have
the same size whatever their files have. Neighbouring packs stay as they are when a file between
them changes, comes or goes; cutting by size alone would move every border behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

from holdfast.errors import BadInput
from holdfast.store.chunks.settings import Chunking
from holdfast.store.objects.address import DataRef, hash_of

if TYPE_CHECKING:
    from holdfast.store.chunks.writer import ChunkWriter

_FRACTION_BYTES = 8


class PackedFile:
    """A file that was added; its references are known once its pack is cut."""

    __slots__ = ("_refs", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._refs: tuple[DataRef, ...] | None = () if size_bytes == 0 else None

    @property
    def is_cut(self) -> bool:
        """Whether the references are known."""
        return self._refs is not None

    @property
    def refs(self) -> tuple[DataRef, ...]:
        """One reference, or none if the file is empty."""
        assert self._refs is not None, "BUG: the pack of this file is not cut yet"
        return self._refs

    def _is_stored(self, ref: DataRef) -> None:
        self._refs = (ref,)


class SmallFiles:
    """Packs whole files into chunks, in the order in which they are added."""

    def __init__(self, writer: ChunkWriter, chunking: Chunking) -> None:
        self._writer = writer
        self._chunking = chunking
        self._files: list[PackedFile] = []
        self._contents: list[bytes] = []
        self._size_bytes = 0

    def add(self, path: bytes, data: bytes) -> PackedFile:
        """Take a file of at most `small_file_bytes`; it is stored when its pack is cut."""
        if len(data) > self._chunking.small_file_bytes:
            raise BadInput(
                f"a file of {len(data)} bytes is not a small one",
                hint=f"small files have at most {self._chunking.small_file_bytes} bytes",
                path=path.decode("utf-8", "replace"),
            )
        file = PackedFile(len(data))
        if not data:
            return file
        if self._size_bytes + len(data) > self._chunking.max_bytes:
            self.flush()
        self._files.append(file)
        self._contents.append(data)
        self._size_bytes += len(data)
        if self._is_complete(path, len(data)):
            self.flush()
        return file

    def flush(self) -> None:
        """Cut the pack here, whatever the paths say."""
        if not self._files:
            return
        chunk = self._writer.put(b"".join(self._contents))
        whole = len(self._files) == 1
        offset_bytes = 0
        for file, data in zip(self._files, self._contents, strict=True):
            content_hash = b"" if whole else hash_of(data)
            file._is_stored(DataRef(chunk, offset_bytes, len(data), content_hash))
            offset_bytes += len(data)
        self._files, self._contents, self._size_bytes = [], [], 0

    def _is_complete(self, path: bytes, size_bytes: int) -> bool:
        if len(self._files) >= self._chunking.pack_files_max:
            return True
        if self._size_bytes < self._chunking.pack_min_bytes:
            return False
        fraction = int.from_bytes(blake3(path).digest(_FRACTION_BYTES), "little")
        return fraction * self._chunking.pack_spread_bytes < size_bytes << (8 * _FRACTION_BYTES)
