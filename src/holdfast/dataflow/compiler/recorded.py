"""The plan file of a pipeline, `plan.json`: what its state is made of, under names that stay.

Spark knows nothing by name: a checkpoint belongs to a folder, a position to a line of the offset
log, a state to the number of an operator, counted from the top of the plan. What decides them must
not follow from the order of lines in a file that people edit. So it is written down when a pipeline
first runs, and later plans are made to fit it (continuation.py):

- every vertex has an *identity*, the name it had first. Subscribers, buffers, dead letters and the
  batch records of sinks go by it;
- every query has its name, its vertices, and its reduces in the order of Spark's operators.

Written before any query starts, durably, as a whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from holdfast.dataflow.base.durable_file import replace_durably
from holdfast.dataflow.spec.vertices import ReduceSettings, VertexSettings
from holdfast.errors import BadConfig
from holdfast.settings import Settings

FILE = "plan.json"
# What of a source or a sink says which place it is; the rest is how it is read or written.
_PLACES = {
    "source": {"quiver", "files", "fileset", "generator", "slot", "table", "decode"},
    "sink": {"quiver", "slot", "files", "fileset", "console", "python"},
}


class RecordedReduce(Settings):
    """What the state of a reduce is made of."""

    window: dict[str, Any] | None
    key: list[str]
    aggregate: dict[str, str]
    # Not written unless it is used: plans of earlier versions know nothing of it.
    keeps: Literal["arrow", "state"] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    # Whether it is made of partial aggregates (pushdown.py): its state says so, not the file.
    partials: bool = Field(default=False, exclude_if=lambda value: not value)

    @classmethod
    def of(cls, reduce: ReduceSettings) -> RecordedReduce:
        """Return it of a reduce in a file."""
        dumped = reduce.model_dump(mode="json", include={"window", "key", "aggregate"})
        return cls(**dumped, keeps=reduce.keeps)

    def differences(self, now: RecordedReduce) -> list[str]:
        """Return what is different; the order of keys and of columns is not."""
        ours, theirs = self._parts(), now._parts()
        return [what for what, before in ours.items() if before != theirs[what]]

    def _parts(self) -> dict[str, Any]:
        parts = {"window": self.window, "keys": sorted(self.key), "aggregates": self.aggregate}
        return {**parts, "kept rows": self.keeps}


class RecordedVertex(Settings):
    """A vertex by its identity."""

    name: str
    """Its name in the file, when that was last run."""
    kind: str
    essence: dict[str, Any] | None = None
    """What makes it the same under another name; without it only its name does."""


class RecordedQuery(Settings):
    """A query with a checkpoint."""

    name: str
    vertices: list[str]
    operators: list[str]
    """Its reduces as Spark numbers them: a state belongs to a place in this list."""
    sources: list[str]
    reads: list[str]
    writes: list[str]
    has_lane: bool
    shuffle_partitions: int | None


class RecordedPlan(Settings):
    """What a pipeline was when it was last started."""

    version: Literal[1] = 1
    vertices: dict[str, RecordedVertex]
    reduces: dict[str, RecordedReduce]
    edges: list[tuple[str, str]]
    """Output and target, by identity."""
    queries: list[RecordedQuery]

    @property
    def homes(self) -> dict[str, str]:
        """The query that each vertex belongs to."""
        return {vertex: query.name for query in self.queries for vertex in query.vertices}

    def query(self, name: str) -> RecordedQuery | None:
        """Return a query by its name."""
        return next((query for query in self.queries if query.name == name), None)

    def ranks(self) -> dict[str, int]:
        """Return the first place of each reduce among the operators of its query."""
        found: dict[str, int] = {}
        for query in self.queries:
            for place, name in enumerate(query.operators):
                found.setdefault(name, place)
        return found

    def without(self, names: set[str]) -> RecordedPlan:
        """Return the plan without some queries, and without what was only in those."""
        left = {v for query in self.queries if query.name in names for v in query.vertices}
        return self.model_copy(
            update={
                "queries": [query for query in self.queries if query.name not in names],
                "vertices": {v: one for v, one in self.vertices.items() if v not in left},
                "reduces": {v: one for v, one in self.reduces.items() if v not in left},
            }
        )


def essence_of(vertex: VertexSettings) -> dict[str, Any]:
    """Return what makes a vertex the same one, whatever it is called."""
    settings = getattr(vertex, vertex.kind)
    if vertex.reduce is not None:
        found = RecordedReduce.of(vertex.reduce)
        return {**found.model_dump(mode="json"), "key": sorted(found.key)}
    dumped: dict[str, Any] = settings.model_dump(
        mode="json", include=_PLACES.get(vertex.kind), exclude={"token", "database"}
    )
    # What plans that were recorded before know nothing of makes no difference unless it is used.
    if dumped.get("table", "") is None:
        del dumped["table"]
    return dumped


def read_record(state_dir: Path) -> RecordedPlan | None:
    """Return the plan file of a state directory; None if there is none."""
    path = state_dir / FILE
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return RecordedPlan.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise BadConfig(
            "the plan file of the pipeline cannot be read: it is damaged, or of a later version",
            hint="run the version that wrote it, or restore the file: state is known by it alone",
            path=str(path),
        ) from error


def write_record(state_dir: Path, record: RecordedPlan) -> None:
    """Write the plan file durably, if it says something new."""
    if read_record(state_dir) != record:
        replace_durably(state_dir / FILE, json.dumps(record.model_dump(mode="json"), indent=1))
