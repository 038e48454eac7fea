"""The http exporter: what it sends, byte for byte, and what it makes of every status."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.deliver.exporters.backend import Backend, answer
from tests.deliver.exporters.sending import (
    PAYLOAD,
    context,
    event,
    events,
    send,
    send_one,
    with_exporter,
)

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import http
from holdfast.deliver.exporters.classify import failure_of_status, parse_retry_after_s
from holdfast.deliver.exporters.dialects import DIALECTS, PRESETS, read_batch_answer
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock

NOW_NS = 1_750_000_000 * 10**9
DATE_IN_20_S = "Sun, 15 Jun 2025 15:07:00 GMT"


def exporter(backend: Backend, seam: Seam | None = None, **config: Any) -> Exporter:
    return http.make(http.Config(url=backend.url, **config), context(seam=seam))


# What goes out.


def test_an_event_goes_out_as_the_bytes_it_came_in(backend: Backend) -> None:
    assert send_one(exporter(backend)) is None
    (request,) = backend.requests
    assert request.raw_body == PAYLOAD
    assert (request.method, request.target) == ("POST", "/api/v1/lineage")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == str(len(PAYLOAD))
    assert "cookie" not in request.headers


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("batch_array", b'[{"n":1},{"n":2}]'),
        ("batch_object", b'{"events":[{"n":1},{"n":2}]}'),
        ("batch_ndjson", b'{"n":1}\n{"n":2}\n'),
    ],
)
def test_a_batch_is_joined_from_raw_bytes(backend: Backend, dialect: str, body: bytes) -> None:
    assert send(exporter(backend, dialect=dialect), events(2)) == [Answer()]
    assert backend.bodies == [body]
    assert backend.requests[0].target == "/api/v1/lineage/batch"


def test_only_line_breaks_change_and_only_for_ndjson(backend: Backend) -> None:
    pretty = b'{\r\n  "a": "x\\ny"\n}'
    send(exporter(backend, dialect="batch_ndjson"), [event(payload=pretty)])
    send(exporter(backend, dialect="batch_array"), [event(payload=pretty)])
    line, array = backend.bodies
    assert line == b'{    "a": "x\\ny" }\n'
    assert json.loads(line) == json.loads(pretty)
    assert array == b"[" + pretty + b"]"


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(), documents, max_size=2), st.booleans()), max_size=4
    )
)
def test_whatever_is_joined_can_be_read_again(written: list[tuple[dict[str, Any], bool]]) -> None:
    payloads = [json.dumps(doc, indent=1 if wide else None).encode() for doc, wide in written]
    wanted = [document for document, _ in written]
    assert json.loads(DIALECTS["batch_array"].body(payloads)) == wanted
    assert json.loads(DIALECTS["batch_object"].body(payloads)) == {"events": wanted}
    lines = DIALECTS["batch_ndjson"].body(payloads).decode().split("\n")[: len(payloads)]
    assert [json.loads(line) for line in lines] == wanted


@pytest.mark.parametrize(
    ("preset", "target", "batched"),
    [
        ("openlineage", "/api/v1/lineage", False),
        ("marquez", "/api/v1/lineage", False),
        ("datahub", "/openapi/openlineage/api/v1/lineage", False),
        ("openmetadata", "/api/v1/openlineage/lineage/batch", True),
    ],
)
def test_presets(backend: Backend, preset: str, target: str, batched: bool) -> None:
    made = exporter(backend, preset=preset)
    assert (made.max_batch_events > 1) is batched
    assert send_one(made) is None
    assert backend.requests[0].target == target
    assert backend.bodies == [b'{"events":[' + PAYLOAD + b"]}" if batched else PAYLOAD]


@pytest.mark.parametrize(
    ("suffix", "config", "target"),
    [
        ("", {}, "/api/v1/lineage"),
        ("/", {}, "/api/v1/lineage"),
        ("/pfx", {}, "/pfx/api/v1/lineage"),
        ("/pfx/", {}, "/pfx/api/v1/lineage"),
        ("/api/v1/lineage", {}, "/api/v1/lineage"),
        ("/pfx/api/v1/lineage/", {}, "/pfx/api/v1/lineage"),
        ("/all/of/it", {"path": ""}, "/all/of/it"),
        ("?tenant=a&x=%2B", {"path": "/x"}, "/x?tenant=a&x=%2B"),
        ("/a%20b", {"path": ""}, "/a%20b"),
        ("/v1/p/l:process", {"path": "", "dialect": "single"}, "/v1/p/l:process"),
    ],
)
def test_where_a_request_goes(
    backend: Backend, suffix: str, config: dict[str, Any], target: str
) -> None:
    config = {"url": backend.url + suffix, "idempotency": "none"} | config
    assert send_one(http.make(http.Config(**config), context())) is None
    assert backend.requests[0].target == target


def test_gzip(backend: Backend) -> None:
    small, large = event(1), event(2, b'"' + b"x" * 300_000 + b'"')
    send(exporter(backend, compression="gzip"), [small], [large])
    assert backend.bodies == [small.payload, large.payload]
    assert all(r.headers["content-encoding"] == "gzip" for r in backend.requests)
    assert len(backend.requests[1].raw_body) < 10_000


# Idempotency keys.


def test_the_key_of_an_event_is_the_same_each_time(backend: Backend) -> None:
    send(exporter(backend), [event(1)], [event(1)], [event(2)])
    keys = [request.headers["idempotency-key"] for request in backend.requests]
    assert keys[0] == keys[1] == event(1).idempotency_key != keys[2]


def test_the_key_of_a_batch_is_that_of_exactly_its_events(backend: Backend) -> None:
    three = events(3)
    batches = [three, three, three[:2], [three[0], three[2]], three[:1]]
    send(exporter(backend, dialect="batch_array"), *batches)
    keys = [request.headers["idempotency-key"] for request in backend.requests]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert all(str(uuid.UUID(key)) == key for key in keys)


@pytest.mark.parametrize(
    ("config", "header", "target"),
    [
        ({"idempotency": "none"}, None, "/api/v1/lineage"),
        ({"idempotency_name": "X-Once"}, "x-once", "/api/v1/lineage"),
        ({"idempotency": "query"}, None, f"/api/v1/lineage?requestId={event().idempotency_key}"),
        (
            {"idempotency": "query", "idempotency_name": "rid"},
            None,
            f"/api/v1/lineage?rid={event().idempotency_key}",
        ),
    ],
)
def test_where_the_key_goes(
    backend: Backend, config: dict[str, Any], header: str | None, target: str
) -> None:
    assert send_one(exporter(backend, **config)) is None
    (request,) = backend.requests
    assert request.target == target
    found = [name for name, value in request.headers.items() if value == event().idempotency_key]
    assert found == ([header] if header else [])


def test_a_query_key_joins_a_query_that_is_there(backend: Backend) -> None:
    config = http.Config(url=f"{backend.url}?a=b", path="", idempotency="query")
    assert send_one(http.make(config, context())) is None
    assert backend.requests[0].target == f"/?a=b&requestId={event().idempotency_key}"


# What statuses mean.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, None) for status in (200, 201, 202, 204, 207)),
        *((status, FailureClass.AUTH) for status in (401, 403, 407)),
        (413, FailureClass.TOO_LARGE),
        *((s, FailureClass.TRANSIENT) for s in (408, 425, 429, 500, 501, 502, 503, 504, 599)),
        *((s, FailureClass.PERMANENT) for s in (400, 422)),
        *((s, FailureClass.TRANSIENT) for s in (402, 404, 405, 406, 409, 410, 415, 418, 423, 451)),
        *((s, FailureClass.TRANSIENT) for s in (300, 301, 302, 303, 304, 307, 308)),
        (600, FailureClass.TRANSIENT),
    ],
)
def test_statuses(backend: Backend, status: int, kind: FailureClass | None) -> None:
    backend.steps = [answer(status)]
    failure = send_one(exporter(backend))
    assert (failure.kind if failure else None) is kind
    assert len(backend.requests) == 1
    if failure:
        assert failure.code == str(status)
        assert str(status) in failure.reason


@given(st.integers(100, 999).filter(lambda status: not 200 <= status < 300))
def test_every_status_has_a_class(status: int) -> None:
    failure = failure_of_status(status)
    assert failure.kind in FailureClass
    about_the_event = failure.kind in (FailureClass.PERMANENT, FailureClass.TOO_LARGE)
    assert about_the_event == (status in (400, 413, 422))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(backend: Backend, status: int) -> None:
    with Backend() as elsewhere:
        location = f"{elsewhere.url}/new?token=hush#f"
        backend.steps = [answer(status, Location=location)]
        failure = send_one(exporter(backend))
        assert elsewhere.requests == []
        assert failure is not None
        assert f"{elsewhere.url}/new" in failure.reason
        assert "hush" not in failure.reason
        assert "`url`" in failure.reason


@pytest.mark.parametrize(
    "location", ["", "/elsewhere", "::::", "http://u:hush@h/x", "http://[", "x" * 5000, "/\x1b[2J"]
)
def test_odd_locations(location: str) -> None:
    reason = failure_of_status(302, location=location).reason
    assert len(reason) < 400
    assert reason.isprintable()
    assert "hush" not in reason


def test_what_the_backend_writes_is_not_repeated(backend: Backend) -> None:
    backend.steps = [answer(400, b'{"message": "cannot parse PAYLOAD-TEXT"}')]
    failure = send_one(exporter(backend))
    assert failure is not None
    assert "PAYLOAD-TEXT" not in repr(failure)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-5", 0.0),
        ("1.5", 1.5),
        ("1e99", 3600.0),
        ("inf", 3600.0),
        ("nan", None),
        ("soon", None),
        ("", None),
        (DATE_IN_20_S, 20.0),
        ("Sun, 15 Jun 2025 15:06:30 GMT", 0.0),
        ("Sun, 15 Jun 2036 15:06:30 GMT", 3600.0),
        ("Sun, 99 Jun 2025 15:06:30 GMT", None),
    ],
)
def test_retry_after(backend: Backend, value: str, wait_s: float | None) -> None:
    backend.steps = [answer(503, Retry_After=value)]
    failure = send_one(exporter(backend, Seam(clock=JumpingClock(NOW_NS))))
    assert failure is not None
    assert failure.retry_after_s == wait_s


@given(st.text(), st.integers(0, 2**62), st.floats(0, 1000))
def test_no_retry_after_is_out_of_bounds(value: str, now_ns: int, most_s: float) -> None:
    wait_s = parse_retry_after_s(value, now_ns, most_s)
    assert wait_s is None or 0 <= wait_s <= most_s


# Sizes.


def test_what_is_over_the_limit_is_not_sent(backend: Backend) -> None:
    made = exporter(backend, dialect="batch_array", max_request_bytes=20)
    (alone,) = send(made, [event(payload=b"x" * 0 + b'"%s"' % (b"x" * 30))])
    (both,) = send(made, events(3))
    (fits,) = send(made, events(2))
    assert alone.failed[0].kind is FailureClass.TOO_LARGE
    assert [f.kind for f in both.failed.values()] == [FailureClass.TOO_LARGE] * 3
    assert fits == Answer()
    assert len(backend.requests) == 1
    assert made.max_batch_bytes == 20


def test_a_status_for_a_batch_is_shared_by_its_events(backend: Backend) -> None:
    backend.steps = [answer(400), answer(400), answer(413)]
    made = exporter(backend, dialect="batch_array")
    several, one, large = send(made, events(3), events(1), events(2))
    assert set(several.failed) == {0, 1, 2}
    assert set(one.failed) == {0}
    assert {f.kind for f in large.failed.values()} == {FailureClass.TOO_LARGE}


# Answers to batches.


def partial(count: int, *failed: Any, **changes: Any) -> bytes:
    fields = {
        "status": "partial_success",
        "summary": {"received": count, "successful": count - len(failed), "failed": len(failed)},
        "failed_events": list(failed),
    }
    return json.dumps(fields | changes).encode()


def test_partial_success_is_mapped_by_index(backend: Backend) -> None:
    body = partial(
        4,
        {"index": 3, "reason": "SECRET", "retriable": True},
        {"index": 0, "reason": "no", "retriable": False},
        {"index": 1, "reason": "no"},
    )
    backend.steps = [answer(200, body)]
    (result,) = send(exporter(backend, dialect="batch_array"), events(4))
    assert {i: failure.kind for i, failure in result.failed.items()} == {
        3: FailureClass.TRANSIENT,
        0: FailureClass.PERMANENT,
        1: FailureClass.PERMANENT,
    }
    assert "SECRET" not in repr(result)
    assert not any(f.maybe_delivered for f in result.failed.values())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b'{"status": "success"}',
        b'{"status": "success", "summary": {"received": 2, "successful": 2, "failed": 0}}',
        b'{"status": "success", "summary": {"received": 2, "skipped": 2}, "failedEvents": null}',
        b'{"status": "partial_success", "summary": {"received": 2, "failed": 0, "partial": 1}}',
    ],
)
def test_a_whole_batch_taken(backend: Backend, body: bytes) -> None:
    backend.steps = [answer(200, body)]
    assert send(exporter(backend, dialect="batch_array"), events(2)) == [Answer()]


def test_openmetadata_spells_it_in_camel_case(backend: Backend) -> None:
    body = json.dumps(
        {
            "status": "failure",
            "summary": {"received": 2, "successful": 0, "failed": 2, "skipped": 0},
            "failedEvents": [{"index": i, "reason": "x", "retriable": False} for i in range(2)],
        }
    ).encode()
    backend.steps = [answer(200, body)]
    (result,) = send(exporter(backend, preset="openmetadata"), events(2))
    assert {f.kind for f in result.failed.values()} == {FailureClass.PERMANENT}
    assert set(result.failed) == {0, 1}


NOT_BELIEVED = [
    b"OK",
    b"[]",
    b"{}",
    b"<html>sign in</html>",
    b'{"status": "who knows"}',
    b'{"status": ["success"]}',
    partial(2, {"index": 2, "retriable": True}),
    partial(2, {"index": -1, "retriable": True}),
    partial(2, {"index": True, "retriable": True}),
    partial(2, {"index": "0", "retriable": True}),
    partial(2, {"index": 0}, {"index": 0}),
    partial(2, "0"),
    partial(2, {"index": 0}, status="success"),
    partial(2, {"index": 0}, status="failure"),
    partial(3, {"index": 0}),
    partial(2, {"index": 0}, failed_events=[]),
    partial(2, {"index": 0}, failed_events={"0": "no"}),
    partial(2, {"index": 0}, summary=[]) + b"}",
]


@pytest.mark.parametrize("body", NOT_BELIEVED)
def test_an_answer_that_cannot_be_believed_is_none(backend: Backend, body: bytes) -> None:
    backend.steps = [answer(200, body)]
    believing = exporter(backend, dialect="batch_array", batch_answer="status")
    (result,) = send(exporter(backend, dialect="batch_array"), events(2))
    assert set(result.failed) == {0, 1}
    for failure in result.failed.values():
        assert failure.kind is FailureClass.TRANSIENT
        assert failure.maybe_delivered
        assert "batch_answer" in failure.reason
    assert send(believing, events(2)) == [Answer()]


@given(documents | st.fixed_dictionaries({"status": documents, "failed_events": documents}))
def test_no_answer_breaks_the_reader(document: Any) -> None:
    result = read_batch_answer(json.dumps(document).encode(), 3)
    assert result is None or set(result.failed) <= {0, 1, 2}


def test_an_event_that_is_not_json_does_not_spoil_its_batch(backend: Backend) -> None:
    backend.steps = [answer(200, partial(2, {"index": 1, "retriable": True}))]
    first, second = events(2)
    batch = [event(8, b"{"), first, event(9, b"\xff"), second]
    (result,) = send(exporter(backend, dialect="batch_array"), batch)
    assert backend.bodies == [b'[{"n":1},{"n":2}]']
    assert {i: failure.kind for i, failure in result.failed.items()} == {
        0: FailureClass.PERMANENT,
        2: FailureClass.PERMANENT,
        3: FailureClass.TRANSIENT,
    }
    (nothing,) = send(exporter(backend, dialect="batch_array"), batch[:1])
    assert set(nothing.failed) == {0}
    assert len(backend.requests) == 1


# Connections.


def test_connections_are_kept_and_bounded(backend: Backend) -> None:
    async def use(started: Exporter) -> None:
        for _ in range(5):
            await started.send([event()])
        assert backend.accepted == 1
        await asyncio.gather(*(started.send([event(seq)]) for seq in range(30)))

    with_exporter(exporter(backend, max_connections=3), use)
    assert len(backend.requests) == 35
    assert backend.most_connections <= 3


def test_two_events_for_a_dialect_of_one_are_a_bug(backend: Backend) -> None:
    with pytest.raises(AssertionError, match="BUG"):
        send(exporter(backend), events(2))


# Configuration.


@pytest.mark.parametrize(
    "config",
    [
        {"url": "marquez:5000"},
        {"url": "ftp://h"},
        {"url": "http://"},
        {"url": "http://user@h"},
        {"url": "http://h:99999"},
        {"path": "api"},
        {"headers": {"Bad Name": "x"}},
        {"headers": {"Content-Length": "3"}},
        {"idempotency_name": "a\r\nb"},
        {"connect_timeout": "20s", "total_timeout": "10s"},
        {"max_batch_events": 0},
        {"dialect": "smoke signals"},
        {"preset": "other"},
        {"unknown": 1},
    ],
)
def test_what_cannot_be_meant(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        http.Config.model_validate({"url": "http://h"} | config)


def test_every_preset_says_where(backend: Backend) -> None:
    for preset in PRESETS.values():
        assert preset.path("single").startswith("/")
        assert preset.path("batch_array") != preset.path("single")
