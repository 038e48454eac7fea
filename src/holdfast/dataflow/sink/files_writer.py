"""The files sink: a batch is some Parquet files in a folder, published by renames.

    <folder>/part-<query>-<batch>-<part>-<n>.parquet   what readers see
    <folder>/_holdfast/<query>.json                    the batch records
    <folder>/_holdfast/staging/                        what tasks wrote, before it counts

A batch counts when its record is there. A driver that dies between two renames leaves some of a
batch's files; run again, the batch first removes files of its own name, then publishes anew. Names
with a leading underscore are passed over by Spark and by every other reader of such folders.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.dataflow.durable_file import sync_folder
from holdfast.dataflow.points import Point, reached
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.sink.records import BatchRecords, Record
from holdfast.dataflow.source.checkpoint import Checkpoint

# Staged files of drivers that died are removed at this age.
STALE_AFTER_S = 24 * 3600.0


@dataclass
class StagedFile(WriterCommitMessage):
    """The file of one task; no path if it had no rows."""

    path: str = ""


class FilesWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query as Parquet files."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._folder = Path(options.files)
        self._own = self._folder / "_holdfast"
        self._staging = Path(options.staging) if options.staging else self._own / "staging"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task into a staged file."""
        writer, path = None, self._staging / f"{uuid.uuid4()}.parquet"
        try:
            for batch in iterator:
                if not batch.num_rows:
                    continue
                if writer is None:
                    self._staging.mkdir(parents=True, exist_ok=True)
                    writer = pq.ParquetWriter(path, batch.schema)
                writer.write_batch(batch)
        finally:
            if writer is not None:
                writer.close()
        reached(Point.WRITE, self._options.checkpoint)
        if writer is None:
            return StagedFile()
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        return StagedFile(os.path.abspath(path))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a batch, once."""
        checkpoint = Checkpoint(self._options.checkpoint)
        query_id, span = checkpoint.require_query_id(), checkpoint.span(batchId)
        records = BatchRecords(self._own, query_id, checkpoint)
        verdict, known = records.judge(batchId, span), records.of(batchId)
        if verdict == "again":
            self.abort(messages, batchId)
            return
        part = known.parts if known is not None else 0
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"part-{query_id}-{batchId:010d}-{part:03d}"
        for left in self._folder.glob(f"{name}-*.parquet"):
            left.unlink()
        paths = [message.path for message in messages if isinstance(message, StagedFile)]
        for number, path in enumerate(path for path in paths if path):
            os.replace(path, self._folder / f"{name}-{number:05d}.parquet")
        sync_folder(self._folder)
        records.record(batchId, Record(span, part + 1))
        reached(Point.SINK_COMMIT, self._options.checkpoint)
        self._sweep()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was staged."""
        for message in messages:
            if isinstance(message, StagedFile) and message.path:
                Path(message.path).unlink(missing_ok=True)

    def _sweep(self) -> None:
        oldest_s = time.time() - STALE_AFTER_S
        for path in self._staging.glob("*.parquet") if self._staging.is_dir() else ():
            if path.stat().st_mtime < oldest_s:
                path.unlink(missing_ok=True)
