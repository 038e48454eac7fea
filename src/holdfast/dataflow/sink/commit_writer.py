"""The store sink: each batch of a query is one layer and one commit, exactly once.

    <prefix>/<batch, 12 digits>          all rows so far, one file for each task of each batch
    <prefix>/<batch, 12 digits>-001      what a batch was given later, if it was trimmed

Tasks encode their rows and hand the files to the driver, inline or through the staging folder; the
driver cuts, hashes and stores them. They could store the chunks themselves only under a lease that
is held from before their first upload until the commit. Spark's own writer calls the driver when
all tasks have ended, in a process that was not there before: no process could hold it. And no
executor needs to reach the database. What is expensive, encoding and compressing, is done in the
tasks.

What makes a batch count is its record in the commit: number and range of the sources, of the last
hundred batches. It becomes visible with the rows, in one step. So there is nothing to repair: a
driver that dies before leaves chunks that its lease lets go, one that dies after has committed.
A copy of the records is kept beside the checkpoint, for a source that trims (source/notes.py).
"""

from __future__ import annotations

import io
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.dataflow.base.durable_file import remove_stale
from holdfast.dataflow.base.json_rows import as_json
from holdfast.dataflow.base.points import BatchPoint, reached
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.sink.records import KEPT_MAX, BatchRecord, BatchRecords
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.errors import BadConfig
from holdfast.store.filesets import Commit, Commits, FileSetWriter, Layer, Metadata, compact
from holdfast.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from holdfast.store.gc.leases import Job

CommittedFormat = Literal["parquet", "ndjson"]
BLOCK_BYTES = 1024 * 1024
_SUFFIX = ".staged"


@dataclass
class StagedCommitFile(WriterCommitMessage):
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
        """Take bytes; what exceeds the limit moves everything so far into a file."""
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
    batches: Iterator[pa.RecordBatch], kind: CommittedFormat, folder: Path, inline_bytes: int
) -> StagedCommitFile:
    """Return the rows of a task as a file of that format."""
    spool = Spool(folder, inline_bytes)
    try:
        rows = _ENCODERS[kind]((batch for batch in batches if batch.num_rows), spool)
    except BaseException:
        spool.close()
        StagedCommitFile(0, path=spool.path).discard()
        raise
    spool.close()
    return StagedCommitFile(rows, bytes(spool.content), spool.path)


def _write_parquet(batches: Iterator[pa.RecordBatch], spool: Spool) -> int:
    """Write rows as Parquet; without any there is no file, because there is no schema either."""
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
    """Write rows as JSON, one object a line."""
    rows = 0
    for batch in batches:
        for payload in as_json(batch).column("payload").to_pylist():
            spool.write(payload + b"\n")
        rows += batch.num_rows
    return rows


_ENCODERS: dict[CommittedFormat, Callable[[Iterator[pa.RecordBatch], Spool], int]] = {
    "parquet": _write_parquet,
    "ndjson": _write_lines,
}


BATCH_DIGITS = 12
_NAME = re.compile(r"0\d{11}(-\d{3})?")


def commit_name(prefix: str, batch: int, part: int = 0) -> str:
    """Return the name of the commit of a batch, or of what it was given later."""
    return f"{prefix}/{batch:0{BATCH_DIGITS}d}" + (f"-{part:03d}" if part else "")


class CommitRecords(BatchRecords):
    """The batches of one query, as its last commit has them."""

    def __init__(self, options: SinkOptions, query_id: str, last: Commit | None) -> None:
        checkpoint = Checkpoint(options.checkpoint)
        name = "-".join(part for part in ("store", options.name, query_id) if part)
        self._last, self._sink = last, f"spark/{query_id}"
        super().__init__(checkpoint.notes, name, checkpoint)

    def _load(self) -> dict[int, BatchRecord]:
        """Return the records of the last commit: those, not the copy on disk, decide."""
        if self._last is None:
            return {}
        found = self._last.batch_records.get(self._sink)
        if found is None:
            raise BadConfig(
                f"the commits before {self._last.name!r} are another query's",
                hint="use another prefix for this query, or delete those commits",
            )
        return {int(batch): BatchRecord(**record) for batch, record in json.loads(found).items()}

    def with_batch(self, batch: int, record: BatchRecord) -> dict[str, bytes]:
        """Return the records as a commit holds them, with one more."""
        known = {**self._records, batch: record}
        kept = {str(number): known[number]._asdict() for number in sorted(known)[-KEPT_MAX:]}
        return {self._sink: json.dumps(kept, sort_keys=True).encode()}


class CommitWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query as commits of a store."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode the rows of one task."""
        options = self._options
        staged = stage_file(iterator, options.format, self._staging, options.inline_bytes)
        reached(BatchPoint.WRITE, options.checkpoint)
        return staged

    @property
    def _staging(self) -> Path:
        own = Checkpoint(self._options.checkpoint).notes / "staging"
        return Path(self._options.staging or own)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, once."""
        staged = [one for one in messages if isinstance(one, StagedCommitFile) and one.rows]
        if staged:
            database = self._options.database
            url = database.get_secret_value() if database else None
            with Store.open(self._options.store, database=url) as store:
                self._commit(store, staged, batchId)
        reached(BatchPoint.SINK_COMMIT, self._options.checkpoint)
        self.abort(messages, batchId)
        remove_stale(self._staging, _SUFFIX)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was staged."""
        for message in messages:
            if isinstance(message, StagedCommitFile):
                message.discard()

    def _commit(self, store: Store, staged: Sequence[StagedCommitFile], batch: int) -> None:
        """Make one commit of a batch, unless the store has it.

        The records travel inside of the commit, so rows and records become visible in the same
        step. The copy beside the checkpoint is written afterwards, also for a batch that the store
        had: a driver may have died in between.
        """
        checkpoint = Checkpoint(self._options.checkpoint)
        query_id, span = checkpoint.require_query_id(), checkpoint.span(batch)
        commits = Commits(store)
        last = self._last(commits)
        records = CommitRecords(self._options, query_id, last)
        verdict, known = records.judge(batch, span), records.of(batch)
        if verdict == "again":
            assert known is not None, "BUG: a batch that is there has a record"
            records.record(batch, known)
        else:
            part = known.parts if known is not None else 0
            record = BatchRecord(span, part + 1)
            with store.references.open_job(f"{self._options.commit} {query_id}") as job:
                new = self._layer(store, job, staged, batch, part)
                self._publish(
                    store, job, last, new, (batch, part), records.with_batch(batch, record)
                )
            records.record(batch, record)
        self._retire(commits)

    def _last(self, commits: Commits) -> Commit | None:
        """Return the newest commit under the prefix.

        Anything else under it would be taken for a batch, and the next commit would be based on it.
        """
        prefix = f"{self._options.commit}/"
        last = commits.last(f"{prefix}0")
        if last is not None and not _NAME.fullmatch(last.name[len(prefix) :]):
            raise BadConfig(
                f"{last.name!r} is among the commits of the sink, and not one of them",
                hint="use another prefix for this query, or give that commit another name",
            )
        return last

    def _layer(
        self, store: Store, job: Job, staged: Sequence[StagedCommitFile], batch: int, part: int
    ) -> Layer:
        """Store the files of a batch as one layer; paths say which batch and task they are of."""
        known = Metadata(mtime_ns=store.references.seam.clock.wall_ns())
        with FileSetWriter(store, job) as writer:
            for number, file in enumerate(staged):
                name = f"part-{batch:0{BATCH_DIGITS}d}-{part:03d}-{number:05d}"
                path = f"{name}.{self._options.format}"
                writer.put(path, file.blocks(), metadata=known)
            return writer.close()

    def _publish(
        self,
        store: Store,
        job: Job,
        last: Commit | None,
        new: Layer,
        number: tuple[int, int],
        records: dict[str, bytes],
    ) -> None:
        """Commit a layer on top of the newest commit."""
        commits = Commits(store)
        name = commit_name(self._options.commit, *number)
        if last is None:
            commits.create(job, name, [new], batch_records=records)
            return
        # Pinned, so that its layers stay if it is deleted meanwhile.
        with commits.open(last.name) as before:
            layers = compact(store, job, [*before.layers, new])
            commits.create(job, name, layers, parent=last.name, batch_records=records)

    def _retire(self, commits: Commits) -> None:
        """Delete all but the newest commits; they share what they have in common."""
        if self._options.keep_commits is None:
            return
        prefix = f"{self._options.commit}/"
        found = commits.list(f"{prefix}0")
        own = [one.name for one in found if _NAME.fullmatch(one.name[len(prefix) :])]
        for name in own[: -self._options.keep_commits]:
            commits.delete(name)
