"""What a task hands to the driver: its rows as an Arrow stream, inline or in a staged file."""

from __future__ import annotations

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
    kept = [batch for batch in batches if batch.num_rows]
    if not kept:
        return Staged(0)
    rows = sum(batch.num_rows for batch in kept)
    if sum(batch.nbytes for batch in kept) <= inline_bytes:
        sink = pa.BufferOutputStream()
        _write(sink, kept)
        return Staged(rows, content=sink.getvalue().to_pybytes())
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / f"{uuid.uuid4()}.arrow")
    with pa.OSFile(path, "wb") as file:
        _write(file, kept)
    return Staged(rows, path=os.path.abspath(path))


def _write(sink: pa.NativeFile, batches: list[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
