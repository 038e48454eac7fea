"""The named points of a batch at which a test or a proof ends a driver, with all it started.

Each is between two effects: of Spark's logs, of a sink, of a quiver's ledger. A query is several
processes (the driver, the JVM, the one that plans, the workers), and a seam cannot be handed to
those that Spark starts. So a test names a function in the environment, which all of them inherit;
without it nothing happens.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable

from holdfast.seam.points import FaultPoint

# `module:name` of a function that is called with the point and the query's checkpoint folder.
TRAP = "HOLDFAST_DATAFLOW_TRAP"

Trap = Callable[["BatchPoint", str], None]


class BatchPoint(FaultPoint):
    """One point between two effects."""

    OFFSETS = (
        "dataflow-offsets",
        "the batch's offsets are in the checkpoint, nothing of it is read yet",
    )
    WRITE = "dataflow-write", "a task has staged its rows, the sink has not published them"
    SINK_COMMIT = (
        "dataflow-sink-commit",
        "a sink has published the batch, others and the commit log do not have it",
    )
    COMMIT_LOG = "dataflow-commit-log", "the commit log may have the batch, no quiver was told"
    ACKNOWLEDGE = (
        "dataflow-acknowledge",
        "the commit log has the batch, the next quiver has not heard of it",
    )


def reached(point: BatchPoint, checkpoint: str) -> None:
    """Call the function that the environment names, if any: a query is at this point."""
    trap = _trap()
    if trap is not None:
        trap(point, checkpoint)


@functools.cache
def _trap() -> Trap | None:
    """Return the function that the environment names; it is looked up once for each process."""
    module, _, name = os.environ.get(TRAP, "").partition(":")
    if not module:
        return None
    trap: Trap = getattr(importlib.import_module(module), name)
    return trap
