"""The lineage events of a proof: each can be told from its name alone, so that damage is seen."""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime, timedelta

NAMESPACE = "prove"
# About 1.9 kB in all, as events of real clients are.
QUERY_BYTES = 1100
_RUNS = uuid.UUID("3b0c1b9e-92b0-5a52-8f4f-6f1a7d9c2a10")
_FACETS = "https://openlineage.io/spec/facets/1-1-0"
_PRODUCER = "urn:holdfast:prove"
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event_of(name: str, at: datetime | None = None) -> bytes:
    """Return the event with this name: valid, and different from every other.

    Without a time it has one of its own, which tells nothing about when it is sent.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()
    query = f"select '{digest * (QUERY_BYTES // len(digest) + 1)}'"[:QUERY_BYTES]
    facet = {"_producer": _PRODUCER, "_schemaURL": f"{_FACETS}/SQLJobFacet.json"}
    dataset = {"namespace": NAMESPACE, "name": f"table-{digest[:8]}"}
    event = {
        "eventType": "COMPLETE",
        "eventTime": (at or _NOON + timedelta(seconds=int(digest[:4], 16))).isoformat(),
        "run": {"runId": str(uuid.uuid5(_RUNS, name))},
        "job": {
            "namespace": NAMESPACE,
            "name": name,
            "facets": {"sql": {**facet, "query": query, "dialect": "ansi"}},
        },
        "inputs": [dataset],
        "outputs": [{**dataset, "name": f"{dataset['name']}-out"}],
        "producer": _PRODUCER,
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }
    return json.dumps(event).encode()


def name_of(payload: bytes) -> str | None:
    """Return the name of an event, or None if it is not, byte by byte, what was sent."""
    try:
        name = json.loads(payload)["job"]["name"]
    except (ValueError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) and event_of(name) == payload else None


def run_name_of(payload: bytes) -> str | None:
    """Return the name of an event that somebody else made: its run and what it says of it."""
    try:
        event = json.loads(payload)
        return f"{event['run']['runId']}-{event['eventType']}"
    except (ValueError, LookupError, TypeError):
        return None
