"""Arbitrary requests: every answer is described, nothing grows, and a 200 is in the quiver."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import jsonschema_rs
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.receive.harness import PATH, Exchange, Place, Reply, event_bytes

from holdfast.receive.admission import TokenSettings
from holdfast.receive.body import RequestLimits
from holdfast.receive.http_app import HttpApp
from holdfast.receive.openapi import openapi_document
from holdfast.receive.openlineage import Config
from holdfast.settings import Secret

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "gzip, zstd": lambda body: zstandard.compress(gzip.compress(body)),
}
LIMITS = RequestLimits(
    max_body_bytes=20_000, max_expanded_bytes=20_000, max_in_flight_bytes=60_000,
    max_batch_events=20, body_timeout_s=5.0,
)  # fmt: skip

EVENTS = st.integers(0, 99).map(event_bytes) | st.sampled_from(
    [
        b"{}",
        b"[]",
        b"null",
        b'{"a": NaN}',
        b'{"run": "\\ud800"}',
        b"\xff",
        b"[" * 2000,
        event_bytes(job={"namespace": "other", "name": "x"}),
        event_bytes(x="y" * 30_000),
    ]
)
BATCHES = st.lists(EVENTS, max_size=25).flatmap(
    lambda events: st.sampled_from(
        [
            b"[" + b",".join(events) + b"]",
            b'{"events": [' + b" , ".join(events) + b"]}",
            b"\r\n".join(events),
        ]
    )
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A body with some bytes cut out, put in or doubled."""
    body = bytearray(draw(EVENTS | BATCHES))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(body)))
        body[place : place + draw(st.integers(0, 5))] = draw(st.binary(max_size=5))
    return bytes(body)


BODIES = EVENTS | BATCHES | damaged() | st.binary(max_size=200)
# Mostly a path and a method that lead somewhere, or nothing else would ever be tried.
KNOWN_PATHS = [PATH] * 3 + [f"{PATH}/batch"] * 3 + [f"{PATH}/", f"/{PATH}", f"{PATH}/validate", "/"]
PATHS = st.sampled_from([*KNOWN_PATHS, "/openapi.json"] * 3).flatmap(
    lambda path: st.just(path) | st.text(max_size=20) if path == "/" else st.just(path)
)
METHODS = st.sampled_from(["POST"] * 30 + ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "post", "X"])
TYPES = st.sampled_from(["application/json"] * 12 + ["application/x-ndjson", "text/plain", ""])
TOKENS = st.sampled_from(["Bearer good"] * 15 + ["Bearer picky", "Bearer bad", "", "Basic good"])
HEADER_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Exchange, bytes | None]:
    """A request, and the body it stands for if its encoding is sound."""
    body = draw(BODIES)
    encoding = draw(st.sampled_from([*PACKERS, *["identity"] * 5, "gzip", "br"]))
    is_sound = encoding in PACKERS and draw(st.integers(0, 9)) != 7
    packed = PACKERS[encoding](body) if is_sound else body
    headers = {
        "content-type": draw(TYPES),
        "content-encoding": encoding,
        "authorization": draw(TOKENS),
        **draw(st.dictionaries(st.sampled_from(["x-a", "content-length", "host"]), HEADER_TEXT)),
    }
    cuts = sorted(draw(st.lists(st.integers(0, len(packed)), max_size=4)))
    bounds = [0, *cuts, len(packed)]
    chunks = [packed[start:end] for start, end in pairwise(bounds)]
    disconnects = draw(st.integers(0, 19)) == 13
    exchange = Exchange(draw(METHODS), draw(PATHS), headers, chunks, disconnects)
    return exchange, body if is_sound or encoding == "identity" else None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("fuzz"))
    yield place
    place.close()


@pytest.fixture(scope="module")
def app(place: Place) -> HttpApp:
    tokens = (
        TokenSettings(name="good", token=Secret("good")),
        TokenSettings(name="picky", token=Secret("picky"), namespaces=("jobs",)),
    )
    return place.app(Config(limits=LIMITS, tokens=tokens))


class Described:
    """The OpenAPI document as a judge of answers."""

    def __init__(self) -> None:
        self._whole = openapi_document([PATH], asks_token=True)
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def holds(self, exchange: Exchange, reply: Reply) -> bool:
        """Whether the document has this answer to this request."""
        item = self._whole["paths"].get(exchange.path.rstrip("/").replace("//", "/"), {})
        operation = item.get("get" if exchange.method == "HEAD" else exchange.method.lower())
        if operation is None or exchange.method == "post":
            response = self._whole["components"]["responses"].get(str(reply.status))
            assert reply.status in (404, 405)
        else:
            response = operation["responses"][str(reply.status)]
        if "$ref" in response:
            response = self._whole["components"]["responses"][response["$ref"].rpartition("/")[2]]
        assert set(map(str.lower, response.get("headers", {}))) <= set(reply.headers)
        schema = response["content"]["application/json"]["schema"]
        whole = {"components": self._whole["components"], **schema}
        validator = self._validators.setdefault(
            json.dumps(schema), jsonschema_rs.Draft202012Validator(whole)
        )
        return validator.is_valid(reply.document)


DESCRIBED = Described()


def check_stored(place: Place, exchange: Exchange, body: bytes, reply: Reply, first: int) -> None:
    """Whatever was answered with success is in the quiver as it came, and nothing else is."""
    found = [
        bundle.payloads
        for seq in range(first, place.quiver.statistics().next_seq)
        if (bundle := place.quiver.bundle(seq)) is not None
    ]
    path = exchange.path.rstrip("/")
    if reply.status != 200 or path.endswith(("/validate", "/openapi.json")):
        assert found == []
    elif path.endswith("/batch"):
        successful = reply.document["summary"]["successful"]
        stored = [event for bundle in found for event in bundle]
        assert len(stored) == successful
        assert len(found) == (1 if successful else 0)
        assert all(event in body for event in stored)
    else:
        assert found == [[body]]
        assert reply.document["position"] == f"{place.quiver.quiver_id}/{first}/0"


@settings(max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
@given(requests())
def test_any_request_is_answered_as_described(
    app: HttpApp, place: Place, request: tuple[Exchange, bytes | None]
) -> None:
    exchange, body = request
    before = app.statistics()
    first = place.quiver.statistics().next_seq
    reply = asyncio.run(exchange.run(app))
    after = app.statistics()
    assert (after.in_flight_requests, after.in_flight_bytes) == (0, 0)
    assert after.received == after.accepted + sum(after.rejected.values())
    assert after.requests == before.requests + 1
    if reply is None:
        assert exchange.disconnects
        is_dry_run = exchange.path.rstrip("/").endswith("/validate")
        assert after.received == before.received + (0 if is_dry_run else 1)
        return
    assert DESCRIBED.holds(exchange, reply)
    if body is None:
        assert reply.status != 200 or exchange.path == "/openapi.json"
    else:
        check_stored(place, exchange, body, reply, first)


@settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(requests(), min_size=2, max_size=20))
def test_many_requests_at_once_leave_nothing(
    app: HttpApp, requests: list[tuple[Exchange, bytes | None]]
) -> None:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(exchange.run(app) for exchange, _ in requests))

    replies = asyncio.run(all_at_once())
    statistics = app.statistics()
    assert (statistics.in_flight_requests, statistics.in_flight_bytes) == (0, 0)
    for reply, (exchange, _) in zip(replies, requests, strict=True):
        assert reply is None or DESCRIBED.holds(exchange, reply)
