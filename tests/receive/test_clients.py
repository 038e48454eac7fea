"""The unmodified OpenLineage client for Python and its HTTP transports against a receiver."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import (
    DatasetEvent,
    InputDataset,
    Job,
    JobEvent,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    StaticDataset,
)
from openlineage.client.facet_v2 import nominal_time_run, sql_job
from openlineage.client.serde import Serde
from openlineage.client.transport.async_http import AsyncHttpConfig, AsyncHttpTransport
from openlineage.client.transport.composite import CompositeConfig, CompositeTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport
from openlineage.client.transport.transport import Transport
from requests import HTTPError
from tests.patience import PATIENCE_S
from tests.receive.harness import Running, running

from holdfast.errors import Overloaded
from holdfast.quiver import Intake
from holdfast.receive.admission import TokenSettings
from holdfast.receive.openlineage import Config
from holdfast.settings import Secret

PRODUCER = "https://example.org/tests"


def run_events(count: int = 3) -> list[RunEvent]:
    """Return START, RUNNING …, COMPLETE of one run, with facets and datasets."""
    run = Run(
        runId=str(uuid.uuid4()),
        facets={"nominalTime": nominal_time_run.NominalTimeRunFacet("2026-01-02T03:04:05Z")},
    )
    job = Job(
        namespace="jobs", name="déjà vu", facets={"sql": sql_job.SQLJobFacet(query="select 'ü'")}
    )
    states = [RunState.START, *[RunState.RUNNING] * (count - 2), RunState.COMPLETE]
    return [
        RunEvent(
            eventType=state,
            eventTime=datetime.now(UTC).isoformat(),
            run=run,
            job=job,
            producer=PRODUCER,
            inputs=[InputDataset(namespace="lake", name="in")],
            outputs=[OutputDataset(namespace="lake", name="out")],
        )
        for state in states
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as server:
        yield server


def closing_client(transport: Transport) -> closing[OpenLineageClient]:
    return closing(OpenLineageClient(transport=transport))


# Longer than a client's five seconds: it would repeat itself on a machine that is very busy.
PATIENT = {"timeout": PATIENCE_S}


def http(server: Running, **options: Any) -> HttpTransport:
    given = {"type": "http", "url": server.url, **PATIENT, **options}
    return HttpTransport(HttpConfig.from_dict(given))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_http_transport(server: Running, compression: str | None) -> None:
    events = run_events()
    options = {"compression": compression} if compression else {}
    with closing_client(http(server, **options)) as client:
        for event in events:
            client.emit(event)
    assert server.place.stored() == [Serde.to_json(event).encode() for event in events]


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(
            eventTime="2026-01-02T03:04:05Z",
            job=Job(namespace="jobs", name="j"),
            producer=PRODUCER,
        ),
        DatasetEvent(
            eventTime="2026-01-02T03:04:05Z",
            dataset=StaticDataset(namespace="lake", name="d"),
            producer=PRODUCER,
        ),
    ],
    ids=["job", "dataset"],
)
def test_all_kinds_of_events(server: Running, event: JobEvent | DatasetEvent) -> None:
    with closing_client(http(server)) as client:
        client.emit(event)
    assert server.place.stored() == [Serde.to_json(event).encode()]


@pytest.mark.parametrize(
    "endpoint", ["api/v1/lineage/", "openapi/openlineage/api/v1/lineage", "api/v1/lineage?a=b"]
)
def test_endpoints(server: Running, endpoint: str) -> None:
    with closing_client(http(server, endpoint=endpoint)) as client:
        client.emit(run_events()[0])
    assert len(server.place.stored()) == 1


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_async_http_transport(server: Running, compression: str | None) -> None:
    runs = [run_events() for _ in range(10)]
    options = {"compression": compression} if compression else {}
    config = {"url": server.url, **PATIENT, **options}
    transport = AsyncHttpTransport(AsyncHttpConfig.from_dict(config))
    with closing_client(transport) as client:
        for events in runs:
            for event in events:
                client.emit(event)
        assert transport.wait_for_completion(PATIENCE_S)
        assert transport.get_stats() == {"pending": 0, "success": 30, "failed": 0}
    sent = sorted(Serde.to_json(event).encode() for events in runs for event in events)
    assert sorted(server.place.stored()) == sent


def test_composite_transport(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        config = {
            "transports": {
                "first": {"type": "http", "url": first.url, **PATIENT},
                "second": {"type": "http", "url": second.url, "compression": "gzip", **PATIENT},
            }
        }
        events = run_events()
        composite = CompositeTransport(CompositeConfig.from_dict(config))
        with closing_client(composite) as client:
            for event in events:
                client.emit(event)
        sent = [Serde.to_json(event).encode() for event in events]
        assert first.place.stored() == second.place.stored() == sent


def test_an_api_key_is_checked(tmp_path: Path) -> None:
    tokens = (TokenSettings(name="airflow", token=Secret("s3cret"), namespaces=("jobs", "lake")),)
    with running(tmp_path, Config(listen="127.0.0.1:0", tokens=tokens)) as server:
        auth = {"type": "api_key", "apiKey": "s3cret"}
        with closing_client(http(server, auth=auth)) as client:
            client.emit(run_events()[0])
        with (
            closing_client(http(server)) as client,
            pytest.raises(HTTPError, match="401"),
        ):
            client.emit(run_events()[0])
        assert server.receiver.statistics().rejected == {"unauthorized": 1}
        assert len(server.place.stored()) == 1


def test_an_invalid_event_is_not_sent_again(server: Running) -> None:
    event = run_events()[0]
    event.job.namespace = None  # type: ignore[assignment]
    with closing_client(http(server)) as client, pytest.raises(HTTPError, match="400"):
        client.emit(event)
    assert server.receiver.statistics().requests == 1
    assert [letter.payload for letter in server.place.letters()] == [Serde.to_json(event).encode()]


def test_a_refusal_for_now_is_sent_again(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = Intake.offer
    refusals = iter([True, True, False])

    def sometimes(intake: Intake, payload: bytes, header: Any, told: Any) -> bool:
        if next(refusals):
            error = Overloaded("full", hint="wait", retry_after_s=0.1)
            asyncio.get_running_loop().call_soon(told, error)
            return True
        return offer(intake, payload, header, told)

    monkeypatch.setattr(Intake, "offer", sometimes)
    event = run_events()[0]
    with closing_client(http(server)) as client:
        client.emit(event)
    assert server.place.stored() == [Serde.to_json(event).encode()]
    assert server.receiver.statistics().rejected == {"unavailable": 2}
