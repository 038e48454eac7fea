"""From an event to its result: how long after it was durable a row is in the folder of a sink.

A thousand events a second are appended, a few at a time, each with the moment of its append, while
a pipeline runs as it would for a year: a filter into files, with default settings. A result is
there when its file has its name; the file system notes that moment (`st_ctime`). What comes while
Spark warms up is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.bench.dataflow_pipelines import Lab
from holdfast.bench.dataflow_reading import spark_and_rows
from holdfast.bench.dataflow_rows import EMPTY, SLOT
from holdfast.bench.figures import Figures, percentile
from holdfast.bench.scale import DataflowScale
from holdfast.dataflow.run import PipelineRun
from holdfast.errors import CheckFailed
from holdfast.quiver import Quiver

EVENTS_PER_S = 1_000
_TURN_S = 0.02
# For the last results, and for the first one of a Spark that is cold.
PATIENCE_S = 300.0
_POLL_S = 0.05
_TIME = pa.timestamp("us", tz="UTC")


def measure_latency(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure how long results take at a steady rate."""
    with spark_and_rows(folder, scale, [EMPTY], progress) as (session, stores):
        progress(f"latency: {EVENTS_PER_S:,} events/s for {scale.latency_s:.0f} s")
        lab, sink = Lab(session, stores), folder / "results"
        quiver = stores.quivers[EMPTY]
        # The columns are known by the first rows that are sealed.
        sent = _send(quiver, 0.0)
        quiver.flush()
        run, _ = lab.made(lab.begin(EMPTY).filter("value >= 0").sink(files=str(sink)))
        with run:
            run.start()
            _wait_for(run, sink, sent)
            sent += _send(quiver, scale.warm_up_s)
            began_us = time.time_ns() // 1000
            wanted = _send(quiver, scale.latency_s)
            _wait_for(run, sink, sent + wanted)
        waits_s = sorted(wait_s for at_us, wait_s in _results(sink) if at_us >= began_us)
    if len(waits_s) != wanted:
        raise CheckFailed("events are missing in the results", hint="the figures mean nothing")
    figures.add("event_to_result_p50_s", [percentile(waits_s, 50)])
    figures.add("event_to_result_p99_s", [percentile(waits_s, 99)])


def _send(quiver: Quiver, length_s: float) -> int:
    """Append events for so long, at least once; return how many."""
    count, began_s = 0, time.monotonic()
    each = round(EVENTS_PER_S * _TURN_S)
    while True:
        now_us = time.time_ns() // 1000
        # The moment is a number, too: the column of event times is not among what is read.
        rows = {
            "at": pa.array([now_us] * each, _TIME),
            "key": [str(now_us)] * each,
            "value": pa.array([1.0] * each),
        }
        quiver.append({SLOT: pa.record_batch(rows)})
        count += each
        ahead_s = count / EVENTS_PER_S - (time.monotonic() - began_s)
        if time.monotonic() - began_s >= length_s:
            return count
        if ahead_s > 0:
            time.sleep(ahead_s)


def _wait_for(run: PipelineRun, sink: Path, rows: int) -> None:
    """Wait until a sink has so many rows."""
    give_up_s = time.monotonic() + PATIENCE_S
    while sum(pq.read_metadata(path).num_rows for path in sink.glob("*.parquet")) < rows:
        if time.monotonic() > give_up_s:
            raise CheckFailed("results do not come", hint="the figures mean nothing")
        run.wait(_POLL_S)


def _results(sink: Path) -> Iterator[tuple[int, float]]:
    """Yield of each result when its event was sent, and how many seconds it took."""
    for path in sink.glob("*.parquet"):
        done_us = path.stat().st_ctime_ns / 1000
        for key in pq.read_table(path, columns=["key"])["key"].to_pylist():
            yield int(key), (done_us - int(key)) / 1e6
