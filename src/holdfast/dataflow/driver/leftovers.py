"""What a pipeline has on disk that an edited file has no use for: rows that nobody would read.

A retry lane that was taken away may have rows in it, and so may a quiver between two queries that
are one now, or gone. They are looked at before anything starts: rows are never left behind without
a word. A batch that was begun is finished by the same sinks and the same sources.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.compiler.plan import Output, Plan
from holdfast.dataflow.compiler.recorded import RecordedPlan, RecordedQuery
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.quiver import Quiver

log = logging.getLogger("holdfast.dataflow")


def leftovers(plan: Plan, recorded: RecordedPlan, places: Places) -> Iterator[str]:
    """Yield what would be left behind."""
    written = {str(output) for query in plan.queries for output in query.writes}
    for query in recorded.queries:
        now = next((one for one in plan.queries if one.name == query.name), None)
        folder = places.state_dir / query.name
        if query.has_lane and (now is None or not now.has_lane):
            rows = sum(_unread(folder / "lane" / part) for part in ("waiting", "due"))
            if rows:
                yield f"{rows} rows wait in the retry lane of {query.name}, which is gone"
        for output in query.writes:
            if output not in written and (rows := _unread(_buffer(places, output))):
                yield f"{rows} rows of {output} wait for a query that is gone"
        yield from _unfinished(plan, query, folder)


def _unfinished(plan: Plan, query: RecordedQuery, folder: Path) -> Iterator[str]:
    """Yield what would end a batch in another way than it was begun."""
    gone = [name for name in query.sources if name not in plan.pipeline.vertices]
    for name in gone:
        log.warning(
            "%s is gone from the file; what it did not read stays in its quivers, held by the "
            "subscriber %s.%s", name, plan.name, name,
        )  # fmt: skip
    checkpoint = Checkpoint(str(folder / "checkpoint"))
    if checkpoint.last_planned() == checkpoint.last_committed():
        return
    moved = [
        name
        for name in query.vertices
        if name in plan.pipeline.vertices
        and plan.pipeline.vertices[name].kind == "sink"
        and plan.query_of(name).name != query.name
    ]
    if gone or moved:
        yield (
            f"a batch with {', '.join((*gone, *moved))} was begun and not finished: "
            "run it once with the file as it was"
        )


def _buffer(places: Places, output: str) -> Path:
    vertex, _, port = output.partition(".")
    return places.buffer(Output(vertex, port))


def _unread(folder: Path) -> int:
    """Return how many rows of a quiver nobody has read yet."""
    if not folder.exists():
        return 0
    with Quiver.open(folder, SINK_CONFIG) as quiver:
        pending = [quiver.balance(name).pending.events for name in quiver.subscribers()]
        return max(pending, default=0)
