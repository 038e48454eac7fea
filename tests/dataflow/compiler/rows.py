"""Pipelines of the tests, their rows (seconds after a moment, a key, a number), and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.dataflow.quivers import START, at

from holdfast.dataflow.kit import PipelineHarness
from holdfast.dataflow.spec import Pipeline


def rows(*given: tuple[float, str, int]) -> list[dict[str, Any]]:
    """Return rows of (seconds, key, number)."""
    return [{"event_time": at(s), "key": key, "number": number} for s, key, number in given]


def seconds(moment: datetime) -> float:
    """Return how many seconds after START a moment is."""
    return (moment - START).total_seconds()


Make = Callable[[Pipeline], PipelineHarness]


def started(**watermark: Any) -> Pipeline:
    """Return a pipeline that reads a quiver, with what is given of its watermark."""
    return Pipeline(shuffle_partitions=1, **watermark).source("events", quiver="q")


def numbers(bench: PipelineHarness, sink: str) -> list[int]:
    """Return the numbers that came to a sink, sorted."""
    return sorted(row["number"] for row in bench.rows(sink))


def windows(bench: PipelineHarness, sink: str, *columns: str) -> Counter[tuple[Any, ...]]:
    """Return the results of a sink: where each window begins, and some columns."""
    return Counter(
        (seconds(row["window_start"]), *(row[name] for name in columns)) for row in bench.rows(sink)
    )
