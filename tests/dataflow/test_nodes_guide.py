"""The guide to data nodes, run: a node dies, events come, it catches up, Spark reads both.

Besides the marks of every guide that is run (tests/support/guide.py): what is marked `spark` is run
with a session when everything else was typed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.docs.test_guide import ROOT
from tests.ports import free_port
from tests.support.guide import blocks, logs_in, typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = ROOT / "docs" / "guide" / "nodes.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide sends events with curl")
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
    (reading,) = [place for place, block in enumerate(found) if block.mark == "spark"]
    with typed(tmp_path, [here(block.script()) for block in steps]) as outputs:
        assert len(outputs) == len(steps), logs_in(tmp_path)
        for block, output in zip(steps, outputs, strict=True):
            assert [text for text in block.shows if text not in output] == []
        exec(compile(here(found[reading].text), GUIDE.name, "exec"), {"spark": spark})
    assert capsys.readouterr().out == found[reading + 1].text
