"""examples/lineage_stats.yaml over what a receiver stores, from file to files."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import START

from holdfast.dataflow.compiler.places import LINEAGE_CONFIG, SINK_CONFIG, Places
from holdfast.dataflow.kit.cases import CasesFile, run_case
from holdfast.dataflow.run import PipelineRun
from holdfast.dataflow.state_dir import StateDir
from holdfast.errors import DirectoryLocked
from holdfast.graph.document import read_document
from holdfast.graph.pipelines import load_pipelines
from holdfast.graph.substitution import Substitution
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def event(seconds: float, job: str, kind: str) -> bytes:
    moment = START + timedelta(seconds=seconds)
    return json.dumps(
        {
            "eventTime": moment.isoformat(),
            "eventType": kind,
            "run": {"runId": f"{job}-{seconds}"},
            "job": {"namespace": "shop", "name": job},
            "producer": "https://example.org/tests",
        }
    ).encode()


def test_the_example_counts_what_a_receiver_stored(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lineage_stats.yaml").write_text((EXAMPLES / "lineage_stats.yaml").read_text())
    loaded = load_pipelines(tmp_path / "lineage_stats.yaml")
    buffer = tmp_path / "holdfast_data" / "buffer"
    with Quiver.open(buffer, LINEAGE_CONFIG) as quiver:
        for minute in range(3):
            start = 60 * minute
            kinds = ["START", "COMPLETE", "START", "FAIL"]
            payloads = [event(start + n, "orders", kind) for n, kind in enumerate(kinds)]
            quiver.append_raw(payloads, slot="openlineage")
    places = Places(tmp_path / "state", loaded.base_dir, loaded.quivers)
    pipeline = loaded.pipelines["lineage-stats"]
    with PipelineRun("lineage-stats", pipeline, places, spark) as run:
        with pytest.raises(DirectoryLocked, match="another driver"):
            PipelineRun("lineage-stats", pipeline, places, spark)
        assert StateDir(places.state_dir).ask_to_drain(close=True)
        run.drain(close=True)
    tables = [pq.read_table(path) for path in (tmp_path / "lineage_stats").glob("*.parquet")]
    rows = Counter(
        (row["window_start"] - START, row["namespace"], row["job"], row["runs"], row["failed"])
        for table in tables
        for row in table.to_pylist()
    )
    assert rows == {(timedelta(minutes=n), "shop", "orders", 2, 1): 1 for n in range(3)}
    assert not StateDir(places.state_dir).ask_to_drain(close=True)
    (told,) = run.statistics()
    assert (told.rows_total > 0, told.is_running, dict(told.counts)["written.stats"]) == (
        True,
        False,
        3,
    )


def test_the_example_s_own_tests_pass_and_can_fail(spark: SparkSession, tmp_path: Path) -> None:
    path = EXAMPLES / "lineage_stats_tests.yaml"
    document = read_document(path, Substitution({}, path.parent))
    cases = CasesFile.model_validate(document.value).tests
    pipelines = load_pipelines(EXAMPLES / "lineage_stats.yaml").pipelines
    for number, (name, case) in enumerate(cases.items()):
        assert run_case(name, case, pipelines, tmp_path / str(number), spark).wrong == ()
    name, case = next(iter(cases.items()))
    other = case.model_copy(update={"expect": {"stats": [{"runs": 7}]}, "counts": {"late.x": 2}})
    wrong = run_case(name, other, pipelines, tmp_path / "other", spark).wrong
    assert "stats lacks {runs: 7}" in wrong
    assert "late.x is 0, not 2" in wrong
    assert SINK_CONFIG.extractors.keys() == {"events"}
