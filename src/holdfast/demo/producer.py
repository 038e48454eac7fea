"""The producer of the demo: OpenLineage's own client, unmodified, that emits the runs of some jobs.

Run as `python -m holdfast.demo.producer URL JOURNAL`; it ends after SIGTERM, with the event
it is at. One line per event that the client reports as sent: `A <run id>-<event type>`. The client
repeats what fails, so the same event may reach the gateway more than once; that is its own doing.
Without openlineage-python (it is not among Holdfast's dependencies) the same events are posted by
the standard library.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

JOBS = ("orders_daily", "customers_sync", "revenue_report", "inventory_snapshot")
TYPES = ("START", "RUNNING", "COMPLETE")
PATH = "/api/v1/lineage"
# How long a gateway may be away before the demo gives up.
PATIENCE_S = 30.0
_OK = 200

Emit = Callable[[str, str, str], None]


def official_client(url: str) -> Emit:
    """Return what emits through openlineage-python; raises ImportError where it is not."""
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import (
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
    )
    from openlineage.client.transport.http import HttpConfig, HttpTransport

    client = OpenLineageClient(transport=HttpTransport(HttpConfig(url=url)))

    def emit(run_id: str, job: str, kind: str) -> None:
        event = RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer="https://openlineage.io/demo",
            run=Run(run_id),
            job=Job("demo", job),
            eventType=RunState[kind],
            inputs=[InputDataset("warehouse", f"raw.{job}")],
            outputs=[OutputDataset("warehouse", f"mart.{job}")],
        )
        client.emit(event)

    return emit


def plain_client(url: str) -> Emit:
    """Return what emits through the standard library."""
    host = urllib.parse.urlsplit(url).netloc

    def emit(run_id: str, job: str, kind: str) -> None:
        event = {
            "eventType": kind,
            "eventTime": datetime.now(UTC).isoformat(),
            "run": {"runId": run_id},
            "job": {"namespace": "demo", "name": job},
            "inputs": [{"namespace": "warehouse", "name": f"raw.{job}"}],
            "outputs": [{"namespace": "warehouse", "name": f"mart.{job}"}],
            "producer": "https://openlineage.io/demo",
            "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        }
        payload = json.dumps(event).encode()
        connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        try:
            connection.request("POST", PATH, payload, {"Content-Type": "application/json"})
            if connection.getresponse().status != _OK:
                raise ConnectionError("refused")
        finally:
            connection.close()

    return emit


def main(url: str, journal: str) -> None:
    """Emit runs until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    try:
        emit, name = official_client(url), "openlineage-python"
    except ImportError:
        emit, name = plain_client(url), "http.client"
    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.write(f"{name}\n")
    sys.stdout.flush()
    number, parent = 0, os.getppid()
    while not stopping and os.getppid() == parent:
        run_id, job = str(uuid.uuid4()), JOBS[number % len(JOBS)]
        for kind in TYPES:
            _insist(emit, run_id, job, kind)
            os.write(fd, f"A {run_id}-{kind}\n".encode())
        number += 1


def _insist(emit: Emit, run_id: str, job: str, kind: str) -> None:
    """Emit until it is accepted: a gateway that was killed is back soon."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            emit(run_id, job, kind)
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
