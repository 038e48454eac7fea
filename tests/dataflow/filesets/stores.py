"""Stores with some files in them, for tests of what Spark does with them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.filesets import Commits, FileSetWriter, Layer, Metadata
from holdfast.store.store import Store

# Small chunks, so that a few files have indexes of several levels.
CHUNKING = Chunking(
    min_bytes=1024,
    average_bytes=4096,
    max_bytes=16384,
    small_file_bytes=2048,
    pack_min_bytes=2048,
    pack_spread_bytes=2048,
)
DAY = datetime(2026, 5, 1, tzinfo=UTC)


def make_store(root: Path) -> Store:
    """Return a new store in a folder."""
    return Store.create(str(root / "store"), settings=StoreSettings(chunking=CHUNKING))


def write_layer(store: Store, job: object, files: Mapping[str, bytes | None]) -> Layer:
    """Return a layer with some files, one second apart; without content they are deleted."""
    with FileSetWriter(store, job) as writer:  # type: ignore[arg-type]
        for number, (path, content) in enumerate(files.items()):
            if content is None and path.endswith("/"):
                writer.delete_prefix(path)
            elif content is None:
                writer.delete(path)
            else:
                modified_ns = round(DAY.timestamp() + number) * 10**9
                writer.put(path, content, metadata=Metadata(mtime_ns=modified_ns))
        return writer.close()


def commit(store: Store, name: str, *layers: Mapping[str, bytes | None]) -> None:
    """Make a commit of layers."""
    with store.references.open_job("test") as job:
        Commits(store).create(job, name, [write_layer(store, job, files) for files in layers])


def parquet(rows: pa.Table, row_group_rows: int = 1000) -> bytes:
    """Return a table as a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, row_group_size=row_group_rows)
    return buffer.getvalue()


def arrow(rows: pa.Table) -> bytes:
    """Return a table as an Arrow file."""
    buffer = io.BytesIO()
    with pa.ipc.new_file(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return buffer.getvalue()
