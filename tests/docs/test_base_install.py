"""`pip install .` alone gives a working embedded Quiver, and nothing heavy with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_readme import ROOT, examples
from tests.patience import PATIENCE_S, SPARK_PATIENCE_S

HEAVY = ("pyspark", "grpc", "pydantic", "obstore", "numpy", "pandas")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_base_install_runs_the_readme_and_imports_nothing_heavy(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=PATIENCE_S
    )
    python = tmp_path / "venv" / "bin" / "python"
    constraints = str(ROOT / "constraints.txt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", constraints, str(ROOT)],
        check=True,
        timeout=SPARK_PATIENCE_S,
        capture_output=True,
        env={**environment, "PIP_CONSTRAINT": constraints},
    )
    ending = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [python, "-c", "\n".join([*examples(), ending])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    loaded = json.loads(result.stdout.splitlines()[-1])
    assert [name for name in HEAVY if name in loaded] == []
    told = subprocess.run(
        [tmp_path / "venv" / "bin" / "holdfast", "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env=environment,
    )
    assert "holdfast" in told.stdout
