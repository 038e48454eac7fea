"""Broken requests over the wire: their verdicts are those of protobuf's reader in plain Python."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)
from tests.grpc.harness import headers_of
from tests.receive.harness import Place, request_bytes
from tests.signals.otlp.plain_reader import readings_of
from tests.signals.otlp.telemetry import mutated, request

from holdfast.dead_letters.queue import DeadLettersSettings
from holdfast.graph.statistics import resident_bytes
from holdfast.grpc.http2 import PREFACE
from holdfast.grpc.messages import framed
from holdfast.grpc.status import StatusCode
from holdfast.receive.otlp import Config, OtlpReceiver
from holdfast.signals.otlp.kinds import OtlpKind

DEFAULT_MUTANTS = 20_000
SLOW_MUTANTS = 1_000_000
AT_ONCE = 20_000
# How much the process may grow between the first and the last of a million.
GROWTH_BYTES_MAX = 256 * 1024 * 1024
CALLS, CONNECTIONS = 64, 16
HTTP_OK, HTTP_BAD = 200, 400

Mutants = list[tuple[OtlpKind, bytes]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Few of them are kept: that they can be is shown elsewhere, and each costs a sync."""
    made = Place(tmp_path, DeadLettersSettings.model_validate({"rejected": {"events_per_s": 1}}))
    yield made
    made.close()


def mutants_of(seed: int, count: int) -> Mutants:
    chance = random.Random(seed)
    sound = [(kind, request(kind, chance, items=1)) for kind in OtlpKind for _ in range(20)]
    return [(kind, mutated(body, chance)) for kind, body in chance.choices(sound, k=count)]


async def over_grpc(receiver: OtlpReceiver, mutants: Mutants) -> list[bool]:
    """Send each as a call, many at once on one connection; by hand, which is the cheapest way."""
    host, _, port = receiver.addresses[0].removeprefix("grpc://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        PREFACE + SettingsFrame(0).serialize() + SettingsFrame(0, flags=["ACK"]).serialize()
    )
    encoder, decoder = Encoder(), Decoder()
    encoder.header_table_size = 0
    heads = {kind: encoder.encode(headers_of(kind.grpc_path)) for kind in OtlpKind}
    taken: dict[int, bool] = {}
    sent = 0
    while len(taken) < len(mutants):
        while sent < len(mutants) and sent - len(taken) < CALLS:
            (kind, body), stream_id = mutants[sent], 2 * sent + 1
            head = HeadersFrame(stream_id, heads[kind], flags=["END_HEADERS"])
            data = DataFrame(stream_id, framed(body), flags=["END_STREAM"])
            writer.write(head.serialize() + data.serialize())
            sent += 1
        frame, length = Frame.parse_frame_header(memoryview(await reader.readexactly(9)))
        payload = await reader.readexactly(length)
        assert not isinstance(frame, GoAwayFrame | RstStreamFrame), payload
        if not isinstance(frame, HeadersFrame):
            continue
        fields: dict[Any, Any] = dict(decoder.decode(payload))
        if "grpc-status" in fields:
            place, code = frame.stream_id // 2, int(fields["grpc-status"])
            assert code in (StatusCode.OK, StatusCode.INVALID_ARGUMENT), (code, mutants[place])
            taken[place] = code == StatusCode.OK
    writer.close()
    return [taken[place] for place in range(len(mutants))]


async def over_http(receiver: OtlpReceiver, mutants: Mutants) -> list[bool]:
    host, _, port = receiver.addresses[1].removeprefix("http://").rpartition(":")
    taken: dict[int, bool] = {}

    async def work(places: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for place in places:
            kind, body = mutants[place]
            content_type = "application/x-protobuf"
            writer.write(request_bytes(body, kind.http_path, content_type=content_type))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            status = int(head[9:12])
            assert status in (HTTP_OK, HTTP_BAD), (status, body.hex())
            taken[place] = status == HTTP_OK
        writer.close()

    places = iter(range(len(mutants)))
    await asyncio.gather(*(work(places) for _ in range(CONNECTIONS)))
    return [taken[place] for place in range(len(mutants))]


async def verdicts_of(receiver: OtlpReceiver, mutants: Mutants) -> list[bool]:
    """Send half of them over each transport."""
    half = len(mutants) // 2
    found = await over_grpc(receiver, mutants[:half])
    return found + await over_http(receiver, mutants[half:])


def compare(loop: asyncio.Runner, receiver: OtlpReceiver, seed: int, count: int) -> Counter[bytes]:
    """Send broken requests; return those that were taken."""
    mutants = mutants_of(seed, count)
    half = count // 2
    verdicts = loop.run(verdicts_of(receiver, mutants))
    wanted = [reading is not None for reading in readings_of(mutants)]
    wrong = [
        f"{'gRPC' if place < half else 'HTTP'} {kind} {body.hex()}"
        for place, (kind, body) in enumerate(mutants)
        if verdicts[place] != wanted[place]
    ]
    assert not wrong, f"seed {seed}: {len(wrong)} verdicts differ, such as {wrong[:3]}"
    # Both ends of the scale were met: a receiver that takes all, or nothing, is not compared.
    assert any(verdicts[:half])
    assert not all(verdicts[half:])
    # An empty request is taken, and there is nothing to store.
    return Counter(body for (_, body), is_taken in zip(mutants, verdicts, strict=True)
                   if is_taken and body)  # fmt: skip


@contextmanager
def receiving(place: Place) -> Iterator[tuple[asyncio.Runner, OtlpReceiver]]:
    """Listen, in the loop that sends, too: threads would take turns with every call."""
    config = Config(listening_addr="127.0.0.1:0", http_listening_addr="127.0.0.1:0")
    receiver = OtlpReceiver(config, place.context())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(receiver.start())
        try:
            yield loop, receiver
        finally:
            loop.run(receiver.stop(5.0))


@pytest.mark.timeout(1200)
def test_verdicts_over_the_wire_are_those_of_the_plain_reader(place: Place) -> None:
    with receiving(place) as (loop, receiver):
        taken = compare(loop, receiver, 11, DEFAULT_MUTANTS)
    stored = Counter[bytes]()
    for kind in OtlpKind:
        table = place.quiver.scan(["payload"], slot=kind.slot).read_all()
        stored.update(table["payload"].to_pylist())
    assert stored == taken


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_verdicts_over_the_wire_and_no_growth(place: Place) -> None:
    with receiving(place) as (loop, receiver):
        compare(loop, receiver, 2000, AT_ONCE)
        before_bytes = resident_bytes()
        for seed in range(1, SLOW_MUTANTS // AT_ONCE):
            compare(loop, receiver, 2000 + seed, AT_ONCE)
        assert resident_bytes() - before_bytes < GROWTH_BYTES_MAX
        statistics = receiver.statistics()
        assert (statistics.in_flight_bytes, statistics.in_flight_requests) == (0, 0)
