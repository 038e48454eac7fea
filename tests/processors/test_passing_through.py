"""What processors leave alone: other slots, other bytes, and every event without their business."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processors.passing import DOCUMENTS, event_of, made, spaced, whole_event

from holdfast.processors import filter as filter_module
from holdfast.processors import redact, rename, route, trim
from holdfast.processors.processor import Processor, Router
from holdfast.signals.event import Event

FILTER = made(filter_module, drop=[{"job_name": ["nobody's"]}])
REDACT = made(redact, patterns=[{"regex": "never-[0-9]{9}-there"}])
RENAME = made(rename, namespaces=[{"exact": "nobody's", "to": "mine"}])
TRIM = made(trim, facets=["*"], max_facet_bytes=100_000)
ROUTE = made(route, rules=[{"job_name": ["nobody's"], "port": "a"}], default="b")
PROCESSORS: list[Processor] = [FILTER, REDACT, RENAME, TRIM]

by_name = pytest.mark.parametrize(
    "processor", PROCESSORS, ids=["filter", "redact", "rename", "trim"]
)


@by_name
@given(
    payload=st.binary(max_size=200) | DOCUMENTS.map(orjson.dumps),
    slot=st.sampled_from(["openlineage", "otlp"]),
)
def test_nothing_stops_a_processor_and_what_it_changes_is_json(
    processor: Processor, payload: bytes, slot: str
) -> None:
    event = event_of(payload, slot)
    passed = processor.process(event)
    assert passed is event or (passed is not None and orjson.loads(passed.payload) is not None)


@by_name
@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[1]", b"null", b'"job"', b"\xff\xfe", b"[" * 5000]
)
def test_what_is_no_json_object_passes_as_it_is(processor: Processor, payload: bytes) -> None:
    event = event_of(payload)
    assert processor.process(event) is event


@pytest.mark.parametrize(
    "processor",
    [
        made(redact),
        made(rename, namespaces=[{"prefix": "j", "to": "k"}]),
        made(filter_module, drop=[{"job_namespace": ["*"]}]),
        made(trim, facets=["*"], max_facet_bytes=1024),
    ],
)
def test_another_slot_passes_as_it_is(processor: Processor) -> None:
    facets = {"spark": {"plan": "x" * 2000}}
    document = {"job": {"namespace": "jobs", "facets": facets}, "password": "p"}
    event = event_of(document, "otlp")
    assert processor.process(event) is event
    event = event_of(document)
    assert processor.process(event) is not event


@by_name
def test_an_event_without_their_business_keeps_its_bytes(processor: Processor) -> None:
    payload = spaced(whole_event())
    event = event_of(payload)
    passed = processor.process(event)
    assert passed is event
    assert event.payload == payload


@pytest.mark.parametrize("content", [b"{", b"[1]", {"job": {"name": "x"}}])
def test_a_router_sends_what_it_does_not_know_to_its_default(content: object) -> None:
    router: Router = ROUTE
    assert router.port(event_of(content)) == "b"


def test_the_position_of_a_changed_event_stays() -> None:
    processor = made(rename, namespaces=[{"exact": "a", "to": "b"}])
    event = event_of({"job": {"namespace": "a"}})
    passed = processor.process(event)
    assert isinstance(passed, Event)
    assert passed.idempotency_key == event.idempotency_key
    assert passed.headers == event.headers
    assert orjson.loads(passed.payload) == passed.document == {"job": {"namespace": "b"}}
    assert event.document == {"job": {"namespace": "a"}}, "the parsed event is shared"


def test_an_event_too_deep_to_be_written_is_held_back_only_where_it_has_a_secret() -> None:
    deep = b'{"job":{"namespace":"a"},"password":"p","x":' + b"[" * 300 + b"]" * 300 + b"}"
    rename_a = made(rename, namespaces=[{"exact": "a", "to": "b"}])
    event = event_of(deep)
    assert rename_a.process(event) is event
    assert made(redact).process(event) is None
    assert made(redact, names=[]).process(event) is event
