"""The pipeline of the demo: Spark counts, per job and five seconds, what the gateway takes."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.dataflow.driver.java import find_java
from holdfast.demo.keeping import COUNTS, STORE, can_keep
from holdfast.errors import CheckFailed

LOOK_EVERY_S = 0.5
CLOSE_SECONDS_MAX = 300.0
_WINDOWS, _LATE = "counts", "late"

PIPELINES: dict[str, Any] = {
    "counting": {
        "watermark": {"max_delay": "2s", "idle_after": "2s"},
        "vertices": {
            "events": {"source": {"quiver": "buffer", "decode": "openlineage"}},
            "per_job": {
                "reduce": {
                    "window": {"fixed": "5s"},
                    "key": ["job"],
                    "aggregate": {"events": "count(*)"},
                    "late": "side_output",
                }
            },
            "counts": {"sink": {"files": _WINDOWS}},
            "late": {"sink": {"files": _LATE}},
            "kept": {"sink": {"fileset": {"store": STORE, "commit": COUNTS}}},
        },
        "edges": [
            "events -> per_job",
            "per_job -> counts",
            "per_job -> kept",
            "per_job.late -> late",
        ],
    }
}


@dataclass
class PipelineScene:
    """What the audience sees of Spark."""

    state: str = "starting"
    rows: int = 0
    rows_per_s: float = 0.0
    watermark: datetime | None = None


def can_count() -> bool:
    """Whether this machine can run pipelines."""
    java = find_java() if find_spec("pyspark") is not None else None
    return java is not None and java.is_good and can_keep()


class Counting:
    """The pipeline of one performance, as it is seen from outside."""

    def __init__(self, directory: Path, config: Path, admin_port: int) -> None:
        self._directory = directory
        self._config = config
        self._admin_port = admin_port
        self._looked_s = 0.0

    def look(self, scene: PipelineScene) -> None:
        """Take in what the gateway's admin port says, not too often."""
        if time.monotonic() < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        figures = self._figures()
        states = [line for line, value in figures.items() if "run_state" in line and value == 1]
        scene.state = states[0].partition('state="')[2].partition('"')[0] if states else "starting"
        scene.rows_per_s = _figure(figures, "pipeline_query_rows_per_second")
        scene.rows = int(_figure(figures, "pipeline_query_rows_total"))
        watermark_s = _figure(figures, "pipeline_query_watermark_timestamp_seconds")
        scene.watermark = datetime.fromtimestamp(watermark_s, UTC) if watermark_s else None

    def _figures(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return {}  # it is dead right now
        finally:
            connection.close()
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("pipeline_")]
        return {name: float(value) for name, _, value in lines}

    def close(self) -> None:
        """Count everything, and close all windows."""
        command = ["dataflow", "drain", str(self._config), "--close", "--json"]
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=CLOSE_SECONDS_MAX,
        )
        if ended.returncode != 0:
            raise CheckFailed(
                f"the pipeline was not closed: {ended.stderr[-2000:]}", hint="run `holdfast doctor`"
            )

    def in_windows(self) -> int:
        """Return how many events are in windows, as the files say."""
        windows = sum(
            pc.sum(pq.read_table(path, columns=["events"])["events"]).as_py() or 0
            for path in (self._directory / _WINDOWS).glob("*.parquet")
        )
        return int(windows)

    def counted(self) -> int:
        """Return how many events are in the results: in windows, and late."""
        late = sum(
            pq.read_metadata(p).num_rows for p in (self._directory / _LATE).glob("*.parquet")
        )
        return self.in_windows() + int(late)


def _figure(figures: dict[str, float], name: str) -> float:
    return sum(value for line, value in figures.items() if line.startswith(f"{name}{{"))
