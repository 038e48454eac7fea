"""examples/lineage_stats.yaml: beside a gateway that is killed, over what one left; its tests."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import yaml
from tests.dataflow.beside import Beside, lineage
from tests.dataflow.quivers import START
from tests.patience import until_spark

from holdfast.dataflow.compiler.places import LINEAGE_CONFIG, OWN_PRODUCER, SINK_CONFIG, Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.kit import CasesFile, run_case
from holdfast.errors import DirectoryLocked
from holdfast.graph.document import Substitution, read_document
from holdfast.graph.pipelines import load_pipelines
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_counts_everything_though_its_gateway_is_killed(tmp_path: Path) -> None:
    """The test of the short suite that goes the whole way: HTTP, quiver, Flight, Spark, files."""
    tree = yaml.safe_load((EXAMPLES / "lineage_stats.yaml").read_text())
    with Beside(tmp_path, tree) as gateway:
        gateway.start()
        sent = gateway.post(*both_kinds("orders", 20))
        until_spark(lambda: gateway.metric(LAG, READER) == 0, "the first batch", gateway.log)
        gateway.kill()
        until_spark(lambda: not gateway.processes(), "the end of its driver", gateway.log)
        gateway.start()
        sent += gateway.post(*both_kinds("orders", 15), *both_kinds("stock", 5))
        ended = drained(gateway)
        assert ended.returncode == 0, ended.stderr + gateway.log()
        rows = gateway.rows("lineage_stats")
        runs = Counter(dict.fromkeys(("orders", "stock"), 0))
        for row in rows:
            runs[row["job"]] += row["runs"]
        assert {row["namespace"] for row in rows} == {"shop"}, "the pipeline counted itself"
        assert runs == {"orders": 35, "stock": 5}
        assert sum(row["failed"] for row in rows) == 40 // 5
        # Beside what was sent, the gateway took what the pipeline tells of its runs.
        assert gateway.metric("quiver_ingest_accepted_events_total", 'quiver="buffer"') >= sent + 2
        gateway.stop()
    with Quiver.open(tmp_path / "holdfast_data" / "buffer" / "core-00", LINEAGE_CONFIG) as quiver:
        payloads = quiver.scan(slot="openlineage").read_all()["payload"].to_pylist()
        told = [json.loads(payload) for payload in payloads]
    own = [e["eventType"] for e in told if e["producer"] == OWN_PRODUCER]
    assert own[0] == "START"


LAG, READER = "quiver_subscriber_lag_events", 'subscriber="lineage-stats.events"'


def both_kinds(job: str, runs: int) -> list[dict[str, Any]]:
    """Return the start and the end of some runs; every fifth fails."""
    ends = ["FAIL" if n % 5 == 0 else "COMPLETE" for n in range(runs)]
    return [lineage(job, kind) for end in ends for kind in ("START", end)]


def drained(gateway: Beside) -> subprocess.CompletedProcess[str]:
    """Drain and close: by the driver if it runs by now, else here, where it is then refused."""
    until_spark(
        lambda: gateway.metric("pipeline_run_state", 'state="running"') == 1, "running", gateway.log
    )
    return gateway.holdfast("dataflow", "drain", str(gateway.config), "--close", "--json")


@pytest.mark.slow
def test_the_example_counts_what_a_receiver_stored(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lineage_stats.yaml").write_text((EXAMPLES / "lineage_stats.yaml").read_text())
    loaded = load_pipelines(tmp_path / "lineage_stats.yaml")
    buffer = tmp_path / "holdfast_data" / "buffer" / "core-00"
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


@pytest.mark.slow
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
