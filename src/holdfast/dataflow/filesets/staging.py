"""What a task of the sink hands to the driver: one file, inline or in a staging folder."""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import WriterCommitMessage

from holdfast.dataflow.sink.json_rows import as_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

Format = Literal["parquet", "ndjson"]
BLOCK_BYTES = 1024 * 1024
# Staged files of drivers that died are removed at this age.
STALE_AFTER_S = 24 * 3600.0
_SUFFIX = ".staged"


@dataclass
class StagedFile(WriterCommitMessage):
    """The rows of one task as a file; without rows there is none."""

    rows: int
    content: bytes = b""
    path: str = ""

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file."""
        if not self.path:
            yield self.content
            return
        with open(self.path, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def discard(self) -> None:
        """Remove what was staged."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)


class Spool(io.RawIOBase):
    """Bytes in memory, and in a file of the folder as soon as they are more than `inline_bytes`."""

    def __init__(self, folder: Path, inline_bytes: int) -> None:
        super().__init__()
        self.path = ""
        self.content = bytearray()
        self._folder = folder
        self._inline_bytes = inline_bytes
        self._file: Any = None

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        if self._file is None and len(self.content) + view.nbytes > self._inline_bytes:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.path = os.path.abspath(self._folder / f"{uuid.uuid4()}{_SUFFIX}")
            self._file = open(self.path, "wb")  # noqa: SIM115 - closed by `close`
            self._file.write(self.content)
            self.content.clear()
        if self._file is None:
            self.content += view
        else:
            self._file.write(view)
        return view.nbytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def stage_file(
    batches: Iterator[pa.RecordBatch], kind: Format, folder: Path, inline_bytes: int
) -> StagedFile:
    """Return the rows of a task as a file of that format."""
    spool = Spool(folder, inline_bytes)
    try:
        rows = _ENCODERS[kind]((batch for batch in batches if batch.num_rows), spool)
    except BaseException:
        spool.close()
        StagedFile(0, path=spool.path).discard()
        raise
    spool.close()
    return StagedFile(rows, bytes(spool.content), spool.path)


def sweep(folder: Path) -> None:
    """Remove what drivers that died have left."""
    oldest_s = time.time() - STALE_AFTER_S
    for path in folder.glob(f"*{_SUFFIX}") if folder.is_dir() else ():
        if path.stat().st_mtime < oldest_s:
            path.unlink(missing_ok=True)


def _write_parquet(batches: Iterator[pa.RecordBatch], spool: Spool) -> int:
    first = next(batches, None)
    if first is None:
        return 0
    rows: int = first.num_rows
    with pq.ParquetWriter(pa.PythonFile(spool, mode="w"), first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_lines(batches: Iterator[pa.RecordBatch], spool: Spool) -> int:
    rows = 0
    for batch in batches:
        for payload in as_json(batch).column("payload").to_pylist():
            spool.write(payload + b"\n")
        rows += batch.num_rows
    return rows


_ENCODERS: dict[Format, Callable[[Iterator[pa.RecordBatch], Spool], int]] = {
    "parquet": _write_parquet,
    "ndjson": _write_lines,
}
