"""Chunks: streams cut where their content says, stored once, read back verified."""

from holdfast.store.chunks.chunk_store import ChunkStore
from holdfast.store.chunks.reader import ChunkReader
from holdfast.store.chunks.small_files import PackedFile, SmallFiles
from holdfast.store.chunks.writer import ChunkWriter

__all__ = ["ChunkReader", "ChunkStore", "ChunkWriter", "PackedFile", "SmallFiles"]
