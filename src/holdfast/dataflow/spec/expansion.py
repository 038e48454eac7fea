"""Reduces by a function as two vertices: one that keeps the rows of a window, one that calls.

    sums  ──▶  sums~python        the second has the results, and the rows that failed

So everything that is true of maps in Python (runs, retries, rows that are set aside) is true of
them too, and everything that is true of reduces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.dataflow.spec.edges import FAILED, MAIN, Edge
from holdfast.dataflow.spec.functions import load_function
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.dataflow.spec.vertices import FlatMapSettings, ReduceSettings, VertexSettings

SUFFIX = "~python"
# The column in which the rows of a window wait.
ROWS = "rows"
WINDOW_COLUMNS = ("window_start", "window_end")


def written_name(vertex: str) -> str:
    """Return the name that a vertex has in the pipeline as it was written."""
    return vertex.removesuffix(SUFFIX)


class Reducer:
    """Calls a function with a window and its rows; made in the driver, called in workers."""

    def __init__(self, function: str | Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, row: dict[str, Any]) -> list[Any]:
        """Return the results of one window."""
        rows = sorted(row.pop(ROWS), key=lambda one: one["_event_time"])
        found = load_function(self._function)(row, rows)
        if found is None:
            return []
        return [found] if isinstance(found, dict) else list(found)


def expanded(pipeline: PipelineSettings) -> PipelineSettings:
    """Return a pipeline whose reduces all are native, with the same results."""
    called = {
        name: vertex.reduce
        for name, vertex in pipeline.vertices.items()
        if vertex.reduce is not None and vertex.reduce.python is not None
    }
    if not called:
        return pipeline
    vertices: dict[str, VertexSettings] = {}
    for name, vertex in pipeline.vertices.items():
        vertices[name] = vertex
        if name in called:
            vertices[name + SUFFIX] = VertexSettings(flat_map=_calling(called[name]))
    edges = [_moved(edge, called) for edge in pipeline.edges]
    edges += [Edge.model_validate({"from": name, "to": name + SUFFIX}) for name in called]
    return pipeline.model_copy(update={"vertices": vertices, "edges": edges})


def _calling(reduce: ReduceSettings) -> FlatMapSettings:
    assert reduce.python is not None, "BUG: a reduce without a function"
    return FlatMapSettings(
        python=Reducer(reduce.python),
        returns=reduce.returns,
        keep=[*WINDOW_COLUMNS, *reduce.key],
        timeout=reduce.timeout,
        retry=reduce.retry,
        on_failure=reduce.on_failure,
    )


def _moved(edge: Edge, called: dict[str, ReduceSettings]) -> Edge:
    if edge.vertex not in called or edge.port not in (MAIN, FAILED):
        return edge
    port = f".{edge.port}" if edge.port else ""
    return edge.model_copy(update={"source": f"{edge.vertex}{SUFFIX}{port}"})
