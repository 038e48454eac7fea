"""Real gateways, one of which is killed with accepted, unread events while the other one flows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import START, at
from tests.dataflow.test_stream_reader import wait_for
from tests.gateway.processes import Gateway
from tests.patience import until_spark
from tests.ports import free_port

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.source.notes import read_explanations
from holdfast.dataflow.source.quiver_location import connect
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import BadInput
from holdfast.remote import RemoteQuiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class LineageGateway(Gateway):
    """A `holdfast up` that takes lineage events, and serves them to a pipeline."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.flight_port = free_port()
        nodes: dict[str, Any] = {
            "lineage": {"to": ["buffer"]},
            "buffer": {"kind": "processor", "type": "quiver", "to": ["archive"]},
            "archive": {"kind": "exporter", "type": "files", "config": {"directory": "archive"}},
        }
        super().__init__(folder, nodes, flight={"listen": f"127.0.0.1:{self.flight_port}"})
        self.start()

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.flight_port}/buffer"

    def register(self, subscriber: str) -> None:
        """Have events kept for somebody who comes later."""
        location, _, name = self.address.rpartition("/")
        with RemoteQuiver.open(location, name) as quiver:
            quiver.cursor(subscriber).close()

    def accept(self, *seconds: float, job: str = "orders") -> None:
        """Post events; each is answered when it is durable."""
        for second in seconds:
            moment = START + timedelta(seconds=second)
            event = {
                "eventTime": moment.isoformat(),
                "eventType": "START",
                "run": {"runId": "01941f29-7c00-7a7d-b000-000000000000"},
                "job": {"namespace": "shop", "name": job},
                "producer": "https://example.org/tests",
                "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
            }
            status, _, answer = self.post(json.dumps(event).encode())
            assert status in (200, 201), answer


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[tuple[LineageGateway, LineageGateway]]:
    connect.cache_clear()
    started: list[LineageGateway] = []
    try:
        started.extend(LineageGateway(tmp_path / name) for name in ("one", "two"))
        yield started[0], started[1]
    finally:
        for gateway in started:
            gateway.kill()


def seconds(rows: pa.Table) -> list[float]:
    events = rows.filter(pa.compute.invert(rows.column("_control")))
    found = events.column("_event_time").to_pylist()
    return sorted((moment - START).total_seconds() for moment in found)


def test_a_gateway_killed_with_unread_events_holds_the_watermark_until_it_is_back(
    gateways: tuple[LineageGateway, LineageGateway], tmp_path: Path
) -> None:
    one, two = gateways
    for gateway in gateways:
        gateway.register("stats")
    one.accept(10.0)
    two.accept(12.0)
    options = {"watermark": True, "max_delay": "5s", "idle_after": "1h", "slot": "openlineage"}
    options |= {"quiver": f"{one.address},{two.address}", "call_timeout": "2s"}
    driver = wait_for(lambda: started(tmp_path / "checkpoint", options))
    read: list[float] = []
    while len(read) < 2:
        read += seconds(wait_for(driver.next))
    two.accept(13.0)
    two.kill()
    for step in range(20, 200, 20):
        one.accept(float(step))
        rows = wait_for(driver.next)
        assert seconds(rows) == [step]
        # Nothing of the one that is gone can be older than its newest event, less the delay.
        assert rows.column("_wm")[0].as_py() <= at(13)
    claim = driver.reader.planner.claim
    assert claim is not None
    assert f"by {two.address}: does not answer since" in claim.explain()
    assert two.address in read_explanations(str(tmp_path / "checkpoint"))["stats"]["explanation"]
    two.start()
    rows = wait_for(driver.next)
    assert seconds(rows) == [13.0]
    assert rows.column("_wm_prev")[0].as_py() <= at(13)  # in force while it is read: in time
    two.accept(300.0)
    assert seconds(wait_for(driver.next)) == [300.0]
    one.accept(300.0)
    rows = wait_for(driver.next)
    assert rows.column("_wm")[0].as_py() == at(295)
    driver.stop()


def started(checkpoint: Path, options: dict[str, Any]) -> Driver | None:
    """Return a driver, when both gateways have something sealed."""
    try:
        return Driver("", checkpoint, **options)
    except BadInput:
        return None


def test_a_pipeline_waits_for_a_killed_gateway_and_nothing_is_late(
    gateways: tuple[LineageGateway, LineageGateway], spark: SparkSession, tmp_path: Path
) -> None:
    one, two = gateways
    pipeline = (
        Pipeline(max_delay="5s", idle_after="1h", shuffle_partitions=1)
        .source("events", quiver=[one.address, two.address], decode="openlineage")
        .window(fixed="10s")
        .aggregate("tens", n="count(*)", late="side_output")
        .sink(name="out", files="out")
        .after("tens", "late")
        .sink(name="late", files="late")
        .settings
    )
    for gateway in gateways:
        gateway.register("stats.events")
    one.accept(1.0)
    two.accept(2.0)
    places = Places(tmp_path / "state", tmp_path)
    with PipelineRun("stats", pipeline, places, spark) as run:
        run.start()
        until_spark(lambda: run.statistics()[0].rows_total >= 2, "the first rows")
        two.accept(3.0, 4.0)
        two.kill()
        one.accept(*(float(second) for second in range(10, 100)))
        until_spark(lambda: run.statistics()[0].rows_total >= 92, "rows of the one that lives")
        assert windows(tmp_path / "out") == {}
        two.start()
        two.accept(100.0)
        one.accept(100.0)
        until_spark(lambda: len(windows(tmp_path / "out")) == 9, "nine windows")
    assert windows(tmp_path / "out") == {0: 4, **dict.fromkeys(range(10, 90, 10), 10)}
    assert list((tmp_path / "late").glob("part-*")) == []


def windows(folder: Path) -> dict[int, int]:
    found = [row for path in folder.glob("part-*") for row in pq.read_table(path).to_pylist()]
    return {int((row["window_start"] - START).total_seconds()): row["n"] for row in found}
