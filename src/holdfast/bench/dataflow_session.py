"""One Spark session for all measurements of the dataflow, over quivers that are filled first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.bench.dataflow_pipelines import measure_pipelines
from holdfast.bench.dataflow_reading import measure_reading
from holdfast.bench.dataflow_rows import filled
from holdfast.bench.figures import Figures
from holdfast.bench.scale import DataflowScale
from holdfast.dataflow.driver.session import start_session

MASTER = "local[2]"
MEMORY = "2g"


def measure_dataflow(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure the source beside Spark's own, functions, batches and idleness."""
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
            measure_reading(session, stores, scale, figures, progress)
            measure_pipelines(session, stores, scale, figures, progress)
        finally:
            session.stop()
