"""A driver process whose pipeline commits to a store, and which dies between layer and commit.

Run as `python -m tests.dataflow.filesets.dying ROOT MOMENT`: drains the quiver in ROOT into the
store in ROOT, and kills its whole session in the second batch: when the layer of the batch is
stored and nothing refers to it ("layer"), or when the commit's row is there and its object is not
("row").
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.dataflow.crashing import drain

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.session import start_session
from holdfast.dataflow.spec.builder import Pipeline
from holdfast.prove.sessions import end_session
from holdfast.store.filesets import Commits
from holdfast.store.gc.references import References

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENTS = {"layer": (Commits, "create"), "row": (References, "confirm_commit")}
BATCH = 1
# A file in ROOT.
REACHED = "reached"


def run(root: Path, spark: SparkSession) -> None:
    """Drain the quiver into files and into the store, ten rows a batch."""
    pipeline = (
        Pipeline()
        .source(
            "events",
            quiver="quiver",
            quiver_config="tests.dataflow.quivers:CONFIG",
            read_limit={"rows": 10},
        )
        .map(select={"number": "number"}, name="numbers")
        .sink(fileset={"store": "store", "commit": "out"}, name="kept")
        .after("numbers")
        .sink(files="files", name="files")
    )
    drain("keep", pipeline.settings, Places(root / "state", root), spark, close=False)


def trap(root: Path, moment: str) -> None:
    """Kill this session when it comes to the moment in its second batch; say first that it did."""
    owner, name = MOMENTS[moment]
    calls: list[int] = []
    before = getattr(owner, name)

    def dying(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) > BATCH:
            (root / REACHED).touch()
            end_session(os.getsid(0))
        return before(*arguments, **named)

    setattr(owner, name, dying)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trap(folder, sys.argv[2])
    run(folder, start_session("local[2]", {"spark.local.dir": str(folder / "spark")}))
