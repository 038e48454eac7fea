"""The endpoints without a socket: what is stored, what is kept, and every answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until_async
from tests.receive.harness import JSON, PATH, Exchange, Place, call, event, event_bytes
from tests.support.clock import ManualClock

from holdfast.dead_letters.queue import DeadLettersSettings, RejectedSettings
from holdfast.errors import DiskFull, NotAccepted, Overloaded
from holdfast.quiver import Receipt
from holdfast.quiver.base.config import AckLevel
from holdfast.receive.admission import TokenSettings
from holdfast.receive.body import RequestLimits
from holdfast.receive.openlineage import Config
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real
from holdfast.settings import Secret

NDJSON = {"content-type": "application/x-ndjson"}


def with_token(**more: Any) -> Config:
    return Config(tokens=(TokenSettings(name="airflow", token=Secret("s3cret"), **more),))


def bearer(token: str = "s3cret") -> dict[str, str]:
    return {**JSON, "authorization": f"Bearer {token}"}


def limited(**limits: Any) -> Config:
    return Config(limits=RequestLimits(**limits))


# ------------------------------------------------------------------ one event


def test_an_accepted_event_is_stored_as_it_came(place: Place) -> None:
    body = b'{ "b":1.10, "b":2, "\\u0061":"\\u00e4", ' + event_bytes()[1:]
    reply = call(place.app(), body)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    quiver_id, seq, row = reply.document["position"].split("/")
    assert (quiver_id, row) == (place.quiver.quiver_id, "0")
    bundle = place.quiver.bundle(int(seq))
    assert bundle is not None
    assert bundle.payloads == [body]
    assert list(bundle.slots) == ["openlineage"]


def test_the_answer_says_what_it_promises(place: Place) -> None:
    assert call(place.app(), event_bytes()).document == {
        "status": "accepted",
        "level": "fsynced",
        "position": f"{place.quiver.quiver_id}/0/0",
    }
    for level in ("memory", "written"):
        reply = call(place.app(Config.model_validate({"level": level})), event_bytes())
        assert reply.document["level"] == level


@pytest.mark.parametrize("level", ["memory", "written", "fsynced"])
def test_the_level_reaches_the_quiver(
    place: Place, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[AckLevel | None] = []

    async def append(payloads: object, *, level: AckLevel, **_: object) -> Receipt:
        asked.append(level)
        return Receipt(place.quiver.quiver_id, 0, 1, 1, level)

    monkeypatch.setattr(place.quiver, "append_raw_async", append)
    call(place.app(Config.model_validate({"level": level})), event_bytes())
    call(
        place.app(Config.model_validate({"level": level})),
        b"[" + event_bytes() + b"]",
        f"{PATH}/batch",
    )
    assert asked == [AckLevel[level.upper()]] * 2


def test_nothing_is_answered_before_the_quiver_has(place: Place) -> None:
    """The sync is held back; so is the answer."""
    begin, go_on = asyncio.Event(), asyncio.Event()
    append = place.quiver.append_raw_async

    async def slow_append(*args: Any, **options: Any) -> Receipt:
        begin.set()
        await go_on.wait()
        return await append(*args, **options)

    async def scenario() -> None:
        place.quiver.append_raw_async = slow_append  # type: ignore[method-assign]
        app = place.app()
        exchange = Exchange(chunks=[event_bytes()])
        request = asyncio.create_task(exchange.run(app))
        await begin.wait()
        assert exchange.sent == []
        assert app.statistics().in_flight_requests == 1
        go_on.set()
        reply = await request
        assert reply is not None
        assert reply.status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        "\ufeff{}".encode(),
        event_bytes()[:-1],
        event_bytes() + event_bytes(),
        event_bytes(x="?").replace(b'"?"', b"NaN"),
        event_bytes(x="?").replace(b'"?"', b'"\\ud800"'),
        event_bytes(x="?").replace(b'"?"', b"[" * 1000 + b"]" * 1000),
        event_bytes(x="?").replace(b'"?"', b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        json.dumps({"eventType": "START"}).encode(),
        event_bytes(run={"runId": 3}),
    ],
    ids=["empty", "cut", "array", "null", "binary", "bom", "open", "two", "nan", "surrogate",
         "deep", "very deep", "no job", "bad run"],
)  # fmt: skip
def test_an_invalid_event_is_kept_and_explained(place: Place, body: bytes) -> None:
    reply = call(place.app(), body)
    assert reply.status == 400
    document = reply.document
    assert (document["status"], document["reason"], document["kept"]) == (
        "rejected",
        "invalid",
        True,
    )
    assert document["errors"]
    assert all(
        set(problem) >= {"pointer", "rule", "message", "hint"} for problem in document["errors"]
    )
    (letter,) = place.letters()
    assert letter.payload == body
    assert (letter.reason, letter.origin, letter.destination) == ("invalid", "in", None)
    assert letter.problems[0]["rule"] == document["errors"][0]["rule"]
    assert place.stored() == []


def test_an_invalid_event_does_not_come_back_in_the_answer(place: Place) -> None:
    secret = "hunter2-of-the-event"
    reply = call(place.app(), event_bytes(eventType=secret, eventTime=secret))
    assert reply.status == 400
    assert secret not in reply.body.decode()


def test_a_letter_has_headers_but_no_credentials(place: Place) -> None:
    headers = {**bearer(), "cookie": "s3cret", "user-agent": "test/1", "x-api-key": "s3cret"}
    assert call(place.app(with_token()), b"{}", headers=headers).status == 400
    (letter,) = place.letters()
    assert letter.headers["user-agent"] == "test/1"
    assert letter.headers["client"] == "airflow"
    assert "s3cret" not in json.dumps(dict(letter.headers))


def test_an_event_that_is_not_kept_is_still_answered(tmp_path: Path) -> None:
    rejected = RejectedSettings(events_per_s=0.001, burst_s=1000)
    place = Place(tmp_path, DeadLettersSettings(rejected=rejected))
    app = place.app()
    replies = [call(app, b"{}") for _ in range(3)]
    assert [reply.status for reply in replies] == [400, 400, 400]
    assert [reply.document["kept"] for reply in replies] == [True, False, False]
    assert len(place.letters()) == 1
    place.close()


def test_warnings_come_with_the_answer(place: Place) -> None:
    reply = call(place.app(), event_bytes(eventTime="2026-01-02T03:04:05"))
    assert reply.status == 200
    assert [warning["pointer"] for warning in reply.document["warnings"]] == ["/eventTime"]


# ----------------------------------------------------------------------- batch


def test_a_batch_is_one_bundle(place: Place) -> None:
    events = [event_bytes(number) for number in range(5)]
    bodies = [
        (b"[" + b" ,\n".join(events) + b"]", JSON),
        (b'{"x": 1, "events": [' + b",".join(events) + b"]}", JSON),
        (b"\n".join(events) + b"\n", NDJSON),
    ]
    for seq, (body, headers) in enumerate(bodies):
        reply = call(place.app(), body, f"{PATH}/batch", headers)
        assert reply.status == 200
        assert reply.document == {
            "status": "success",
            "summary": {
                "received": 5,
                "successful": 5,
                "failed": 0,
                "retriable": 0,
                "non_retriable": 0,
            },
            "position": f"{place.quiver.quiver_id}/{seq}/0",
        }
    assert place.bundles() == [events] * 3


def test_a_batch_succeeds_in_part(place: Place) -> None:
    parts = [event_bytes(0), b"{}", event_bytes(2), b'{"x": NaN}', b"7", event_bytes(5)]
    reply = call(place.app(), b"[" + b",".join(parts) + b"]", f"{PATH}/batch")
    assert reply.status == 200
    document = reply.document
    assert set(document) == {"status", "summary", "position", "failed_events"}
    assert document["status"] == "partial_success"
    assert document["summary"] == {
        "received": 6,
        "successful": 3,
        "failed": 3,
        "retriable": 0,
        "non_retriable": 3,
    }
    assert [failed["index"] for failed in document["failed_events"]] == [1, 3, 4]
    for failed in document["failed_events"]:
        assert set(failed) == {"index", "reason", "retriable"}
        assert failed["retriable"] is False
        assert failed["reason"].startswith("invalid: ")
    assert place.bundles() == [[parts[0], parts[2], parts[5]]]
    assert [letter.payload for letter in place.letters()] == [parts[1], parts[3], parts[4]]


def test_others_have_their_turn_after_every_bad_event(place: Place) -> None:
    async def turns_during(body: bytes) -> int:
        answered = asyncio.create_task(Exchange(path=f"{PATH}/batch", chunks=[body]).run(app))
        turns = 0
        while not checked and not answered.done():
            await asyncio.sleep(0)
            turns += 1
        await answered
        return turns

    app, checked = place.app(), []
    reject = place.dead_letters.reject

    async def note(letters: Any) -> bool:
        checked.append(len(letters))
        return await reject(letters)

    place.dead_letters.reject = note  # type: ignore[method-assign]
    assert asyncio.run(turns_during(b"[" + b",".join([b"{}"] * 50) + b"]")) >= 50
    assert checked == [50]


@pytest.mark.parametrize("body", [b"[]", b'{"events": []}', b" [ ] "])
def test_an_empty_batch_is_a_success(place: Place, body: bytes) -> None:
    reply = call(place.app(), body, f"{PATH}/batch")
    assert (reply.status, reply.document["summary"]["received"]) == (200, 0)
    assert place.bundles() == []
    assert call(place.app(), b"\n\n", f"{PATH}/batch", NDJSON).document["status"] == "success"


def test_a_batch_without_a_good_event_stores_nothing(place: Place) -> None:
    reply = call(place.app(), b"[{}, {}]", f"{PATH}/batch")
    assert (reply.status, reply.document["summary"]["successful"]) == (200, 0)
    assert place.bundles() == []
    assert len(place.letters()) == 2


@pytest.mark.parametrize("body", [b"", b"[", b"3", b"{}", event_bytes(), b'[{"a": 1}'])
def test_what_is_no_batch_is_kept_as_a_whole(place: Place, body: bytes) -> None:
    reply = call(place.app(), body, f"{PATH}/batch")
    assert (reply.status, reply.document["reason"], reply.document["kept"]) == (
        400,
        "invalid",
        True,
    )
    assert reply.document["errors"][0]["rule"] == "batch"
    assert [letter.payload for letter in place.letters()] == [body]


def test_a_batch_has_a_bound(place: Place) -> None:
    app = place.app(limited(max_batch_events=3))
    event = event_bytes()
    assert call(app, b"[" + b",".join([event] * 3) + b"]", f"{PATH}/batch").status == 200
    reply = call(app, b"[" + b",".join([event] * 4) + b"]", f"{PATH}/batch")
    assert (reply.status, reply.document["reason"]) == (413, "too_large")
    assert "max_batch_events" in reply.document["hint"]
    assert len(place.stored()) == 3


def test_a_refused_batch_leaves_no_letters(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It will be sent again as a whole."""

    async def refuse(*_: object, **__: object) -> Receipt:
        raise Overloaded("full", hint="wait", retry_after_s=7)

    monkeypatch.setattr(place.quiver, "append_raw_async", refuse)
    app = place.app()
    reply = call(app, b"[{}, " + event_bytes() + b"]", f"{PATH}/batch")
    assert (reply.status, reply.headers["retry-after"]) == (503, "7")
    assert place.letters() == []
    assert app.statistics().rejected == {"unavailable": 2}


# -------------------------------------------------------------------- dry runs


def test_a_dry_run_stores_nothing(place: Place) -> None:
    app = place.app()
    good = call(app, event_bytes(), f"{PATH}/validate")
    assert (good.status, good.document) == (
        200,
        {"valid": True, "kind": "run", "errors": [], "warnings": []},
    )
    bad = call(app, b"{}", f"{PATH}/validate")
    assert (bad.status, bad.document["valid"], bad.document["kind"]) == (200, False, None)
    assert bad.document["errors"]
    assert call(app, b"{", f"{PATH}/validate").document["valid"] is False
    assert (place.stored(), place.letters()) == ([], [])
    assert app.statistics().received == 0


# ---------------------------------------------------------- paths and methods


@pytest.mark.parametrize(
    "path",
    [
        PATH,
        f"{PATH}/",
        "/openapi/openlineage/api/v1/lineage",
        "/api/v1/openlineage/lineage/",
        "/api/lineage",
        "//api/v1//lineage",
        "/own",
        "/pfx/api/v1/lineage",
        "/pfx/own/",
    ],
)
def test_all_paths_take_events(place: Place, path: str) -> None:
    config = Config(aliases=(*Config().aliases, "/own"), prefixes=("/pfx",))
    app = place.app(config)
    assert call(app, event_bytes(), path).status == 200
    batch = path.rstrip("/") + "/batch"
    assert call(app, b"[]", batch).status == 200
    assert call(app, b"[]", f"{batch}/").status == 200
    assert call(app, b"{}", path.rstrip("/") + "/validate").status == 200


@pytest.mark.parametrize("path", ["/", "/api/v1", f"{PATH}/x", f"{PATH}//x", "", "*"])
def test_other_paths_are_not_found(place: Place, path: str) -> None:
    app = place.app()
    reply = call(app, event_bytes(), path)
    assert (reply.status, reply.document["reason"]) == (404, "not_found")
    assert PATH in reply.document["hint"]
    assert app.statistics().rejected == {"not_found": 1}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_allowed(place: Place, method: str) -> None:
    for path in (PATH, f"{PATH}/batch/", f"{PATH}/validate"):
        reply = call(place.app(), b"", path, method=method)
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_openapi_is_served(place: Place) -> None:
    reply = call(place.app(), path="/openapi.json", method="GET")
    assert (reply.status, reply.document["openapi"]) == (200, "3.1.0")
    assert call(place.app(), path="/openapi.json", method="HEAD").status == 200
    reply = call(place.app(), path="/openapi.json", method="POST")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


# --------------------------------------------------------- types and encodings


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/json; charset=UTF-8",
        'Application/JSON;charset="utf-8"; version=1',
        "text/json",
        "application/vnd.openlineage+json",
    ],
)
def test_json_by_any_name_is_read(place: Place, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert call(place.app(), event_bytes(), headers=headers).status == 200


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16",
     "application/x-ndjson", "application/xml", "multipart/form-data; boundary=x", "json"],
)  # fmt: skip
def test_other_content_types_are_refused_unread(place: Place, content_type: str) -> None:
    exchange = Exchange(headers={"content-type": content_type}, chunks=[event_bytes()])
    reply = asyncio.run(exchange.run(place.app()))
    assert reply is not None
    assert (reply.status, reply.document["reason"]) == (415, "content_type")
    assert exchange.read_chunks == 0


def test_packed_events_are_stored_unpacked(place: Place) -> None:
    headers = {**JSON, "content-encoding": "gzip"}
    packed = gzip.compress(event_bytes())
    assert call(place.app(), [packed[:20], packed[20:]], headers=headers).status == 200
    assert place.stored() == [event_bytes()]


def test_a_wrong_encoding_is_an_answer(place: Place) -> None:
    unknown = call(place.app(), b"x", headers={**JSON, "content-encoding": "br"})
    assert (unknown.status, unknown.document["reason"]) == (415, "encoding")
    assert unknown.headers["accept-encoding"] == "gzip, deflate, zstd"
    damaged = call(place.app(), b"x", headers={**JSON, "content-encoding": "gzip"})
    assert (damaged.status, damaged.document["reason"]) == (400, "malformed")


# ----------------------------------------------------------------------- sizes


def test_a_large_body_is_refused_unread(place: Place) -> None:
    app = place.app(limited(max_body_bytes=100))
    exchange = Exchange(headers={**JSON, "content-length": "101"}, chunks=[b"x" * 101])
    reply = asyncio.run(exchange.run(app))
    assert reply is not None
    assert (reply.status, reply.document["reason"]) == (413, "too_large")
    assert exchange.read_chunks == 0
    # The same, unannounced.
    assert call(app, [b"x" * 60, b"x" * 60, b"x" * 60]).status == 413
    assert app.statistics().rejected == {"too_large": 2}


@pytest.mark.parametrize("length", ["9" * 19, "9" * 5000])
def test_an_absurd_length_is_too_large(place: Place, length: str) -> None:
    assert call(place.app(), b"", headers={**JSON, "content-length": length}).status == 413


def test_an_event_that_no_bundle_holds_is_too_large(place: Place) -> None:
    app = place.app(
        limited(max_body_bytes="40MB", max_expanded_bytes="40MB", max_in_flight_bytes="200MB")
    )
    reply = call(app, event_bytes(x="y" * 33 * 1024 * 1024))
    assert (reply.status, reply.document["reason"]) == (413, "too_large")


def test_bytes_in_flight_have_a_bound(place: Place) -> None:
    app = place.app(limited(max_body_bytes=3000, max_expanded_bytes=3000, max_in_flight_bytes=6000))

    async def scenario() -> None:
        gate = asyncio.Event()

        class Slow(Exchange):
            async def _receive(self) -> dict[str, Any]:
                if self.read_chunks == 1:
                    await gate.wait()
                return await super()._receive()

        held = [Slow(chunks=[b" " * 2500, event_bytes(number)]) for number in range(2)]
        tasks = [asyncio.create_task(one.run(app)) for one in held]
        await until_async(lambda: app.statistics().in_flight_bytes >= 5000)
        refused = await Exchange(chunks=[b" " * 1500]).run(app)
        assert refused is not None
        assert (refused.status, refused.document["reason"]) == (503, "busy")
        assert refused.headers["retry-after"] == "1"
        gate.set()
        replies = await asyncio.gather(*tasks)
        assert [reply.status for reply in replies if reply] == [200, 200]

    asyncio.run(scenario())
    statistics = app.statistics()
    assert (statistics.in_flight_requests, statistics.in_flight_bytes) == (0, 0)
    assert (statistics.accepted, statistics.rejected) == (2, {"busy": 1})


def test_requests_in_flight_have_a_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    app = place.app(limited(max_requests=2))

    async def scenario() -> None:
        gate = asyncio.Event()
        append = place.quiver.append_raw_async

        async def slow_append(*args: Any, **options: Any) -> Receipt:
            await gate.wait()
            return await append(*args, **options)

        monkeypatch.setattr(place.quiver, "append_raw_async", slow_append)
        tasks = [asyncio.create_task(Exchange(chunks=[event_bytes()]).run(app)) for _ in range(2)]
        await until_async(lambda: app.statistics().in_flight_requests == 2)
        third = Exchange(chunks=[event_bytes()])
        refused = await third.run(app)
        assert refused is not None
        assert (refused.status, third.read_chunks) == (503, 0)
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert call(app, event_bytes()).status == 200


# ------------------------------------------------------------------ producers


def test_a_token_is_asked_for(place: Place) -> None:
    app = place.app(with_token())
    for headers in (JSON, bearer("wrong")):
        exchange = Exchange(headers=headers, chunks=[event_bytes()])
        reply = asyncio.run(exchange.run(app))
        assert reply is not None
        assert (reply.status, reply.document["reason"]) == (401, "unauthorized")
        assert exchange.read_chunks == 0
    assert call(app, event_bytes(), headers=bearer()).status == 200
    assert place.stored_headers() == [{"client": "airflow"}]
    assert app.statistics().rejected == {"unauthorized": 2}


def test_a_producer_speaks_for_its_namespaces_only(place: Place) -> None:
    app = place.app(with_token(namespaces=("air*",)))
    outputs = [{"namespace": "lake", "name": "t"}]
    assert call(app, event_bytes(0, "airflow"), headers=bearer()).status == 200
    for forbidden in (event_bytes(1, "spark"), event_bytes(2, "airflow", outputs=outputs)):
        reply = call(app, forbidden, headers=bearer())
        assert (reply.status, reply.document["reason"]) == (403, "forbidden")
    batch = [event(3, "airflow"), event(4, "spark"), {}]
    reply = call(app, json.dumps(batch).encode(), f"{PATH}/batch", bearer())
    assert [failed["index"] for failed in reply.document["failed_events"]] == [1, 2]
    assert len(place.stored()) == 2
    assert app.statistics().rejected == {"forbidden": 3, "invalid": 1}


def test_a_producer_is_held_to_its_rate(place: Place) -> None:
    clock = ManualClock()
    app = place.app(with_token(events_per_s=0.5, burst_events=2), Seam(clock=clock))
    assert [call(app, event_bytes(), headers=bearer()).status for _ in range(2)] == [200, 200]
    refused = call(app, event_bytes(), headers=bearer())
    assert (refused.status, refused.document["reason"]) == (503, "rate")
    assert refused.headers["retry-after"] == "2"
    clock.now_s += 2
    # A batch is counted by its events, and paid off afterwards.
    batch = b"[" + b",".join([event_bytes()] * 5) + b"]"
    assert call(app, batch, f"{PATH}/batch", bearer()).status == 200
    assert call(app, event_bytes(), headers=bearer()).headers["retry-after"] == "10"
    assert call(app, event_bytes(), f"{PATH}/validate", bearer()).status == 503


# --------------------------------------------------------- what goes wrong here


@pytest.mark.parametrize(
    ("error", "retry_after"),
    [
        (Overloaded("full", hint="wait", retry_after_s=2.5), "3"),
        (DiskFull("no space", hint="free some"), "1"),
        (NotAccepted("slow", hint="wait", stored="maybe", retry_after_s=1e9), "60"),
        (RuntimeError("a bug with a secret payload"), "1"),
    ],
)
def test_a_quiver_that_does_not_accept_is_a_503(
    place: Place, error: Exception, retry_after: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async def refuse(*_: object, **__: object) -> Receipt:
        raise error

    monkeypatch.setattr(place.quiver, "append_raw_async", refuse)
    app = place.app()
    with caplog.at_level(logging.WARNING):
        replies = [call(app, event_bytes()) for _ in range(3)]
    assert {reply.status for reply in replies} == {503}
    assert {reply.headers["retry-after"] for reply in replies} == {retry_after}
    assert b"secret" not in replies[0].body
    assert app.statistics().rejected == {"unavailable": 3}
    assert app.statistics().in_flight_requests == 0
    assert len(caplog.records) == 1


def test_a_full_disk_is_a_503_until_it_is_not(tmp_path: Path) -> None:
    full = Fault("wal.write", FaultKind.ENOSPC, nth=2)
    place = Place(tmp_path, seam=Seam(disk=FaultyDisk(RealDisk(), [full], die_for_real)))
    app = place.app()
    replies = [call(app, event_bytes(number)) for number in range(3)]
    assert [reply.status for reply in replies] == [200, 503, 200]
    assert replies[1].document["reason"] == "unavailable"
    assert place.stored() == [event_bytes(0), event_bytes(2)]
    place.close()


def test_a_closed_quiver_is_a_503(place: Place) -> None:
    app = place.app()
    place.quiver.close()
    reply = call(app, event_bytes())
    assert (reply.status, reply.document["reason"]) == (503, "unavailable")


def test_a_stopping_receiver_refuses_and_finishes(place: Place) -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        append = place.quiver.append_raw_async

        async def slow_append(*args: Any, **options: Any) -> Receipt:
            await gate.wait()
            return await append(*args, **options)

        place.quiver.append_raw_async = slow_append  # type: ignore[method-assign]
        app = place.app()
        under_way = asyncio.create_task(Exchange(chunks=[event_bytes()]).run(app))
        await until_async(lambda: bool(app.statistics().in_flight_requests))
        app.refuse_from_now_on()
        refused = await Exchange(chunks=[event_bytes()]).run(app)
        assert refused is not None
        assert (refused.status, refused.document["reason"]) == (503, "stopping")
        assert refused.headers["connection"] == "close"
        gate.set()
        finished = await under_way
        assert finished is not None
        assert finished.status == 200

    asyncio.run(scenario())


def test_a_client_that_goes_away_is_counted(place: Place) -> None:
    app = place.app()
    exchange = Exchange(chunks=[event_bytes()[:50]], disconnects=True)
    assert asyncio.run(exchange.run(app)) is None
    statistics = app.statistics()
    assert statistics.rejected == {"disconnected": 1}
    assert (statistics.in_flight_requests, statistics.in_flight_bytes) == (0, 0)
    assert place.stored() == []


def test_statistics_add_up(place: Place) -> None:
    app = place.app()
    call(app, event_bytes())
    call(app, b"{}")
    call(app, b"[" + event_bytes() + b",{},{}]", f"{PATH}/batch")
    call(app, b"x", headers={"content-type": "text/plain"})
    statistics = app.statistics()
    assert statistics.received == 6
    assert statistics.accepted == 2
    assert statistics.rejected == {"invalid": 3, "content_type": 1}
    assert statistics.accepted_bytes == 2 * len(event_bytes())
    assert statistics.requests == 4
    assert statistics.received_bytes == 2 * len(event_bytes()) + len(b"{}") + len(b"[,{},{}]")


def test_lifespan_is_answered(place: Place) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup" if not sent else "lifespan.shutdown"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(place.app()({"type": "lifespan"}, receive, send))  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
