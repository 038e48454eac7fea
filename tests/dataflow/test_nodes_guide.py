"""The guide to data nodes, run: a node dies, events come, it catches up, Spark reads both.

Its marks are those of the guide to protected lineage: see tests/docs/test_openlineage_guide.py.
What is marked `spark` is run with a session when everything else was typed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.docs.test_guide import ROOT
from tests.docs.test_openlineage_guide import blocks, script_of
from tests.patience import PATIENCE_S, until
from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = ROOT / "docs" / "guide" / "nodes.md"
# Typed last: it keeps everything running until the test has read.
DONE = "=== all is typed ==="


@contextlib.contextmanager
def typed(folder: Path, scripts: list[str]) -> Iterator[str]:
    """Type scripts into one shell; give what they printed, while what they started runs."""
    script, output = folder / "typed.sh", folder / "typed.out"
    script.write_text(f"set -e\n{''.join(scripts)}echo '{DONE}'\nsleep infinity\n")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "200"}
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        try:
            until(
                lambda: DONE in output.read_text() or shell.poll() is not None,
                "the end of the guide",
                lambda: "".join(p.read_text() for p in [output, *folder.glob("*.log")]),
                patience_s=3 * PATIENCE_S,
            )
            yield output.read_text()
        finally:
            # The nodes, the gateway, and the processes that read for the nodes.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_guide_to_data_nodes_is_true(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = {port: str(free_port()) for port in ("5000", "8816", "8817")}

    def here(text: str) -> str:
        return re.sub(r"127\.0\.0\.1:(5000|881[67])", lambda m: f"127.0.0.1:{ports[m[1]]}", text)

    found = list(blocks(GUIDE))
    (graph,) = [block for block in found if block.mark == "file: gateway.yaml"]
    admin = f"admin: {{listen: 127.0.0.1:{free_port()}}}\n"
    (tmp_path / "gateway.yaml").write_text(here(graph.text) + admin)
    steps = [block for block in found if block.mark == "run"]
    scripts = [script_of(here(block.text), [here(wait) for wait in block.waits]) for block in steps]
    (reading,) = [place for place, block in enumerate(found) if block.mark == "spark"]
    with typed(tmp_path, scripts) as output:
        assert output.endswith(f"{DONE}\n"), output
        for block in steps:
            assert [text for text in block.shows if text not in output] == []
        exec(compile(here(found[reading].text), GUIDE.name, "exec"), {"spark": spark})
    assert capsys.readouterr().out == found[reading + 1].text
