"""docs/first-ten-minutes.md runs as it is printed; only the ports are others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import SPARK_PATIENCE_S
from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "first-ten-minutes.md"
# With job control, as in a terminal: the page speaks of %1.
HEAD = "set -em\ntrap 'kill -9 $(jobs -p) 2>/dev/null; true' EXIT\n"
_BLOCK = re.compile(r"(<!-- not run.*?-->\n)?```sh\n(.*?)```", re.DOTALL)


def script(ports: dict[str, int]) -> str:
    """Return all commands of the page, at these ports."""
    text = "".join(block for skipped, block in _BLOCK.findall(PAGE.read_text()) if not skipped)
    changes = " ".join(f"-e s/127.0.0.1:{old}/127.0.0.1:{new}/" for old, new in ports.items())
    text = text.replace("holdfast init\n", f"holdfast init\nsed -i {changes} holdfast.yaml\n")
    return text.replace("holdfast send", f"holdfast send --to http://127.0.0.1:{ports['5000']}")


@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path: Path) -> None:
    ports = {old: free_port() for old in ("5000", "5001", "8480")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = subprocess.run(
        [
            "bash",
            "-c",
            f"set -em\ntrap 'kill -9 $(jobs -p) 2>/dev/null; true' EXIT\n{script(ports)}",
        ],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr + told.stdout
    assert "3 requests accepted, 0 refused" in told.stdout
    assert "Nothing was lost; 3 deliveries still to come." in told.stdout
