"""The wheel, in an environment of its own: it works from anywhere, and every extra is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_missing_extras import HELP_OF_ALL, commands
from tests.docs.test_readme import ROOT
from tests.patience import SPARK_PATIENCE_S

from holdfast.operate.cli import cli

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
} | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}

# Ports of its own: whether those of the defaults are free is asked by `up --check`.
GATEWAY = """\
admin: {listen: "127.0.0.1:0"}
nodes:
  in: {kind: receiver, type: openlineage, config: {listen: "127.0.0.1:0"}, to: [shown]}
  shown: {kind: exporter, type: console}
"""
# One call of each group that an extra is for.
CALLS = {
    "": [["quiver", "ls", "."], ["doctor"], ["explain", "0", "."]],
    "gateway": [["validate", "gateway.yaml"], ["components"], ["up", "--check", "gateway.yaml"]],
    "otel": [["components", "otlp"], ["validate", "gateway.yaml"]],
    "bucket": [["doctor"]],
    "kafka": [["components", "kafka"]],
    "store": [
        ["store", "create", "--store", "kept"],
        ["files", "put", "a/b", "gateway.yaml", "--store", "kept"],
        ["gc", "plan", "--store", "kept"],
    ],
    "query": [["quiver", "sql", ".", "select 1"]],
    "spark": [["dataflow", "--help"], ["components"]],
}


def run(*words: str | Path, cwd: Path, given: str | None = None) -> str:
    told = subprocess.run(
        words,
        cwd=cwd,
        env=ENVIRONMENT,
        input=given,
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in told.stderr, told.stderr
    assert told.returncode == 0, f"{words}: {told.stderr[-2000:]}{told.stdout[-2000:]}"
    return told.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "venv", folder / "builder", cwd=folder)
    python = folder / "builder" / "bin" / "python"
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT), cwd=folder)
    (built,) = folder.glob("holdfast-*.whl")
    return built


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", CALLS)
def test_the_wheel_works_in_an_empty_environment(wheel: Path, extra: str, tmp_path: Path) -> None:
    venv, empty = tmp_path / "venv", tmp_path / "somewhere"
    empty.mkdir()
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    what = f"holdfast[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", what, cwd=empty)
    wanted = json.dumps(list(commands(cli)))
    assert json.loads(run(python, "-c", HELP_OF_ALL, cwd=empty, given=wanted)) == []
    make = "from holdfast import Quiver; Quiver.open('.').append_raw(b'x')"
    run(python, "-c", make, cwd=empty)
    (empty / "gateway.yaml").write_text(GATEWAY)
    for words in CALLS[extra]:
        run(venv / "bin" / "holdfast", *words, cwd=empty)
