"""Questions about stored spans: duckdb over a quiver, beside duckdb over Parquet of the same rows.

Both read two of twenty-odd columns of the same rows, with the same memory and threads. The quiver's
side includes looking at the directory, which Parquet has no need of. Tables of its sealed segments
are kept, as by `quiver sql --keep`; what the first question costs, which has to make rows of all
requests, is told beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.otel_load import request_of
from holdfast.bench.scale import OtelScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.query.datasets import open_tables
from holdfast.query.kept import KeptTables
from holdfast.query.sql import SqlLimits, answer
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.signals.registry import extractors, tables

REQUEST_SPANS = 1000
_SEGMENTS = 4
_QUERY = """
    select service_name, name, count(*) as spans, avg(duration_ns) as mean_ns,
        max(duration_ns) as most_ns
    from {} group by all order by all
"""
_FIRST_TRACE = (1).to_bytes(16, "big")


def measure_scan(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Compare the time of a question about all spans."""
    spans = scale.queried_requests * REQUEST_SPANS
    progress(f"questions about {spans:,} stored spans, beside Parquet of the same rows")
    quiver, parquet = folder / "query", folder / "query.parquet"
    _fill(quiver, scale.queried_requests)
    with pq.ParquetWriter(parquet, open_tables(quiver)["spans"].schema, compression="zstd") as file:
        for batch in open_tables(quiver)["spans"].to_batches():
            file.write_batch(batch)
    kept = folder / "query_kept"
    expected = _over_parquet(parquet)[1]

    def over_quiver(keep: Path | None) -> float:
        with Stopwatch() as watch:
            found = open_tables(quiver, keep=None if keep is None else KeptTables(keep))
            with answer(found, _QUERY.format("spans")) as reader:
                told = [tuple(row.values()) for row in reader.read_all().to_pylist()]
        if told != expected:
            raise CheckFailed(
                f"the quiver says {told}, Parquet {expected}", hint="compare their rows"
            )
        return watch.wall_s

    figures.add("scan_first_spans_per_s", [spans / over_quiver(kept)])
    runs = rotated(
        {
            "quiver": lambda: over_quiver(kept),
            "parquet": lambda: _over_parquet(parquet)[0],
            "unkept": lambda: over_quiver(None),
            "control": lambda: _over_parquet(parquet)[0],
        },
        scale.rounds,
        warm_up=True,
    )
    pairs = list(zip(runs["parquet"], runs["quiver"], strict=True))
    figures.add("scan_vs_parquet", (theirs / ours for theirs, ours in pairs))
    again = zip(runs["parquet"], runs["control"], strict=True)
    figures.add("scan_vs_parquet_control", (one / other for one, other in again))
    unkept = zip(runs["parquet"], runs["unkept"], strict=True)
    figures.add("scan_vs_parquet_unkept", (theirs / ours for theirs, ours in unkept))
    figures.add("scan_spans_per_s", (spans / seconds for seconds in runs["quiver"]))
    figures.note("scan_spans", spans)


def _fill(folder: Path, requests: int) -> None:
    """Store requests, each of other traces, in some segments."""
    before, found, behind = request_of(REQUEST_SPANS).partition(_FIRST_TRACE)
    assert found, "BUG: a request without its second trace"
    config = QuiverConfig(extractors=extractors(), tables=tables())
    with Quiver.open(folder, config) as quiver:
        for number in range(requests):
            quiver.append_raw(before + struct.pack(">QQ", 1, number) + behind, slot="otlp_traces")
            if (number + 1) % max(1, requests // _SEGMENTS) == 0:
                quiver.flush()


def _over_parquet(path: Path) -> tuple[float, list[tuple[object, ...]]]:
    limits = SqlLimits()
    with Stopwatch() as watch, duckdb.connect() as connection:
        connection.execute(f"set memory_limit = '{limits.memory_bytes}B'")
        connection.execute(f"set threads = {limits.threads}")
        told = connection.execute(_QUERY.format(f"read_parquet('{path}')")).fetchall()
    return watch.wall_s, told
