"""`holdfast bench dataflow --quick` runs all its sections on a real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.prove.sessions import end_session

# What issue and documentation name; each has a median and a spread.
FIGURES = {
    "plain_rows_per_s",
    "parquet_rows_per_s",
    "plain_vs_parquet",
    "plain_cpu_us_per_row",
    "parquet_cpu_us_per_row",
    "flight_vs_mmap",
    "batch_p50_ms",
    "batch_p99_ms",
    "python_map_rows_per_s",
    "python_reducer_rows_per_s",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_figure_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "dataflow", "--quick", "--json"]
    process = subprocess.Popen(
        [*command, "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, errors = process.communicate()
    finally:
        end_session(process.pid)
    assert process.returncode == 0, errors
    found = json.loads(told)
    assert found["spread"].keys() >= FIGURES
    assert all(found[name] > 0 for name in FIGURES)
    assert found["idle_batches_per_minute"] == 0
    assert found["bars"].keys() == {"plain_vs_parquet", "idle_batches_per_minute"}
    assert not list(tmp_path.iterdir())
