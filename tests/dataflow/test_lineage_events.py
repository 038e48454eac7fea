"""What pipelines tell OpenLineage of their own runs: sound events, not too many, and no waiting."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.operate.test_drivers import QUERY
from tests.support.backend import HttpBackend

from holdfast.dataflow.compiler.places import OWN_PRODUCER, Places
from holdfast.dataflow.driver.lineage import LineageSender, RunReporter, lineage_sender
from holdfast.dataflow.driver.settings import LineageSettings
from holdfast.dataflow.spec import Pipeline
from holdfast.settings import Secret
from holdfast.signals.openlineage.validation import Validator


@pytest.fixture
def backend() -> Iterator[HttpBackend]:
    with closing(HttpBackend(status=201)) as running:
        yield running


def reporter(sender: LineageSender, folder: Path, *, every_s: float = 60.0) -> RunReporter:
    pipeline = (
        Pipeline(max_delay="1s")
        .source("events", quiver=["buffer", "grpc://far:8815/other", "./here"])
        .sink(name="out", files="out")
    )
    settings = LineageSettings(every=every_s)
    places = Places(folder / "state", folder, {"buffer": "grpc://near:1/buffer"})
    return RunReporter(settings, sender, "stats", pipeline.settings, places)


def test_a_run_is_told_from_start_to_end(backend: HttpBackend, tmp_path: Path) -> None:
    sender = LineageSender(backend.url, "secret")
    run = reporter(sender, tmp_path)
    run.started()
    for _ in range(5):
        run.running([QUERY])
    run.ended()
    run.ended()
    sender.close()
    assert [event["eventType"] for event in backend.events] == ["START", "COMPLETE"]
    assert set(backend.paths) == {"/api/v1/lineage"}
    assert {headers["Authorization"] for headers in backend.headers} == {"Bearer secret"}
    validator = Validator()
    for event in backend.events:
        _, verdict = validator.parse_and_check(json.dumps(event).encode(), thorough=True)
        assert verdict.ok, verdict
    start, end = backend.events
    assert start["run"]["runId"] == end["run"]["runId"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("holdfast", "stats")
    assert start["producer"] == OWN_PRODUCER
    assert [(one["namespace"], one["name"]) for one in start["inputs"]] == [
        ("holdfast", "buffer"),
        ("grpc://far:8815", "other"),
        ("file", str(tmp_path / "here")),
    ]
    (output,) = end["outputs"]
    assert output["name"] == str(tmp_path / "out")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 9


def test_running_is_told_now_and_then(
    backend: HttpBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("holdfast.dataflow.driver.lineage.time.monotonic", lambda: now_s[0])
    sender = LineageSender(backend.url)
    run = reporter(sender, tmp_path, every_s=10)
    run.started()
    for step_s in (1, 8, 2, 5, 4, 1):
        now_s[0] += step_s
        run.running([QUERY])
    run.ended("the query events ended: it hurts")
    sender.close()
    kinds = [event["eventType"] for event in backend.events]
    assert kinds == ["START", "RUNNING", "RUNNING", "FAIL"]
    message = backend.events[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message == "the query events ended: it hurts"


def test_a_run_that_never_started_is_not_told(backend: HttpBackend, tmp_path: Path) -> None:
    sender = LineageSender(backend.url)
    reporter(sender, tmp_path).ended("it could not start")
    sender.close()
    assert backend.events == []


def test_nobody_waits_for_one_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.pipelines"):
        sender = LineageSender("http://127.0.0.1:9/lineage")
        run = reporter(sender, tmp_path)
        for _ in range(100):
            run.started()
        sender.close()
    assert len([m for m in caplog.messages if "was not sent" in m]) == 1


def test_one_that_refuses_is_told_of_once(
    backend: HttpBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend.status = 401
    with caplog.at_level(logging.WARNING, "holdfast.pipelines"):
        sender = LineageSender(backend.url)
        run = reporter(sender, tmp_path)
        run.started()
        run.ended()
        sender.close()
    assert [m.rpartition(" ")[2] for m in caplog.messages] == ["401"]


def test_who_is_told_is_what_the_settings_say(backend: HttpBackend) -> None:
    assert lineage_sender(None, "http://gateway") is None
    assert lineage_sender(LineageSettings(), None) is None
    told = lineage_sender(LineageSettings(to=backend.url, token=Secret("t")), None)
    assert told is not None
    told.send({"a": 1})
    told.close()
    assert backend.events == [{"a": 1}]
