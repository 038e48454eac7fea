"""Whether all hosts of a cluster see the folders that a pipeline names as plain paths.

The state directory (checkpoints, and what tasks stage there), the folders of `files` sinks and the
data directories that sources read are opened by executors, too. On another host such a path leads
to nothing, or to something else: rows would be lost there, or a batch would fail for ever. So a run
on a cluster begins with a question to the executors that are there: do you find in each folder what
I have put there? One that joins later is not asked; what it cannot open, its tasks say.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import Plan
from holdfast.dataflow.driver.failures import reason_of
from holdfast.dataflow.spec.vertices import SinkSettings, TargetSettings
from holdfast.errors import BadConfig, PipelineFailed
from holdfast.local_path import problem_of
from holdfast.quiver.base.names import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tasks for each core that Spark knows of: they are short, and each executor should get one.
TASKS_PER_CORE = 4


def refuse_address(state_dir: Path) -> None:
    """Raise if the state directory is an address of an object store; sinks refuse theirs."""
    problem = problem_of(state_dir)
    if problem is not None:
        raise BadConfig(
            f"the state directory is an address: {problem}",
            hint="checkpoints are synced and renamed: mount storage that can do that on all hosts",
            path=str(state_dir),
        )


def check_shared(session: SparkSession, plan: Plan, places: Places) -> None:
    """Raise if an executor does not see a folder of the pipeline as the driver does."""
    context = session.sparkContext
    if str(context.master).startswith("local"):
        return
    with ExitStack() as marked:
        marks = dict(_marks(plan, places, marked))
        tasks = TASKS_PER_CORE * max(1, context.defaultParallelism)
        asked = context.parallelize(range(tasks), tasks)
        try:
            missing = asked.map(lambda _: (socket.gethostname(), unseen(marks))).collect()
        except Py4JJavaError as error:
            raise PipelineFailed(
                f"the executors cannot be asked what they see: {reason_of(error)}",
                hint="is Holdfast installed for their Python (`spark.pyspark.python`)?",
            ) from error
    for host, folders in missing:
        if folders:
            raise not_shared(host, folders)


def unseen(marks: Mapping[str, bytes]) -> list[str]:
    """Return the folders of those files that are not here as they are there."""
    return [os.path.dirname(path) for path, content in marks.items() if _read(path) != content]


def not_shared(host: str, folders: list[str]) -> BadConfig:
    """Return the error for folders that a host has not, or not the same."""
    return BadConfig(
        f"{host} does not see {', '.join(folders)} as the driver does",
        hint="the state directory and the folders of files sinks have to be on storage that all "
        "hosts mount at the same place; quivers can be read over Flight (grpc://host:port/name)",
        path=folders[0],
    )


def _marks(plan: Plan, places: Places, marked: ExitStack) -> Iterator[tuple[str, bytes]]:
    """Yield files that are in the folders now, and what is in them."""
    name, content = f"driver-{uuid.uuid4().hex}", os.urandom(16)
    own = [places.base_dir / one.files / "_holdfast" for _, one in _targets(plan) if one.files]
    for folder in dict.fromkeys((places.state_dir, *own)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        marked.callback((folder / name).unlink, missing_ok=True)
        yield str(folder / name), content
    for vertex in plan.pipeline.vertices.values():
        for quiver in () if vertex.source is None else vertex.source.quiver:
            for path in places.quiver(quiver).get("path", "").split(","):
                if path and (text := _read(str(Path(path) / FORMAT))) is not None:
                    yield str(Path(path) / FORMAT), text


def _targets(plan: Plan) -> Iterator[tuple[str, TargetSettings]]:
    for name, vertex in plan.pipeline.vertices.items():
        sink: SinkSettings | None = vertex.sink
        if sink is not None:
            further = (sink.fallback, sink.on_success)
            yield from ((name, one) for one in (sink, *further) if one is not None)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
