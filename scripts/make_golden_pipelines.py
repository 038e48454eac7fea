"""Write golden state directories of pipelines: what this version leaves when it is stopped.

    python scripts/make_golden_pipelines.py tests/dataflow/golden/v1

One archive for each shape of tests/dataflow/golden/shapes.py: the quiver or folder that it reads,
what its sinks have so far, and its state directory, with windows that are open.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.dataflow.golden.functions import DOWN
from tests.dataflow.golden.shapes import BEFORE, SHAPES, feed, pipeline

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import start_session, stop_session
from holdfast.dataflow.spec import PipelineSettings


def main(target: Path) -> None:
    """Write all of them."""
    os.environ[DOWN] = "1"
    target.mkdir(parents=True, exist_ok=True)
    session = start_session("local[2]")
    with tempfile.TemporaryDirectory() as temporary:
        for name in SHAPES:
            folder = Path(temporary, name)
            folder.mkdir()
            feed(folder, name, BEFORE)
            settings = PipelineSettings.model_validate(pipeline(name))
            places = Places(folder / "state", folder)
            with PipelineRun("golden", settings, places, session) as run:
                run.drain()
            with tarfile.open(target / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(folder, arcname=".", filter=_anonymous)
    stop_session(session)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out who wrote it, and what only a process that runs needs."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if member.name.endswith("/lock") else member


if __name__ == "__main__":
    main(Path(sys.argv[1]))
