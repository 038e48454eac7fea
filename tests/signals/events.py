"""Events for tests: small ones, and full ones with every field that the client's classes have."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from tests.signals.client_classes import TIME, URI, UUID, class_samples, facet_classes

BASE = {"eventTime": TIME, "producer": URI, "schemaURL": URI}
FACET = {"_producer": URI, "_schemaURL": URI}
RUN = {"runId": UUID}
JOB = {"namespace": "jobs", "name": "a job"}
DATASET = {"namespace": "data", "name": "a dataset"}


# Documents whose keys are hard to report: empty, like numbers, or names that mean something.
ODD_KEYS = st.sampled_from(["", "0", "01", "+1", "1", "facets", "run", "x/y", "~", "fields", "min"])
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_KEYS, inner, max_size=4),
    max_leaves=20,
)


def own(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy that shares nothing, not even with itself, as parsing makes it."""
    copied: dict[str, Any] = json.loads(json.dumps(document))
    return copied


def run_event(**parts: Any) -> dict[str, Any]:
    """Return a small run event, with some parts replaced or added."""
    return own({**BASE, "eventType": "START", "run": RUN, "job": JOB, **parts})


def job_event(**parts: Any) -> dict[str, Any]:
    """Return a small job event."""
    return own({**BASE, "job": JOB, **parts})


def dataset_event(**parts: Any) -> dict[str, Any]:
    """Return a small dataset event."""
    return own({**BASE, "dataset": DATASET, **parts})


def event_with(slot: str, facets: dict[str, Any]) -> dict[str, Any]:
    """Return a run event with facets in a slot."""
    event = run_event(inputs=[DATASET], outputs=[DATASET])
    holder = {"run": event["run"], "job": event["job"]}.get(slot)
    if slot == "output":
        holder = event["outputs"][0]
    field = {"input": "inputFacets", "output": "outputFacets"}.get(slot, "facets")
    (event["inputs"][0] if holder is None else holder)[field] = own(facets)
    return event


def pointer_to_facet(slot: str, key: str) -> str:
    """Return where `event_with` puts a facet."""
    holder = {"run": "/run", "job": "/job", "output": "/outputs/0"}.get(slot, "/inputs/0")
    field = {"input": "inputFacets", "output": "outputFacets"}.get(slot, "facets")
    return f"{holder}/{field}/{key}"


def full_facets(slot: str, key: str) -> list[dict[str, Any]]:
    """Return a facet with every field, once for every case of its unions."""
    cls = facet_classes()[slot, key]
    return [own(sample) for sample in class_samples(cls)]


def full_event() -> dict[str, Any]:
    """Return a run event with all standard facets, each with every field, and custom ones."""
    event = run_event(inputs=[DATASET, DATASET], outputs=[DATASET])
    places: dict[str, list[dict[str, Any]]] = {
        "run": [event["run"].setdefault("facets", {})],
        "job": [event["job"].setdefault("facets", {})],
        "dataset": [
            dataset.setdefault("facets", {}) for dataset in event["inputs"] + event["outputs"]
        ],
        "input": [dataset.setdefault("inputFacets", {}) for dataset in event["inputs"]],
        "output": [dataset.setdefault("outputFacets", {}) for dataset in event["outputs"]],
    }
    for slot, key in facet_classes():
        for facets in places[slot]:
            facets[key] = full_facets(slot, key)[-1]
            facets["my_own"] = {**FACET, "anything": [1, {"goes": None}]}
    return event
