"""A driver on a machine that is too busy: processes that plan come up too late, the first times.

Run as `python -m tests.dataflow.late_worker ROOT`, over the quiver in ROOT/q. The first of them is
late in the first pipeline, which is drained; all are in the second, which gives up. What came of
both is printed as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver import session as sessions
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import worker_environment
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import PipelineFailed

ATTEMPTS = 2
# Spark waits ten seconds for such a process; one that is late ends by itself later.
PYTHON = """#!/bin/sh
case "$*" in
  *python_streaming_source_runner*)
    if [ "$(ls {late} | wc -l)" -lt "$(cat {how_many})" ]; then
      touch "{late}/$$"
      sleep 15
      exit 1
    fi;;
esac
exec {python} "$@"
"""


def main(root: Path) -> None:
    late, how_many, python = (root / name for name in ("late", "how_many", "python"))
    late.mkdir()
    python.write_text(PYTHON.format(late=late, how_many=how_many, python=sys.executable))
    python.chmod(0o755)
    launched = {**worker_environment(), "HOLDFAST_PYTHON": str(python)}
    sessions.worker_environment = lambda: launched
    session = sessions.start_session("local[1]", {"spark.local.dir": str(root / "spark")})
    pipeline = (
        Pipeline(worker_attempts=ATTEMPTS)
        .source(
            "events",
            quiver="q",
            quiver_config="tests.dataflow.quivers:CONFIG",
            columns_are="key string, number bigint",
        )
        .filter("number > 0")
        .sink(name="out", files="out")
        .settings
    )
    how_many.write_text("1")
    with PipelineRun("one", pipeline, Places(root / "one", root), session) as run:
        run.drain()
    told: dict[str, object] = {"rows": run.statistics()[0].rows_total}
    told["queries"] = len(run.statistics())
    told["late"] = len(list(late.iterdir()))
    how_many.write_text("1000")
    try:
        with PipelineRun("two", pipeline, Places(root / "two", root), session) as run:
            run.drain()
    except PipelineFailed as error:
        told |= {"error": error.message, "hint": error.hint}
    told["late_again"] = len(list(late.iterdir()))
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
