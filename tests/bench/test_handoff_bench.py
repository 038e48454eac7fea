"""`holdfast bench handoff --quick` runs all its sections with real data nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.bench.scale import HANDOFF_FULL

RATIOS = {"drain_vs_flight", "adopt_vs_append", "healthy_node_ratio", "store_amplification"}
FIGURES = {
    *RATIOS,
    *(f"{name}_control" for name in RATIOS),
    "fairness",
    "startup_s",
    "startup_segments_s",
    "health_bytes",
}


def test_a_backlog_has_enough_quanta_for_fairness_to_be_more_than_their_size() -> None:
    assert HANDOFF_FULL.fairness_quanta >= 20
    assert HANDOFF_FULL.parts >= HANDOFF_FULL.fairness_quanta
    assert (HANDOFF_FULL.waiting_bundles, HANDOFF_FULL.waiting_segments) == (1_000_000, 100_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_figure_is_measured(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "holdfast", "bench", "handoff", "--quick", "--json"]
    done = subprocess.run(
        [*line, "--dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spread"].keys() >= FIGURES
    assert all(found[name] > 0 for name in FIGURES)
    assert found["store_amplification"] < 1.1
    assert found["fairness"] >= 1
    assert found["health_known_bytes"] <= found["health_bytes"]
    assert not list(tmp_path.iterdir())
