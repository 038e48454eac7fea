"""How often a body is in memory while its request is under way: once, and not beside its bundle."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import zstandard
from tests.patience import PATIENCE_S
from tests.receive.harness import PATH, Exchange, Place, event_bytes
from tests.signals.otlp.telemetry import request

from holdfast.grpc.messages import MessageReader, framed
from holdfast.quiver import Receipt
from holdfast.quiver.base.config import AckLevel
from holdfast.receive import checks, otlp_checks
from holdfast.receive.admission import Admission
from holdfast.receive.body import RequestLimits, read_body
from holdfast.receive.http_app import HttpApp
from holdfast.receive.openlineage import Config as LineageConfig
from holdfast.receive.openlineage import OpenLineageReceiver
from holdfast.receive.otlp import Config, OtlpReceiver
from holdfast.signals.otlp.kinds import OtlpKind

PIECE_BYTES = 64 * 1024
# Objects that are no body, and what a growing block has ahead of it (an eighth).
SLACK = 1.35


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    yield
    tracemalloc.stop()


def pieces_of(body: bytes) -> list[bytes]:
    return [body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)]


@pytest.mark.parametrize("encoding", [b"", b"gzip", b"zstd"])
def test_a_body_is_in_memory_once_while_it_is_read(encoding: bytes) -> None:
    """30 MB were joined when all pieces were there, and were there twice."""
    body = os.urandom(3_072_000)
    packed = {b"": body, b"gzip": gzip.compress(body), b"zstd": zstandard.compress(body)}
    waiting = iter([*pieces_of(packed[encoding]), b""])
    limits = RequestLimits(
        max_body_bytes=2 * len(body),
        max_expanded_bytes=len(body),
        body_timeout_s=PATIENCE_S,
        min_body_bytes_per_s=1,
    )

    async def receive() -> dict[str, Any]:
        piece = bytes(bytearray(next(waiting)))  # as one that has just come
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    encodings = [encoding] if encoding else []
    admitted = Admission(1, 4 * len(body)).enter(0)

    async def go() -> int:
        tracemalloc.start()
        found = await read_body(receive, 0, encodings, limits, admitted)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        assert found == body
        return peak_bytes

    assert asyncio.run(go()) < SLACK * len(body)


def test_a_message_of_a_call_is_in_memory_once_while_it_comes() -> None:
    body = os.urandom(3_072_000)
    frames = pieces_of(framed(body))
    reader = MessageReader(len(body))
    tracemalloc.start()
    messages = [message for frame in frames for message in reader.feed(bytes(bytearray(frame)))]
    found = messages.pop().pieces.whole()
    assert tracemalloc.get_traced_memory()[1] < SLACK * len(body)
    assert found == body


class Holding:
    """In a quiver's place: makes a bundle of what it is given, and has it on disk when it may."""

    quiver_id = "holding"

    def __init__(self) -> None:
        self.has_it = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.bundle = b""

    async def append_raw_async(self, payloads: bytes | Sequence[bytes], **_: object) -> Receipt:
        one = payloads if isinstance(payloads, bytes) else b"".join(payloads)
        self.bundle = b"head" + one
        del payloads, one
        self.has_it.set()
        await self.may_answer.wait()
        return Receipt(self.quiver_id, 0, 1, 1, AckLevel.FSYNCED)


def otlp_app(place: Place, holding: Holding) -> HttpApp:
    context = replace(place.context(), quiver=cast(Any, holding))
    return OtlpReceiver(Config(http_listening_addr="127.0.0.1:0"), context).app


def lineage_app(place: Place, holding: Holding) -> HttpApp:
    return OpenLineageReceiver(
        LineageConfig(), replace(place.context(), quiver=cast(Any, holding))
    ).app


def copies_in_flight(
    place: Place, make: Callable[[Place, Holding], Any], path: str, kind: str, body: bytes
) -> float:
    """Return how often a body is in memory while its bundle is on its way to the disk."""

    async def go() -> float:
        holding = Holding()
        exchange = Exchange(path=path, headers={"content-type": kind}, chunks=pieces_of(body))
        app = make(place, holding)
        tracemalloc.start()
        doing = asyncio.create_task(exchange.run(app))
        await asyncio.wait_for(holding.has_it.wait(), PATIENCE_S)
        held_bytes = tracemalloc.get_traced_memory()[0]
        holding.may_answer.set()
        reply = await doing
        assert reply is not None
        assert reply.status in (200, 201)
        return held_bytes / len(body)

    return asyncio.run(go())


def large_requests() -> dict[str, tuple[Callable[[Place, Holding], Any], str, str, bytes]]:
    one = request(OtlpKind.TRACES, random.Random(1), items=500)
    traces = one * (1 + 1_800_000 // len(one))
    lineage = event_bytes(producer="https://example.org/" + "p" * 2_000_000)
    return {
        "otlp": (otlp_app, OtlpKind.TRACES.http_path, "application/x-protobuf", traces),
        "lineage": (lineage_app, PATH, "application/json", lineage),
    }


@pytest.mark.parametrize("kind", ["otlp", "lineage"])
def test_a_body_does_not_stay_beside_the_bundle_that_was_made_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """16 requests of 4 MB took 128 MB while they waited for the disk."""
    monkeypatch.setattr(otlp_checks, "HEAVY_BYTES", 1 << 30)
    monkeypatch.setattr(checks, "HEAVY_BYTES", 1 << 30)
    make, path, content_type, body = large_requests()[kind]
    assert len(body) > 1_500_000
    assert copies_in_flight(place, make, path, content_type, body) < SLACK


def test_a_copy_too_many_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_checks, "HEAVY_BYTES", 1 << 30)
    make, path, content_type, body = large_requests()["otlp"]

    def keeping(place: Place, holding: Holding) -> Any:
        app = make(place, holding)
        kept: list[bytes] = []

        class Keeps:
            is_counted = True

            def __init__(self, inner: Any) -> None:
                self.inner = inner
                self.check_type = inner.check_type

            async def handle(self, request: Any, body: bytes) -> Any:
                kept.append(body)
                return await self.inner.handle(request, body)

        app._endpoints[path] = Keeps(app._endpoints[path])
        return app

    assert copies_in_flight(place, keeping, path, content_type, body) > 2
