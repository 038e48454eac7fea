"""The quiver sink: one batch is one idempotent transaction, `producer` = query, `epoch` = batch.

A task hands its rows to the driver as an Arrow stream, inline or in a staged file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.dataflow.base.durable_file import remove_stale
from holdfast.dataflow.base.json_rows import as_json
from holdfast.dataflow.base.points import BatchPoint, reached
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.sink.records import BatchRecord, BatchRecords, BatchVerdict
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.notes import BatchSpan
from holdfast.dataflow.source.quiver_client import load_config
from holdfast.dataflow.source.quiver_location import split_address
from holdfast.errors import StaleEpoch, TransactionEnded
from holdfast.quiver import Quiver, Receipt
from holdfast.remote import RemoteQuiver

_STAGED_SUFFIX = ".arrow"


@dataclass
class StagedRows(WriterCommitMessage):
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


def stage(batches: Iterable[pa.RecordBatch], folder: Path, inline_bytes: int) -> StagedRows:
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
        return StagedRows(0)
    sink = pa.BufferOutputStream()
    rows = _write(sink, kept, kept[0].schema)
    return StagedRows(rows, content=sink.getvalue().to_pybytes())


def _to_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: Path) -> StagedRows:
    """Write the rows of a task to a staged file; one that fails leaves nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.path.abspath(folder / f"{uuid.uuid4()}{_STAGED_SUFFIX}")
    try:
        with pa.OSFile(path, "wb") as file:
            rows = _write(file, batches, schema)
    except BaseException:
        os.unlink(path)
        raise
    return StagedRows(rows, path=path)


def _write(sink: pa.NativeFile, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches as an Arrow stream; return how many rows they have."""
    rows = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


# Epochs of one batch: it has more than one if it was trimmed, perhaps several times.
PARTS_MAX = 1000
# A quiver keeps promises in 64 bits; the end of time is beyond that.
PROMISE_NS_MAX = 2**63 - 1


def producer_name(query_id: str, sink: str = "") -> str:
    """Return under which name a sink of a query appends."""
    return f"spark/{query_id}/{sink}" if sink else f"spark/{query_id}"


class QuiverWriter(DataSourceStreamArrowWriter):
    """Appends the batches of a query to a quiver, opened here or at a server."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._checkpoint = Checkpoint(options.checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        rows = map(as_json, iterator) if self._options.encode == "json" else iterator
        staged = stage(rows, self._staging, self._options.inline_bytes)
        reached(BatchPoint.WRITE, self._options.checkpoint)
        return staged

    @property
    def _staging(self) -> Path:
        return Path(self._options.staging or self._checkpoint.notes / "staging")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append a batch, all or nothing, once."""
        staged = [one for one in messages if isinstance(one, StagedRows) and one.rows]
        if staged or self._options.watermark:
            with self._open() as quiver:
                if staged:
                    self._append(quiver, staged, batchId)
                if self._options.watermark:
                    self._promise(quiver, batchId)
        reached(BatchPoint.SINK_COMMIT, self._options.checkpoint)
        self._discard(messages)
        remove_stale(self._staging, _STAGED_SUFFIX)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Forget what was staged."""
        self._discard(messages)

    def _open(self) -> Quiver | RemoteQuiver:
        """Open the quiver for one batch: others may need its directory between two batches."""
        if self._options.path:
            return Quiver.open(self._options.path, load_config(self._options.quiver_config))
        location, name = split_address(self._options.quiver)
        return RemoteQuiver.open(location, name, self._options.client)

    def _append(self, quiver: Quiver | RemoteQuiver, staged: list[StagedRows], batch: int) -> None:
        """Append a batch as one transaction, once.

        The record is written twice. First as not sure, before the append: should the driver die
        now, the next one knows which range was on its way, and the quiver, which has the epoch or
        has not, says whether it arrived. Then as sure, because a quiver forgets epochs in the end,
        and a record does not.
        """
        query_id, span = self._checkpoint.require_query_id(), self._checkpoint.span(batch)
        name = "-".join(part for part in ("quiver", self._options.name, query_id) if part)
        records = BatchRecords(self._checkpoint.notes, name, self._checkpoint)
        verdict, known = self._judge(records, batch, span)
        if verdict == "again" and known is not None and known.is_sure:
            return  # however long ago: a quiver does not remember epochs for ever
        part = 0
        if known is not None and verdict != "new":
            part = known.parts - (verdict == "again")
        # Before the append: a batch that is in the quiver always has its range recorded.
        records.record(batch, BatchRecord(span, part + 1, is_sure=False))
        rows = [one for task in staged for one in task.batches()]
        try:
            epoch = batch * PARTS_MAX + part + 1
            producer = producer_name(query_id, self._options.name)
            is_old = self._transact(quiver, rows, producer, epoch).duplicate
        except StaleEpoch:
            is_old = True
        if is_old and verdict != "again":
            # It was there before, and not with these rows: the next try must find that out too.
            records.record(batch, known)
            raise records.other_range(batch)
        records.record(batch, BatchRecord(span, part + 1))

    def _judge(
        self, records: BatchRecords, batch: int, span: BatchSpan
    ) -> tuple[BatchVerdict, BatchRecord | None]:
        """Return what a batch is; what was only about to be written may become another."""
        known = records.of(batch)
        if known is not None and not known.is_sure and known.span != span:
            return "new", known
        return records.judge(batch, span), known

    def _transact(
        self,
        quiver: Quiver | RemoteQuiver,
        batches: Sequence[pa.RecordBatch],
        producer: str,
        epoch: int,
    ) -> Receipt:
        """Append batches under one producer and epoch: all of them become visible, or none."""
        slot, is_raw = self._options.slot, self._options.encode == "json"
        if isinstance(quiver, RemoteQuiver):
            options: dict[str, Any] = {"producer": producer, "epoch": epoch, "raw": is_raw}
            return quiver.append_all(batches, slot=slot, **options)
        group = quiver.transaction(producer=producer, epoch=epoch)
        try:
            for batch in batches:
                if is_raw:
                    group.append_raw(batch.column("payload").to_pylist(), slot=slot)
                else:
                    group.append({slot: batch})
            return group.commit()
        except BaseException:
            with contextlib.suppress(TransactionEnded):
                group.abort()
            raise

    def _promise(self, quiver: Quiver | RemoteQuiver, batch: int) -> None:
        """Promise how far the query's results are complete: queries behind it claim no more."""
        producer = producer_name(self._checkpoint.require_query_id(), self._options.name)
        reached_ns = min(self._reached_us(batch) * 1000, PROMISE_NS_MAX)
        if self._options.hold_us is not None:
            reached_ns = min(reached_ns, self._options.hold_us * 1000)
        if reached_ns > quiver.statement().producer_watermarks.get(producer, 0):
            quiver.heartbeat(producer, reached_ns)

    def _reached_us(self, batch: int) -> int:
        """Return how far the query has come with a batch.

        A query with state is as far as the watermark by which it closed windows. One without passes
        rows on as they come, and is as far as the least claim of its sources.
        """
        if not self._options.claims_of:
            return (self._checkpoint.watermark_ms(batch) or 0) * 1000
        offsets = self._checkpoint.offsets(batch)
        names = self._options.claims_of.split(",")
        return min(offsets[name].claim_us if name in offsets else 0 for name in names)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for message in messages:
            if isinstance(message, StagedRows):
                message.discard()
