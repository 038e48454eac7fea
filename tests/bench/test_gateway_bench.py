"""`holdfast bench gateway --quick` runs all its sections against real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What issue and documentation name; each has a median and a spread.
FIGURES = {
    "durable_events_per_s",
    "cpu_us_per_event",
    "syncs_per_event",
    "p50_ms",
    "p99_ms",
    "memory_level_ratio",
    "vs_jetstream_sync",
    "rss_mb",
    "rss_backlog_mb",
    "idle_forward_ms",
    "deliver_events_per_s",
    "dead_neighbour_p50_ratio",
    "validation_vs_parse",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_figure_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "gateway", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spread"].keys() >= FIGURES
    assert all(found[name] > 0 for name in FIGURES)
    assert not list(tmp_path.iterdir())
