"""The progress of a query: what Spark reports about its batches, added up; and its restarts.

Spark keeps the reports of its last hundred batches and no totals, so they are added up here, each
batch once, whenever somebody looks. A query that hangs looks much like one that has nothing to do.
What tells them apart is what it says it is at, since when, and whether anything is done for it.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.dataflow.driver.failures import Restarts
from holdfast.dataflow.driver.wire import QueryStatistics

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from holdfast.dataflow.compiler.tails import Tail
    from holdfast.dataflow.source.checkpoint import Checkpoint
    from holdfast.dataflow.source.rejected_publish import RejectedCount

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What Spark says while it waits for the process that plans. An idle query says so too, but it
# reports every ten seconds.
_PLANNING = ("Initializing sources", "Getting offsets")
_RUNNING = "Processing new data"
# A batch that runs longer is logged, and again each time this much more has passed.
LONG_BATCH_S = 600.0
# For a batch of which nothing is done: no job of Spark's, and nothing of ours in the driver. A sink
# of a query without branches is committed by Spark, where it is not seen: so it is a long time.
BATCH_PATIENCE_S = 1800.0

log = logging.getLogger("holdfast.dataflow")


class _Doing(NamedTuple):
    """What a query was seen to do, and since when."""

    message: str
    # Of its last report.
    reported: str
    since_s: float


@dataclass
class QueryProgress:
    """Adds up what Spark reports of one query's batches; it remembers the last hundred."""

    name: str
    spark: StreamingQuery
    tail: Tail | None
    # Starts it once more, from its checkpoint.
    begin: Callable[[], StreamingQuery]
    restarts: Restarts
    checkpoint: Checkpoint
    # Rejected rows of its sources.
    rejected: RejectedCount | None = None
    clock_s: Callable[[], float] = time.monotonic
    rows_total: int = 0
    # Of the last batch.
    rows_last: int = 0
    batches_total: int = 0
    left_out_total: int = 0
    seen_batch: int = -1
    observed: Counter[str] = field(default_factory=Counter)
    _reported: str = field(default="", init=False)
    _doing: _Doing = field(default=_Doing("", "", 0.0), init=False)
    # When its batch was last seen at work, and when it was last logged.
    _at_work_s: float = field(default=0.0, init=False)
    _logged_s: float = field(default=0.0, init=False)

    def begin_again(self) -> None:
        """Restart the query if it ended for lack of a Python process, and has attempts left."""
        error = self.spark.exception()
        if error is None:
            return
        self.look()
        if self.restarts.may_begin(error, self.batches_total):
            log.warning("restarting %s: its Python process did not start in time", self.name)
            self.spark = self.begin()

    def is_in_batch(self) -> bool:
        """Whether a batch is planned and not done, by a query that still runs."""
        checkpoint = self.checkpoint
        return self.spark.isActive and checkpoint.last_planned() != checkpoint.last_committed()

    def stuck(
        self, planning_patience_s: float, has_jobs: Callable[[StreamingQuery], bool]
    ) -> tuple[str, float] | None:
        """Return what a query hangs in, and for how long; None if it makes progress.

        While it plans, its status and its reports stand still, and gateways answer within their
        time-outs: silence for longer is a hang. A batch may take any time as long as something is
        done for it, in Spark or in our tail; if nothing is, it will not end either.
        """
        message, now_s = str(self.spark.status["message"]), self.clock_s()
        if (message, self._reported) != self._doing[:2]:
            self._doing = _Doing(message, self._reported, now_s)
            self._at_work_s = self._logged_s = now_s
        if message.startswith(_PLANNING):
            quiet_s = now_s - self._doing.since_s
            return (message, quiet_s) if quiet_s > planning_patience_s else None
        if not message.startswith(_RUNNING):
            return None
        later_s = now_s - self._logged_s
        if later_s > LONG_BATCH_S:
            log.warning("%s: its batch is still running, %.0f s later", self.name, later_s)
            self._logged_s = now_s
        quiet_s = now_s - self._at_work_s
        if quiet_s > BATCH_PATIENCE_S and not self._is_at_work(has_jobs):
            return message, quiet_s
        return None

    def _is_at_work(self, has_jobs: Callable[[StreamingQuery], bool]) -> bool:
        """Whether something is done for the batch: in the driver's tail, or as a job of Spark."""
        is_at_work = (self.tail is not None and self.tail.is_called) or has_jobs(self.spark)
        if is_at_work:
            self._at_work_s = self.clock_s()
        return is_at_work

    def look(self) -> None:
        """Take in what is new.

        Spark keeps the last hundred reports only, so this is called several times a second. An idle
        query repeats its last report, and one that was restarted may repeat a batch: each number
        counts once.
        """
        for progress in self.spark.recentProgress:
            self._reported = str(progress["timestamp"])
            batch = int(progress["batchId"])
            if batch <= self.seen_batch or not _is_batch(progress):
                continue
            self.seen_batch = batch
            self.batches_total += 1
            self.rows_last = sum(map(_rows_of, progress["sources"]))
            self.rows_total += self.rows_last
            self.left_out_total += sum(
                int(operator["numRowsDroppedByWatermark"])
                for operator in progress["stateOperators"]
            )
            for name, row in dict(progress["observedMetrics"] or {}).items():
                self.observed[name] += int(row["rows"] or 0)
        if self.rejected is not None:
            self.rejected.look()

    def statistics(self) -> QueryStatistics:
        """Return a snapshot."""
        last = self.spark.lastProgress
        tail = {} if self.tail is None else {".".join(k): n for k, n in self.tail.counts.items()}
        found = {} if self.rejected is None else self.rejected.by_vertex
        rejected = {f"failed.{vertex}": n for vertex, n in found.items()}
        operators = last["stateOperators"] if last else []
        batch_s = float(last["batchDuration"]) / 1000 if last else 0.0
        watermark = (last["eventTime"] or {}).get("watermark") if last else None
        state_rows = sum(int(operator["numRowsTotal"]) for operator in operators)
        return QueryStatistics(
            name=self.name,
            is_running=self.spark.isActive,
            batch=None if self.seen_batch < 0 else self.seen_batch,
            batches_total=self.batches_total,
            batch_s=batch_s,
            rows_total=self.rows_total,
            rows_per_s=self.rows_last / batch_s if batch_s and last and _is_batch(last) else 0.0,
            watermark=watermark,
            lag_s=lag_s(watermark, datetime.now(UTC), is_waited_for=state_rows > 0),
            state_rows=state_rows,
            state_bytes=sum(int(operator["memoryUsedBytes"]) for operator in operators),
            left_out_total=self.left_out_total,
            counts={name: n for name, n in {**self.observed, **tail, **rejected}.items() if n},
        )


def lag_s(watermark: str | None, now: datetime, *, is_waited_for: bool) -> float | None:
    """Return how far a watermark is behind; None while there is none."""
    if watermark is None:
        return None
    try:
        moment = datetime.fromisoformat(watermark)
    except ValueError:
        return 0.0  # the end of time has a year that Python does not write
    if moment <= _EPOCH:
        return None
    return max(0.0, (now - moment).total_seconds()) if is_waited_for else 0.0


def _rows_of(source: Any) -> int:
    """Return how many rows a source gave a batch, each once: Spark counts them for every branch."""
    try:
        begin, end = (json.loads(source[name] or "{}") for name in ("startOffset", "endOffset"))
        return max(0, int(end["rows"]) - int(begin.get("rows", 0)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return int(source["numInputRows"])  # not ours


def _is_batch(progress: Any) -> bool:
    """Whether a report is of a batch; an idle query reports its last number again."""
    return "addBatch" in progress["durationMs"]
