"""`spark.readStream`: plans batches over the cursors of all quivers, and claims the watermark.

The reader lives in a process of its own beside the driver; `read` runs in executors, on another
copy, so nothing is opened before the first question. Order of events for a batch N, and what is
durable when the driver dies in between:

    latestOffset   pins the range in every quiver's ledger, durably
    (Spark)        writes offsets/N: positions, claim, heartbeat
    partitions     the pieces of exactly that range, planned now or, after a restart, again
    (Spark)        runs the batch, the sink commits it, writes commits/N
    acknowledge    rejected rows become dead letters (rejected_publish.py); then what
                   commits/N covers is acked: at the next question, at `stop`, or at the next
                   start. Spark's own `commit` comes only when the next batch is planned, and
                   never for the last one; the commit log in the checkpoint says it earlier.

An acknowledgement always follows a commit, so a crash anywhere costs reading again, nothing else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.dataflow.base.points import BatchPoint, reached
from holdfast.dataflow.source.checkpoint import Checkpoint, Offset
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.partitions import SourcePartition, read
from holdfast.dataflow.source.planner import Planner
from holdfast.dataflow.source.quiver_client import open_quiver_client
from holdfast.dataflow.source.quiver_location import quiver_locations
from holdfast.dataflow.source.stored import StoredQuiverClient
from holdfast.errors import BadConfig
from holdfast.quiver.ledger.subscriber import check_name
from holdfast.seam import Seam

log = logging.getLogger("holdfast.dataflow")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads quivers as a stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if not options.subscriber:
            raise BadConfig(
                "a stream needs a subscriber",
                hint="name it with option subscriber: its progress is kept under that name",
            )
        if (options.is_range and not options.stored) or options.seal or options.pushdown:
            raise BadConfig(
                "since_seq, until_seq, seal and pushdown are of a batch",
                hint="use spark.read; a stream resumes where its subscriber is",
            )
        if options.archive:
            raise BadConfig(
                "an archive has no subscribers: nothing in it says what was read",
                hint="use spark.read over the archive, and stream from the quiver (path or quiver)",
            )
        if options.nodes:
            raise BadConfig(
                "a data node has no subscribers: it has only the parts that it owns",
                hint="use spark.read over nodes, and stream from the gateway",
            )
        is_folder = options.checkpoint and "://" not in options.checkpoint.removeprefix("file:")
        if options.unfit and not is_folder:
            raise BadConfig(
                "rows that do not fit are kept beside the checkpoint until a batch is committed",
                hint="name it with option checkpoint, a local or mounted folder",
            )
        check_name(options.subscriber)
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None

    @property
    def planner(self) -> Planner:
        """What knows the quivers; made when it is first asked."""
        if self._planner is None:
            options, seam = self._options, Seam()
            checkpoint = Checkpoint(options.checkpoint) if options.checkpoint else None
            gateways = [
                StoredQuiverClient(place, options, seam)
                if options.stored
                else open_quiver_client(place, options, seam)
                for place in quiver_locations(options)
            ]
            self._planner = Planner(options, gateways, checkpoint, seam)
        return self._planner

    # Spark gives these methods their names.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        return self.planner.initial().to_fields()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound of one batch; bytes are bounded beside it."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, in as many batches as the limits ask for, and end."""
        self.planner.stop_at_newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Plan the next batch; the same offset again if there is nothing to do.

        Spark asks again immediately, so a question without a new answer waits for a moment. While
        the driver has put up the file `wait_while`, the answer is always the old one: batches that
        are planned already run on, and nothing is lost, only later.
        """
        reached(BatchPoint.COMMIT_LOG, self._options.checkpoint)
        rows = self._options.max_rows
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            log.debug("the read limit %r is not used, max_rows is", limit)
        must_wait = self._options.wait_while and os.path.exists(self._options.wait_while)
        end = start if must_wait else self.planner.next(Offset.from_fields(start), rows).to_fields()
        if end == start:
            time.sleep(self._options.poll_every)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what executors read of a batch.

        By now Spark has logged the offsets. After a restart it asks for the same two offsets once
        more, and must be given the same rows.
        """
        reached(BatchPoint.OFFSETS, self._options.checkpoint)
        return self.planner.partitions(Offset.from_fields(start), Offset.from_fields(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; runs in executors."""
        assert isinstance(partition, SourcePartition), "BUG: not a partition of this source"
        return read(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge a batch that is committed.

        Usually that has been done: the commit log was read when the next batch was planned.
        """
        self.planner.acknowledge(Offset.from_fields(end))

    def stop(self) -> None:
        """Acknowledge the last batch, and detach."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None
