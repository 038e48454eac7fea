"""OpenLineage events and requests of the tests, without a client library."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any

from tests.patience import PATIENCE_S

SCHEMA_URL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"


def run_event(run_id: str | None = None, job: str = "job") -> dict[str, Any]:
    """Return a valid event."""
    return {
        "eventTime": "2026-11-15T10:00:00.000Z",
        "producer": "https://example.com/producer",
        "schemaURL": SCHEMA_URL,
        "eventType": "START",
        "run": {"runId": run_id or str(uuid.uuid4())},
        "job": {"namespace": "tests", "name": job},
        "inputs": [],
        "outputs": [],
    }


def request(
    address: str, method: str, path: str, body: object = None, token: str | None = None
) -> tuple[int, Any]:
    """Send one request to `host:port`; return the status, and the body as JSON or text."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


def post(address: str, event: object, token: str | None = None) -> tuple[int, Any]:
    """Send one event."""
    return request(address, "POST", "/api/v1/lineage", event, token)
