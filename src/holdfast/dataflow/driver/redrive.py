"""Redriving: dead letters of a pipeline that does not run go back into the retry lanes of queries.

Each vertex has a reader of its own in the quiver of dead letters, so that letters of one can be
sent without those of another. A quiver deletes what all its readers have had: all readers are there
before the first one reads, and what cannot be sent is kept by a reader that never reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.dataflow.compiler.continuation import planned
from holdfast.dataflow.compiler.lane import MOVER, SCHEMA
from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.compiler.plan import Plan
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.errors import BadConfig, BadInput
from holdfast.quiver import Quiver

READER = "redrive"
KEEPER = "kept"
# Of rows that people sent.
_NO_BATCH = -1


class Redriven(NamedTuple):
    """What became of the dead letters of one vertex."""

    # They will come again.
    sent: int
    # They failed while their vertex had no retry lane: without what it takes to come again.
    left: int


def redrive_pipeline(
    name: str, pipeline: PipelineSettings, places: Places, vertex: str | None = None
) -> Mapping[str, Redriven]:
    """Let dead letters come again when the pipeline runs next; of one vertex, or of all."""
    plan = planned(name, pipeline, places.state_dir)
    wanted = _wanted(pipeline, vertex)
    state = StateDir(places.state_dir)
    if state.is_closed:
        raise BadConfig(
            "the pipeline was closed: nothing is read any more",
            hint="its dead letters can be looked at with `holdfast quiver`",
            path=str(places.state_dir),
        )
    with state.lock():
        return {one: _redriven(plan, places, plan.identity_of(one)) for one in wanted}


def _wanted(pipeline: PipelineSettings, vertex: str | None) -> list[str]:
    """Return the vertices whose letters are to be sent; raises if there is no lane for them."""
    lanes = _with_lanes(pipeline, pipeline.vertices)
    known = f"{', '.join(lanes)} have one" if lanes else "none of its vertices has one"
    if vertex is not None and vertex not in pipeline.vertices:
        raise BadInput(f"the pipeline has no vertex {vertex!r}", hint=f"retry lanes: {known}")
    if (vertex is not None and vertex not in lanes) or not lanes:
        raise BadConfig(
            f"{vertex or 'the pipeline'} has no retry lane, from which rows could come again",
            hint=f"give a vertex that calls a function a `retry_lane`; {known}",
        )
    return lanes if vertex is None else [vertex]


def _with_lanes(pipeline: PipelineSettings, names: Iterable[str]) -> list[str]:
    return [name for name in names if pipeline.vertices[name].retry_lane is not None]


def _redriven(plan: Plan, places: Places, vertex: str) -> Redriven:
    """Send the dead letters of one vertex, from the quiver of its query into its lane."""
    query = plan.query_of(vertex)
    folder = places.dead_letters(query)
    if not folder.exists():
        return Redriven(0, 0)
    with (
        Quiver.open(folder, SINK_CONFIG) as letters,
        Quiver.open(places.lane(query, "waiting"), SINK_CONFIG) as waiting,
    ):
        return redrive(letters, waiting, vertex, _with_lanes(plan.pipeline, query.vertices))


def redrive(letters: Quiver, waiting: Quiver, vertex: str, vertices: Collection[str]) -> Redriven:
    """Put the dead letters of one of some vertices in the lane, each once, even after a crash.

    They have all attempts again, and hold no watermark: their windows have closed.
    """
    sent = left = 0
    _register(letters, *map(_reader, vertices))
    _register(waiting, MOVER)
    with letters.cursor(_reader(vertex)) as cursor:
        while (planned := cursor.plan(max_events=1, start=cursor.position)) is not None:
            for bundle in cursor.read(planned):
                rows = bundle.slots[SLOT].to_pylist() if SLOT in bundle.slots else []
                mine = [row for row in rows if row["vertex"] == vertex]
                again = [
                    _first_try(row, f"again.{bundle.seq}.{place}")
                    for place, row in enumerate(rows)
                    if row["vertex"] == vertex and row.get("payload") is not None
                ]
                if again:
                    batch = pa.RecordBatch.from_pylist(again, SCHEMA)
                    waiting.append({SLOT: batch}, producer=_reader(vertex), epoch=bundle.seq + 1)
                if len(mine) > len(again) or any(row["vertex"] not in vertices for row in rows):
                    _register(letters, KEEPER)
                sent, left = sent + len(again), left + len(mine) - len(again)
            cursor.commit(planned)
    return Redriven(sent, left)


def _register(quiver: Quiver, *names: str) -> None:
    """Register readers that a quiver does not know yet; it keeps what they have not read."""
    for name in {*names} - {*quiver.subscribers()}:
        quiver.register(name)


def _reader(vertex: str) -> str:
    return f"{READER}.{vertex}"


def _first_try(letter: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a dead letter as a row of the lane that is due now and has all its attempts again.

    It belongs to no batch, and failed at no time: so it neither holds a watermark nor is taken for
    a row that a batch has put there already.
    """
    return {
        "id": name,
        "vertex": letter["vertex"],
        "tries": 1,
        "attempts": letter["attempts"],
        "failed_us": 0,
        "due_us": 0,
        "row": letter["payload"],
        "batch": _NO_BATCH,
        EVENT_TIME: letter[EVENT_TIME],
    }
