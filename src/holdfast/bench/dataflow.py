"""The benchmark of the dataflow: the source beside Spark's own, functions, batches, idleness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from holdfast.bench.dataflow_pipelines import measure_pipelines
from holdfast.bench.dataflow_reading import measure_reading
from holdfast.bench.dataflow_rows import filled
from holdfast.bench.dataflow_scale import FULL, QUICK
from holdfast.bench.figures import Bar, Figures
from holdfast.bench.machine import describe
from holdfast.bench.scratch import scratch
from holdfast.dataflow.driver.session import start_session

BARS = (
    Bar("plain_vs_parquet", at_least=0.4),
    Bar("idle_batches_per_minute", at_most=0),
)
SECTIONS = (measure_reading, measure_pipelines)
MASTER = "local[2]"
MEMORY = "2g"


def run_dataflow(
    *, quick: bool, progress: Callable[[str], None], directory: PurePath | None
) -> dict[str, object]:
    """Measure everything; see docs/benchmarks.md for what each figure means."""
    import pyspark

    scale = QUICK if quick else FULL
    figures = Figures()
    with scratch(directory) as folder:
        machine = {**describe(folder), "spark": pyspark.__version__, "master": MASTER}
        progress(f"fill: {scale.rows:,} rows")
        with filled(folder, scale) as stores:
            settings = {
                "spark.driver.memory": MEMORY,
                "spark.local.dir": str(folder / "spark"),
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            }
            session = start_session(MASTER, settings, name="bench")
            try:
                for measure in SECTIONS:
                    measure(session, stores, scale, figures, progress)
            finally:
                session.stop()
    return figures.result("dataflow", quick=quick, machine=machine, bars=BARS)
