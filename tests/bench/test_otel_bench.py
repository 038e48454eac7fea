"""`holdfast bench otel --quick` runs all its sections against real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIGURES = {
    f"{name}{suffix}"
    for name in ("grpc_vs_plain", "http_vs_plain", "spans_per_s", "grpc_cpu_us_per_request")
    for suffix in ("", "_1000")
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_figure_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "otel", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spread"].keys() >= FIGURES
    assert all(found[name] > 0 for name in FIGURES)
    assert not list(tmp_path.iterdir())
