"""OTLP over HTTP: what is taken is stored as protobuf, and clients know every answer."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import zstandard
from tests.patience import PATIENCE_S
from tests.receive.harness import Exchange, Place, Reply, call, request_bytes
from tests.signals.otlp.telemetry import request

from holdfast.errors import BadConfig, Overloaded
from holdfast.receive import otlp_checks
from holdfast.receive.fast_path import HELD_BYTES_MAX
from holdfast.receive.http_app import HttpApp
from holdfast.receive.http_server import HttpServer
from holdfast.receive.otlp import Config, OtlpReceiver
from holdfast.receive.otlp_intake import KEPT_HEADERS_CHARACTERS_MAX
from holdfast.receive.receiver import ItemCounts
from holdfast.settings import Secret
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
ANY_PORT = {"http_listening_addr": "127.0.0.1:0"}
TRACES = request(OtlpKind.TRACES, random.Random(1))


def receiver(place: Place, **settings: Any) -> OtlpReceiver:
    return OtlpReceiver(Config(**{**ANY_PORT, **settings}), place.context())


def post(
    app: Callable[..., Any],
    body: bytes,
    kind: OtlpKind = OtlpKind.TRACES,
    headers: dict[str, str] = PROTOBUF,
) -> Reply:
    return call(app, body, kind.http_path, headers)


def status_of(reply: Reply) -> tuple[int, int, str]:
    """Return the HTTP status, and code and message of the google.rpc.Status."""
    if reply.headers["content-type"] == "application/json":
        return reply.status, reply.document["code"], reply.document["message"]
    assert reply.headers["content-type"] == "application/x-protobuf"
    assert reply.body[0] == 0x08
    assert reply.body[2] == 0x12
    *_, end = codec.field_ends(reply.body)
    assert end == len(reply.body)
    return reply.status, reply.body[1], reply.body[4:].decode()


@pytest.mark.parametrize("kind", OtlpKind)
def test_a_request_is_stored_as_it_came_and_counted_in_items(place: Place, kind: OtlpKind) -> None:
    body = request(kind, random.Random(2))
    made = receiver(place)
    reply = post(made.app, body, kind)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"] == "application/x-protobuf"
    assert place.stored() == [body]
    assert place.slots() == [kind.slot]
    counted = made.statistics()
    assert counted.accepted == 1
    assert counted.items[kind.value] == ItemCounts(codec.check(kind, body), 0)


@pytest.mark.parametrize("kind", OtlpKind)
def test_json_is_stored_as_protobuf_and_answered_in_json(place: Place, kind: OtlpKind) -> None:
    body = request(kind, random.Random(3))
    text = orjson.dumps(request_document(kind, body))
    reply = post(
        receiver(place).app, text, kind, {"content-type": "application/json;charset=utf-8"}
    )
    assert (reply.status, reply.document) == (200, {})
    assert place.stored() == [body]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_body_is_stored_unpacked(place: Place, pack: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if pack is gzip.compress else "zstd"
    headers = {**PROTOBUF, "content-encoding": encoding}
    assert post(receiver(place).app, pack(TRACES), headers=headers).status == 200
    assert place.stored() == [TRACES]


def test_an_empty_request_is_a_success_and_leaves_nothing(place: Place) -> None:
    assert post(receiver(place).app, b"").status == 200
    assert post(receiver(place).app, b"{}", headers=JSON).status == 200
    assert place.stored() == []


def test_unknown_fields_are_kept(place: Place) -> None:
    body = TRACES + bytes([0xAA, 0x3E, 3]) + b"new"
    assert post(receiver(place).app, body).status == 200
    assert place.stored() == [body]


def test_what_is_no_request_is_400_and_a_dead_letter(place: Place) -> None:
    made = receiver(place)
    status, code, message = status_of(post(made.app, TRACES[:-1]))
    assert (status, code) == (400, 3)
    assert "protobuf" in message
    status, code, message = status_of(post(made.app, b'{"resourceSpans":5}', headers=JSON))
    assert (status, code) == (400, 3)
    assert message.startswith("resourceSpans: an array is expected")
    kept = [(letter.payload, letter.slot, letter.reason) for letter in place.letters()]
    assert kept == [
        (TRACES[:-1], "otlp_traces", "invalid"),
        (b'{"resourceSpans":5}', "otlp_traces", "invalid"),
    ]
    assert place.stored() == []
    assert made.statistics().rejected == {"invalid": 2}


def test_every_refusal_is_one_of_the_table(place: Place) -> None:
    app = receiver(place, limits={"max_body_size": 1000, "max_expanded_size": 1000}).app
    assert status_of(post(app, bytes(1001)))[:2] == (413, 8)
    packed = {**PROTOBUF, "content-encoding": "gzip"}
    assert status_of(post(app, gzip.compress(bytes(100_000)), headers=packed))[:2] == (413, 8)
    assert status_of(post(app, b"no gzip", headers=packed))[:2] == (400, 3)
    odd = {**PROTOBUF, "content-encoding": "br"}
    assert status_of(post(app, b"", headers=odd))[:2] == (415, 3)
    assert status_of(post(app, b"", headers={"content-type": "text/plain"}))[:2] == (415, 3)
    assert status_of(call(app, b"", "/v1/profiles", PROTOBUF))[:2] == (404, 12)
    assert status_of(call(app, b"", "/v1/traces", PROTOBUF, method="GET"))[:2] == (405, 12)


@pytest.mark.parametrize("headers", [PROTOBUF, JSON], ids=["protobuf", "json"])
def test_what_we_cannot_take_now_is_503_and_comes_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise Overloaded("the disk is slow", hint="wait", retry_after_s=7)

    made = receiver(place)
    body = (
        TRACES if headers is PROTOBUF else orjson.dumps(request_document(OtlpKind.TRACES, TRACES))
    )
    monkeypatch.setattr(place.quiver, "append_raw_async", full)
    reply = post(made.app, body, headers=headers)
    assert status_of(reply)[:2] == (503, 14)
    assert reply.headers["retry-after"] == "7"
    assert made.statistics().items["traces"] == ItemCounts(0, codec.check(OtlpKind.TRACES, TRACES))

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(place.quiver, "append_raw_async", broken)
    assert status_of(post(made.app, body, headers=headers))[:2] == (503, 14)
    made.app.refuse_from_now_on()
    assert status_of(post(made.app, body, headers=headers))[:2] == (503, 14)


def test_tokens_are_asked_for_and_namespaces_are_not(place: Place) -> None:
    token = {"name": "shop", "token": Secret("x" * 20)}
    app = receiver(place, tokens=[token]).app
    assert status_of(post(app, TRACES))[:2] == (401, 16)
    known = {**PROTOBUF, "authorization": f"Bearer {'x' * 20}"}
    assert post(app, TRACES, headers=known).status == 200
    assert place.stored_headers() == [{"client": "shop"}]
    with pytest.raises(BadConfig, match="namespaces"):
        receiver(place, tokens=[{**token, "namespaces": ["a"]}])


def test_chosen_headers_are_kept_and_secrets_cannot_be(place: Place) -> None:
    app = receiver(place, keep_headers=["X-Scope-OrgID"]).app
    sent = {**PROTOBUF, "X-Scope-OrgID": "tenant-1", "x-other": "1"}
    assert post(app, TRACES, headers=sent).status == 200
    assert post(app, TRACES).status == 200
    assert place.stored_headers() == [{"x-scope-orgid": "tenant-1"}, {}]
    long = {**PROTOBUF, "X-Scope-OrgID": "x" * (KEPT_HEADERS_CHARACTERS_MAX + 1)}
    assert post(app, TRACES, headers=long).status == 400
    for name in ("Authorization", "content-type", "a b", ""):
        with pytest.raises(ValueError, match="cannot be kept"):
            Config(keep_headers=(name,))


def test_a_rate_counts_items(place: Place) -> None:
    token = {"name": "shop", "token": Secret("x" * 20), "events_per_s": 0.001, "burst_events": 1}
    app = receiver(place, tokens=[token]).app
    headers = {**PROTOBUF, "authorization": f"Bearer {'x' * 20}"}
    assert post(app, TRACES, headers=headers).status == 200
    assert status_of(post(app, TRACES, headers=headers))[:2] == (503, 14)


# ---------------------------------------------------------------------------- browsers


def test_pages_that_are_named_may_send_from_a_browser(place: Place) -> None:
    made = receiver(
        place, cors={"allowed_origins": ["https://*.example.com"]}, keep_headers=["x-tenant"]
    )
    (server,) = made.servers
    assert isinstance(server, HttpServer)
    app = server._app
    page = {"origin": "https://shop.example.com"}
    asked = call(app, b"", "/v1/traces", page, method="OPTIONS")
    assert asked.status == 204
    assert asked.headers["access-control-allow-origin"] == page["origin"]
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert "x-tenant" in asked.headers["access-control-allow-headers"]
    sent = call(app, TRACES, "/v1/traces", {**PROTOBUF, **page})
    assert (sent.status, sent.headers["access-control-allow-origin"]) == (200, page["origin"])
    stranger = {"origin": "https://example.org"}
    asked = call(app, b"", "/v1/traces", stranger, method="OPTIONS")
    assert not any(name.startswith("access-control") for name in asked.headers)
    assert "access-control-allow-origin" not in call(app, TRACES, "/v1/traces", PROTOBUF).headers


# ------------------------------------------------------------------------ large bodies


def test_what_is_checked_at_once_takes_the_fast_path(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = request(OtlpKind.TRACES, random.Random(6), items=200)
    body = codec.join([one] * (otlp_checks.HEAVY_BYTES // len(one)))
    assert len(body) > HELD_BYTES_MAX
    made = receiver(place)
    (server,) = made.servers
    assert isinstance(server, HttpServer)
    # The long way would read the body.
    monkeypatch.setattr(HttpApp, "_handle", lambda *_: pytest.fail("it took the long way"))

    async def play() -> list[bytes]:
        await made.start()
        (address,) = server.addresses
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.split(":")[-1]))
        answers = []
        for _ in range(2):
            writer.write(request_bytes(body, "/v1/traces", content_type=PROTOBUF["content-type"]))
            answers.append(await reader.readuntil(b"\r\n\r\n"))
            assert server.counts.held_bytes == 0
        writer.close()
        await made.stop(PATIENCE_S)
        return answers

    for answer in asyncio.run(play()):
        assert answer.startswith(b"HTTP/1.1 200")
    assert place.stored() == [body, body]


def heavy(kind: OtlpKind) -> bytes:
    one = request(kind, random.Random(4), items=200)
    return codec.join([one] * (otlp_checks.HEAVY_BYTES // len(one) + 1))


def test_large_bodies_are_checked_in_another_process(place: Place) -> None:
    body = heavy(OtlpKind.LOGS)
    text = orjson.dumps(
        request_document(OtlpKind.TRACES, request(OtlpKind.TRACES, random.Random(5), 300))
    )
    assert len(text) > otlp_checks.HEAVY_JSON_BYTES
    made = receiver(place)

    async def play() -> list[int]:
        statuses = []
        for sent, kind, headers in (
            (body, OtlpKind.LOGS, PROTOBUF),
            (body[:-1], OtlpKind.LOGS, PROTOBUF),
            (text, OtlpKind.TRACES, JSON),
            (text[:-1], OtlpKind.TRACES, JSON),
        ):
            reply = await Exchange("POST", kind.http_path, headers, [sent]).run(made.app)
            assert reply is not None
            statuses.append(reply.status)
        await made.app.close()
        return statuses

    assert asyncio.run(play()) == [200, 400, 200, 400]
    assert made.intake._checks.child.started == 1
    stored = place.stored()
    assert stored[0] == body
    assert orjson.dumps(request_document(OtlpKind.TRACES, stored[1])) == text


def test_a_body_that_takes_too_much_memory_is_too_large(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two bytes for an empty resource, and some fifty in memory.
    monkeypatch.setattr(otlp_checks, "CHILD_MEMORY_BYTES", 256 * 1024 * 1024)
    made = receiver(place, limits={"max_in_flight_size": "256MB"})
    assert status_of(post(made.app, b"\x0a\x00" * (6 * 1024 * 1024)))[:2] == (413, 8)
    assert place.stored() == []
