"""OpenLineage's own client for Python, unmodified, and a note of everything that it was told."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import sql_job
from openlineage.client.serde import Serde
from openlineage.client.transport import get_default_factory

STATES = (RunState.START, RunState.RUNNING, RunState.COMPLETE)


def event(
    job: str,
    state: RunState = RunState.START,
    run_id: str | None = None,
    *,
    query: str = "select 1",
) -> RunEvent:
    """Return an event as an integration makes it."""
    facets: dict[str, Any] = {"sql": sql_job.SQLJobFacet(query=query)}
    return RunEvent(
        eventType=state,
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=run_id or str(uuid.uuid4())),
        job=Job(namespace="tests", name=job, facets=facets),
        producer="https://example.org/tests",
        inputs=[InputDataset(namespace="lake", name=f"raw.{job}")],
        outputs=[OutputDataset(namespace="lake", name=f"mart.{job}")],
    )


def digest(one: RunEvent) -> str:
    """Return the digest of the bytes that the client sends."""
    return hashlib.sha256(Serde.to_json(one).encode()).hexdigest()


class Producer:
    """A client; `accepted` are the digests of all events that went through, in order."""

    def __init__(self, client: OpenLineageClient) -> None:
        self.client = client
        self.accepted: list[str] = []

    def emit(self, *jobs: str) -> None:
        """Emit one event for each job; raises if one is not accepted."""
        for job in jobs:
            self.send(event(job))

    def send(self, one: RunEvent) -> None:
        """Emit an event; raises if it is not accepted."""
        self.client.emit(one)
        self.accepted.append(digest(one))


@contextmanager
def producer(url: str, kind: str = "http", **options: Any) -> Iterator[Producer]:
    """Yield a client with a transport, by its name in `openlineage.yml`; closed in the end."""
    # Longer than a client's five seconds: it would repeat itself on a machine that is very busy.
    config = {"type": kind, "url": url, "timeout": 60.0, **options}
    transport = get_default_factory().create(config)
    client = OpenLineageClient(transport=transport)
    try:
        yield Producer(client)
    finally:
        client.close()
