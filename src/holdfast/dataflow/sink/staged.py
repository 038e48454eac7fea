"""What a task hands to the driver: its rows as an Arrow stream, inline or in a staged file."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage


@dataclass
class Staged(WriterCommitMessage):
    """The rows of one task."""

    rows: int
    content: bytes = b""
    path: str = ""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        if not self.rows:
            return
        source = pa.memory_map(self.path) if self.path else pa.BufferReader(self.content)
        with source, pa.ipc.open_stream(source) as reader:
            yield from reader

    def discard(self) -> None:
        """Remove what was staged."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)


def stage(batches: Iterable[pa.RecordBatch], folder: Path, inline_bytes: int) -> Staged:
    """Return the rows of a task, in a file if they are more than `inline_bytes`."""
    kept: list[pa.RecordBatch] = []
    size_bytes = 0
    remaining = (batch for batch in batches if batch.num_rows)
    for batch in remaining:
        kept.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > inline_bytes:
            return _to_file(itertools.chain(kept, remaining), batch.schema, folder)
    if not kept:
        return Staged(0)
    sink = pa.BufferOutputStream()
    rows = _write(sink, kept, kept[0].schema)
    return Staged(rows, content=sink.getvalue().to_pybytes())


def _to_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: Path) -> Staged:
    folder.mkdir(parents=True, exist_ok=True)
    path = os.path.abspath(folder / f"{uuid.uuid4()}.arrow")
    try:
        with pa.OSFile(path, "wb") as file:
            rows = _write(file, batches, schema)
    except BaseException:
        os.unlink(path)
        raise
    return Staged(rows, path=path)


def _write(sink: pa.NativeFile, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    rows = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
