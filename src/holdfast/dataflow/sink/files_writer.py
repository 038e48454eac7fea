"""The files sink: a batch is some Parquet files in a folder, published by renames.

    <folder>/part-<query>-<batch>-<part>-<n>.parquet   what readers see
    <folder>/_holdfast/<query>.json                    the batch records
    <folder>/_holdfast/<query>.grows                   files of the query may grow
    <folder>/_holdfast/staging/                        what tasks wrote, before it counts

Tasks write a file each. Those of a small batch become one before they are published, so that there
are no more files than batches, and a reader has all of such a batch or nothing of it. If that
cannot be done, because the disk is full, they are published as they are: a rename needs no room.
With `target_size` there are fewer files than batches: see base/growing_files.py.

A batch counts when its record is there. A driver that dies between two renames leaves some of a
batch's files; run again, the batch replaces files of its own name by the new ones, and then removes
those that it does not have any more. Names with a leading underscore are passed over by Spark and
by every other reader of such folders.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.dataflow.base.durable_file import is_disk_full, remove_stale, sync_folder
from holdfast.dataflow.base.growing_files import Growing, LastBatch, newest_file, write_joined
from holdfast.dataflow.base.points import BatchPoint, reached
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.sink.records import BatchRecord, BatchRecords
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.errors import DiskFull

# Files of a batch that are smaller than this together become one.
ONE_FILE_BYTES = 16 * 1024 * 1024

log = logging.getLogger("holdfast.dataflow")


@dataclass
class StagedRowFile(WriterCommitMessage):
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
        reached(BatchPoint.WRITE, self._options.checkpoint)
        if writer is None:
            return StagedRowFile()
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        return StagedRowFile(os.path.abspath(path))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a batch, once.

        The record is written last. A driver that dies before it leaves files of the batch's own
        names, and the batch, run again, replaces exactly these.
        """
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
        staged = [message.path for message in messages if isinstance(message, StagedRowFile)]
        paths = [path for path in staged if path]
        if not self._is_added(query_id, paths, batchId, part):
            self._publish(name, self._as_one(paths))
        sync_folder(self._folder)
        self._discard(paths)
        records.record(batchId, BatchRecord(span, part + 1))
        reached(BatchPoint.SINK_COMMIT, self._options.checkpoint)
        remove_stale(self._staging, ".parquet")

    def _publish(self, name: str, paths: list[str]) -> None:
        """Give files the name of a batch, and remove others that an earlier run of it has left."""
        published = set()
        for number, path in enumerate(paths):
            published.add(f"{name}-{number:05d}.parquet")
            os.replace(path, self._folder / f"{name}-{number:05d}.parquet")
        for left in self._folder.glob(f"{name}-*.parquet"):
            if left.name not in published:
                left.unlink()

    def _as_one(self, paths: list[str]) -> list[str]:
        """Return the file that some small files became, or these if they are large or few."""
        if len(paths) <= 1 or sum(map(os.path.getsize, paths)) > ONE_FILE_BYTES:
            return paths
        merged = self._joined([(path, None) for path in paths])
        return paths if merged is None else [merged]

    def _joined(
        self, pieces: list[tuple[str, int | None]], last: LastBatch | None = None
    ) -> str | None:
        """Return a staged file with the rows of some; None if there is no room for it."""
        merged = self._staging / f"{uuid.uuid4()}.parquet"
        try:
            self._staging.mkdir(parents=True, exist_ok=True)
            write_joined(pieces, merged, last)
        except OSError as error:
            merged.unlink(missing_ok=True)
            if not is_disk_full(error):
                raise
            log.warning("%s: no disk space to merge %d files into one", self._folder, len(pieces))
            return None
        except BaseException:
            merged.unlink(missing_ok=True)
            raise
        return str(merged)

    # ------------------------------------------------------------ files that grow

    def _is_added(self, query_id: str, paths: list[str], batch: int, part: int) -> bool:
        """Put a batch into a file that may grow, the newest or a new one; whether that was done.

        The marker says that files of this query may grow at all: without it no file has to be
        opened to find that out. A file that has this batch already is of a driver that died behind
        the rename; the batch takes the place of its own rows there, even if the target size has
        changed.
        """
        marker = self._own / f"{query_id}.grows"
        newest = newest_file(self._folder, query_id) if marker.exists() else None
        if newest is not None and newest.has(batch, part):
            # Of a driver that died.
            if newest.last.rows_before == 0:
                return self._is_begun(query_id, paths, batch, part)
            if self._grow(newest, newest.last.rows_before, paths, batch, part):
                return True
            raise DiskFull(
                f"there is not enough disk space to write batch {batch} again",
                hint="free space for twice the size of the file; nothing is lost",
                path=str(newest.path),
            )
        size_bytes, target_bytes = sum(map(os.path.getsize, paths)), self._options.target_size
        if not paths or size_bytes > target_bytes:
            return False
        if not marker.exists():
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
            sync_folder(marker.parent)
        if newest is not None and newest.takes(paths[0], target_bytes - size_bytes):
            try:
                return self._grow(newest, newest.rows, paths, batch, part)
            except (OSError, pa.ArrowException) as error:
                log.warning("%s is left as it is, a new file is started: %s", newest.path, error)
        return self._is_begun(query_id, paths, batch, part)

    def _is_begun(self, query_id: str, paths: list[str], batch: int, part: int) -> bool:
        """Put a batch into a new file that may grow; whether there was room for that."""
        if not paths:
            return False
        merged = self._joined([(path, None) for path in paths], LastBatch(batch, part, 0))
        if merged is None:
            return False
        self._publish(f"part-{query_id}-{batch:010d}-{part:03d}", [merged])
        return True

    def _grow(
        self, newest: Growing, rows_before: int, paths: list[str], batch: int, part: int
    ) -> bool:
        """Replace a file by itself with a batch behind its first rows; False: there is no room."""
        pieces = [(str(newest.path), rows_before), *((path, None) for path in paths)]
        merged = self._joined(pieces, LastBatch(batch, part, rows_before))
        if merged is None:
            return False
        os.replace(merged, newest.path)
        return True

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was staged."""
        staged = [message for message in messages if isinstance(message, StagedRowFile)]
        self._discard([message.path for message in staged if message.path])

    def _discard(self, paths: list[str]) -> None:
        for path in paths:
            Path(path).unlink(missing_ok=True)
