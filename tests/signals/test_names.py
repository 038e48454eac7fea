"""Names and times of events: keys exactly as the clients make them, and never an exception."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openlineage.client import event_v2
from openlineage.client.facet_v2 import parent_run
from openlineage.client.serde import Serde
from openlineage.client.transport.kafka import KafkaTransport
from tests.signals.client_classes import TIME, UUID
from tests.signals.events import (
    DATASET,
    JOB,
    ODD_JSON,
    dataset_event,
    job_event,
    run_event,
)

from holdfast.quiver import Quiver, QuiverConfig
from holdfast.signals.openlineage.names import (
    OpenLineageExtractor,
    event_time,
    job_namespace,
    kafka_key,
    namespaces,
    order_key,
    read_time,
    run_id,
)

# The client's own function, without the connection that making the object would open.
CLIENT = object.__new__(KafkaTransport)

NAME = st.sampled_from(["", "a", "a/b", "ünï", "x y"])
CLIENT_JOB = st.builds(event_v2.Job, namespace=NAME, name=NAME)
PARENT = st.builds(
    parent_run.ParentRunFacet,
    run=st.just(parent_run.Run(runId=UUID)),
    job=st.builds(parent_run.Job, namespace=NAME, name=NAME),
    root=st.none()
    | st.builds(
        parent_run.Root,
        run=st.just(parent_run.RootRun(runId=UUID)),
        job=st.builds(parent_run.RootJob, namespace=NAME, name=NAME),
    ),
)
CLIENT_RUN = st.builds(
    event_v2.Run,
    runId=st.just(UUID),
    facets=st.just({}) | st.builds(lambda p: {"parent": p}, PARENT),
)
TIMES = st.just(TIME)
CLIENT_EVENT = st.one_of(
    st.builds(event_v2.RunEvent, eventTime=TIMES, run=CLIENT_RUN, job=CLIENT_JOB),
    st.builds(event_v2.JobEvent, eventTime=TIMES, job=CLIENT_JOB),
    st.builds(
        event_v2.DatasetEvent,
        eventTime=TIMES,
        dataset=st.builds(event_v2.StaticDataset, namespace=NAME, name=NAME),
    ),
)


@given(CLIENT_EVENT)
def test_kafka_keys_are_those_of_the_client(event: Any) -> None:
    sent = json.loads(Serde.to_json(event))
    assert kafka_key(sent) == CLIENT._get_message_key(event)


def parent(job: str, root: str | None = None) -> dict[str, Any]:
    facet: dict[str, Any] = {"run": {"runId": UUID}, "job": {"namespace": "n", "name": job}}
    if root is not None:
        facet["root"] = {"run": {"runId": UUID}, "job": {"namespace": "n", "name": root}}
    return {"runId": UUID, "facets": {"parent": facet}}


@pytest.mark.parametrize(
    ("event", "root_job", "job", "run"),
    [
        (run_event(), "job:jobs/a job", "job:jobs/a job", f"run:{UUID}"),
        (run_event(run=parent("p")), "job:n/p", "job:jobs/a job", f"run:{UUID}"),
        (run_event(run=parent("p", "r")), "job:n/r", "job:jobs/a job", f"run:{UUID}"),
        (run_event(run=parent("p", "")), "job:jobs/a job", "job:jobs/a job", f"run:{UUID}"),
        (job_event(), "job:jobs/a job", "job:jobs/a job", "job:jobs/a job"),
        (dataset_event(), *["dataset:data/a dataset"] * 3),
        ({}, "", "", ""),
    ],
)
def test_order_keys(event: dict[str, Any], root_job: str, job: str, run: str) -> None:
    assert order_key(event, "root_job") == root_job
    assert order_key(event, "job") == job
    assert order_key(event, "run") == run


def test_names_of_an_event() -> None:
    event = run_event(inputs=[DATASET, {"namespace": "more"}], outputs=[{"namespace": "out"}, 7])
    assert run_id(event) == UUID
    assert job_namespace(event) == JOB["namespace"]
    assert namespaces(event) == {"jobs", "data", "more", "out"}
    assert namespaces(dataset_event()) == {"data"}


@given(ODD_JSON)
def test_names_of_anything_are_absent_or_text(document: Any) -> None:
    for event in (document, {"run": document, "job": document, "inputs": document}):
        assert isinstance(kafka_key(event), str)
        assert isinstance(order_key(event, "root_job"), str)
        assert isinstance(order_key(event, "run"), str)
        assert namespaces(event) <= set(texts(event))
        assert run_id(event) is None or isinstance(run_id(event), str)
        assert event_time(event) is None


def texts(document: Any) -> list[str]:
    if isinstance(document, str):
        return [document]
    inner = document.values() if isinstance(document, dict) else document
    return (
        [text for item in inner for text in texts(item)]
        if isinstance(document, dict | list)
        else []
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-11-03T10:53:52.427Z", datetime(2021, 11, 3, 10, 53, 52, 427_000, UTC)),
        ("2021-11-03T10:53:52.427", datetime(2021, 11, 3, 10, 53, 52, 427_000, UTC)),
        ("2021-11-03T10:53:52+10:00", datetime(2021, 11, 3, 0, 53, 52, tzinfo=UTC)),
        ("2021-11-03t10:53:52z", datetime(2021, 11, 3, 10, 53, 52, tzinfo=UTC)),
        ("2021-11-03 10:53Z", datetime(2021, 11, 3, 10, 53, tzinfo=UTC)),
        ("2021-11-03T10:53:52.123456789Z", datetime(2021, 11, 3, 10, 53, 52, 123_456, UTC)),
        ("2021-11-03T10:53:52+01:00[Europe/Paris]", datetime(2021, 11, 3, 9, 53, 52, tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:60Z", None),
        ("0001-01-01T00:00:00+01:00", None),
        ("2021-11-03", None),
        ("20211103", None),
        ("2021-02-30T00:00:00Z", None),
        ("now", None),
        ("", None),
    ],
)
def test_times_are_read(text: str, expected: datetime | None) -> None:
    assert read_time(text) == expected
    assert event_time({"eventTime": text}) == expected


@given(st.datetimes(timezones=st.just(UTC)))
def test_any_time_python_writes_is_read(time: datetime) -> None:
    assert read_time(time.isoformat()) == time


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_none(text: str) -> None:
    time = read_time(text)
    assert time is None or time.tzinfo is UTC


def rows(*payloads: bytes) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def test_the_envelope_has_time_run_and_job() -> None:
    found = OpenLineageExtractor().extract(
        rows(
            json.dumps(run_event()).encode(),
            json.dumps(dataset_event(eventTime="2021-11-03T10:53:52")).encode(),
            b"no json",
            b"[1]",
        )
    )
    assert found.to_pylist() == [
        {"event_time": datetime(2026, 1, 31, 12, tzinfo=UTC), "run_id": UUID, "job": "jobs/a job"},
        {"event_time": datetime(2021, 11, 3, 10, 53, 52, tzinfo=UTC), "run_id": None, "job": None},
        {"event_time": None, "run_id": None, "job": None},
        {"event_time": None, "run_id": None, "job": None},
    ]


def test_the_envelope_of_nothing_has_its_columns() -> None:
    found = OpenLineageExtractor().extract(rows())
    assert found.schema.names == ["event_time", "run_id", "job"]
    assert found.num_rows == 0


def test_a_quiver_keeps_the_envelope_beside_the_events(tmp_path: Any) -> None:
    config = QuiverConfig(extractors={"openlineage": OpenLineageExtractor()})
    with Quiver.open(tmp_path / "q", config) as quiver:
        quiver.append_raw([json.dumps(run_event()).encode(), b"\xff"], slot="openlineage")
        quiver.flush()
    (file,) = (tmp_path / "q").rglob("*openlineage*.arrow")
    table = pa.ipc.open_file(file.read_bytes()).read_all()
    assert table.column("run_id").to_pylist() == [UUID, None]
    assert table.column("job").to_pylist() == ["jobs/a job", None]
    assert table.column("_event_time").to_pylist()[0] == datetime(2026, 1, 31, 12, tzinfo=UTC)
