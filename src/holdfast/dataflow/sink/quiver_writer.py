"""The quiver sink: one batch is one idempotent transaction, `producer` = query, `epoch` = batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.sink.records import BatchRecords
from holdfast.dataflow.sink.staged import Staged, stage
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.local import load_config
from holdfast.errors import StaleEpoch
from holdfast.quiver import Quiver

# Beside Spark's own logs, which are synced less carefully.
RECORDS_DIR = "holdfast"


def producer_name(query_id: str) -> str:
    """Return under which name a query appends."""
    return f"spark/{query_id}"


class QuiverWriter(DataSourceStreamArrowWriter):
    """Appends the batches of a query to a quiver that nobody else has open."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return stage(iterator, self._staging, self._options.inline_bytes)

    @property
    def _staging(self) -> Path:
        checkpoint = Checkpoint(self._options.checkpoint)
        return Path(self._options.staging or checkpoint.folder / RECORDS_DIR / "staging")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append a batch, all or nothing, once."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if any(one.rows for one in staged):
            self._append(staged, batchId)
        self._discard(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Forget what was staged."""
        self._discard(messages)

    def _append(self, staged: list[Staged], batch: int) -> None:
        checkpoint = Checkpoint(self._options.checkpoint)
        query_id, span = checkpoint.require_query_id(), checkpoint.span(batch)
        records = BatchRecords(checkpoint.folder / RECORDS_DIR, f"quiver-{query_id}")
        known = records.span(batch)
        if known is None:
            records.check(batch, span)
            # Before the append: a batch that is in the quiver always has its range recorded.
            records.record(batch, span)
        config = load_config(self._options.quiver_config)
        with Quiver.open(self._options.path, config) as quiver:
            try:
                with quiver.transaction(producer=producer_name(query_id), epoch=batch + 1) as group:
                    for one in staged:
                        for rows in one.batches():
                            group.append({self._options.slot: rows})
            except StaleEpoch as error:
                raise records.other_range(batch) from error
        assert group.receipt is not None, "BUG: a committed transaction has a receipt"
        if group.receipt.duplicate and known != span:
            # It was there before, and not with these rows: the next try must find that out too.
            records.record(batch, known)
            raise records.other_range(batch)
        if known != span:
            records.record(batch, span)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for message in messages:
            if isinstance(message, Staged):
                message.discard()
