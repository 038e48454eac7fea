"""What a query tells of its batches: every row once, whatever Spark counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import CONFIG, batch

from holdfast.dataflow.driver.failures import Restarts
from holdfast.dataflow.driver.progress import QueryProgress
from holdfast.dataflow.source.checkpoint import Checkpoint, Offset
from holdfast.quiver import Quiver


class Query:
    """A query that has reported some batches."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.recentProgress = list(reports)
        self.isActive = True

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802
        """As Spark has it."""
        last: dict[str, Any] = self.recentProgress[-1]
        return last


def source(begin: dict[str, Any] | None, end: dict[str, Any], spark_counts: int) -> dict[str, Any]:
    return {
        "startOffset": None if begin is None else json.dumps(begin),
        "endOffset": json.dumps(end),
        "numInputRows": spark_counts,
    }


def report(number: int, *sources: dict[str, Any]) -> dict[str, Any]:
    return {
        "batchId": number, "timestamp": str(number), "durationMs": {"addBatch": 1},
        "batchDuration": 500, "sources": list(sources), "stateOperators": [],
        "observedMetrics": {}, "eventTime": {},
    }  # fmt: skip


def progress_of(*reports: dict[str, Any]) -> QueryProgress:
    query: Any = Query(*reports)
    made = QueryProgress("q", query, None, lambda: query, Restarts(1), Checkpoint("none"))
    made.look()
    return made


def at(rows: int) -> dict[str, Any]:
    return Offset("q", {"quiver": rows}, rows=rows).to_fields()


def test_rows_count_once_however_many_branches_read_them() -> None:
    told = progress_of(report(0, source(None, at(50), 153)), report(1, source(at(50), at(60), 33)))
    assert told.rows_total == 60
    assert told.statistics().rows_per_s == 20.0


def test_a_batch_that_only_moves_the_watermark_has_no_rows() -> None:
    told = progress_of(report(0, source(at(50), at(50), 1)))
    assert (told.rows_total, told.statistics().rows_per_s) == (0, 0.0)


def test_offsets_of_the_version_before_count_from_now_on() -> None:
    before = at(50)
    del before["rows"]
    assert Offset.from_fields(before).rows == 0
    assert progress_of(report(3, source(before, at(7), 15))).rows_total == 7


def test_a_source_of_somebody_else_is_counted_as_spark_does() -> None:
    assert progress_of(report(0, source({"logOffset": 0}, {"logOffset": 1}, 9))).rows_total == 9


@pytest.mark.parametrize("watermark", ["true", "false"])
def test_a_planned_batch_says_how_many_rows_all_batches_had(tmp_path: Path, watermark: str) -> None:
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        for numbers in ((0, 1), (2, 3), (4,)):
            quiver.append(batch([(float(n), "k", n) for n in numbers]))
            quiver.flush()
    driver = Driver(str(tmp_path / "q"), tmp_path / "c", watermark=watermark)
    counted = []
    while driver.next(max_rows=2) is not None:
        counted.append(driver.offset()["rows"])
    driver.stop()
    assert counted[:3] == [2, 4, 5]
    assert set(counted[3:]) <= {5}
