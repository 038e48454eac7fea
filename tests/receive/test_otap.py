"""OTAP: each batch is one bundle and has its status, whatever its neighbours are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pyarrow as pa
import pytest
from tests.deliver.exporters.sending import context as exporter_context
from tests.deliver.exporters.sending import send
from tests.patience import until
from tests.receive.harness import Place, Running
from tests.support.otap import OtapCall, Tables, otap_call, tables_of

from holdfast.deliver.exporter import Answer
from holdfast.deliver.exporters import otap as otap_exporter
from holdfast.errors import Overloaded
from holdfast.grpc.messages import read_encoding
from holdfast.grpc.status import CallFailed
from holdfast.quiver import Position, Quiver
from holdfast.receive.openlineage import Config as OpenLineageConfig
from holdfast.receive.otap import Config, OtapReceiver
from holdfast.receive.receiver import ItemCounts
from holdfast.settings import Secret
from holdfast.signals.event import ArrowData
from holdfast.signals.otap.messages import BatchArrowRecords
from holdfast.signals.otap.stream_decoder import OtapBatch, StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otap_units import HEADERS_SLOT
from holdfast.signals.otlp.kinds import OtlpKind

IDS = [f"{number:016x}" for number in range(1, 6)]
SPANS = tables_of(OtlpKind.TRACES, IDS)
KB = 1024


def numbered(count: int, first: int = 1) -> list[str]:
    return [f"{number:016x}" for number in range(first, first + count)]


class RunningOtap(Running):
    """The receiver on a real socket."""

    receiver: OtapReceiver  # type: ignore[assignment]

    def __init__(self, place: Place, **settings: Any) -> None:
        super().__init__(OpenLineageConfig(), place)
        address = {"listening_addr": "127.0.0.1:0"}
        self.receiver = OtapReceiver(Config(**{**address, **settings}), place.context())

    @property
    def target(self) -> str:
        return self.receiver.addresses[0].removeprefix("grpc://")


@contextmanager
def running(place: Place, **settings: Any) -> Iterator[RunningOtap]:
    server = RunningOtap(place, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def stored(quiver: Quiver) -> list[Tables]:
    """Return the tables of the stored batches, plain and without what is kept beside them."""
    bundles = [quiver.bundle(seq) for seq in range(quiver.statistics().next_seq)]
    return [dict(bundle.slots) for bundle in bundles if bundle is not None]


def plain(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    return {slot: rows.to_pylist() for slot, rows in tables.items()}


def held_bytes(server: RunningOtap) -> int:
    held = server.receiver.statistics().in_flight_bytes
    return held + server.receiver.intake.remembered.in_flight_bytes


def first_refusal(call: OtapCall) -> str:
    """Return the first status that is not OK, or how the call ended."""
    with suppress(grpc.RpcError, StopIteration):
        while True:
            _, code, said = call.status()
            if code != "OK":
                return f"{code}: {said}"
    return f"the call: {call.ended()}"


def with_bad_rows(tables: Tables) -> Tables:
    """Return tables whose attributes belong to a span that there is not."""
    parents = pa.array([999] * len(IDS), pa.uint16())
    attributes = tables["otap_span_attrs"].set_column(0, "parent_id", parents)
    return {**tables, "otap_span_attrs": attributes}


@pytest.mark.parametrize("packing", [None, "zstd"])
def test_every_batch_is_a_bundle_that_stands_for_itself(place: Place, packing: Any) -> None:
    sent: list[Tables] = []
    with running(place, keep_headers=["x-tenant"]) as server:
        for kind in OtlpKind:
            encoder = StreamEncoder(compression=packing)
            with otap_call(server.target, kind, {"x-tenant": "stream"}) as call:
                for number in range(1, 4):
                    tables = tables_of(kind, IDS[:number])
                    headers = {"x-tenant": "batch"} if number == 2 else {}
                    call.send(encoder.encode(number, tables, headers))
                    # One at a time, so that the order in which they are stored is known.
                    assert call.status() == (number, "OK", "")
                    sent.append(tables)
                assert call.finish() == "OK"
        found = stored(place.quiver)
        beside = [tables.pop(HEADERS_SLOT).to_pylist() for tables in found]
        assert [plain(tables) for tables in found] == [plain(tables) for tables in sent]
        of_batches = ["stream", "batch", "stream"] * 3
        assert beside == [[{"name": "x-tenant", "value": value}] for value in of_batches]
        counted = server.receiver.statistics()
        assert (counted.received, counted.accepted, counted.rejected) == (9, 9, {})
        assert counted.items == {kind.value: ItemCounts(accepted=6) for kind in OtlpKind}


def test_headers_that_no_backend_would_take_are_refused_with_their_batch(place: Place) -> None:
    values = ["a\r\nx-evil: 1", "a\x00", " a", "a\t", "x" * 5000, "good one"]
    encoder = StreamEncoder()
    with running(place, keep_headers=["x-tenant"]) as server, otap_call(server.target) as call:
        for number, value in enumerate(values):
            call.send(encoder.encode(number, SPANS, {"x-tenant": value}))
            answer = call.status()
            assert answer[:2] == (number, "OK" if value == "good one" else "INVALID_ARGUMENT")
        assert call.finish() == "OK"
        counted = server.receiver.statistics()
        assert (counted.accepted, counted.rejected) == (1, {"invalid": 5})
        assert counted.items["traces"].refused == 5 * len(IDS)


def test_a_bad_batch_has_its_status_and_those_around_it_theirs(place: Place) -> None:
    encoder = StreamEncoder()
    with running(place) as server, otap_call(server.target) as call:
        tables = (SPANS, with_bad_rows(SPANS), SPANS)
        messages = [encoder.encode(number, one) for number, one in enumerate(tables, start=1)]
        call.send(*messages)
        call.send(BatchArrowRecords(batch_id=4).SerializeToString())
        assert call.statuses(4) == {1: "OK", 2: "INVALID_ARGUMENT", 3: "OK", 4: "OK"}
        assert call.finish() == "OK"
        assert [plain(tables) for tables in stored(place.quiver)] == [plain(SPANS)] * 2
        (letter,) = place.letters()
        assert (letter.payload, letter.slot) == (messages[1], "otap_message")
        assert letter.headers == {"signal": "traces"}
        assert server.receiver.statistics().rejected == {"invalid": 1}


def test_a_stream_that_is_broken_ends_and_the_next_one_begins_anew(place: Place) -> None:
    with running(place) as server:
        encoder = StreamEncoder()
        first = encoder.encode(1, SPANS)
        broken = BatchArrowRecords.FromString(
            encoder.encode(2, tables_of(OtlpKind.TRACES, ["0" * 16]))
        )
        for payload in broken.arrow_payloads:
            payload.record = payload.record[: len(payload.record) // 2]
        with otap_call(server.target) as call:
            call.send(first, broken.SerializeToString(), encoder.encode(3, SPANS))
            assert call.statuses(2) == {1: "OK", 2: "INVALID_ARGUMENT"}
            # The third builds on the second: it has no status, and its sender sends it again.
            assert call.ended() == "OK"
        with otap_call(server.target) as call:
            call.send(b"\xff\xff")
            assert call.ended() == "INVALID_ARGUMENT"
        with otap_call(server.target) as call:
            call.send(StreamEncoder().encode(3, SPANS))
            assert call.statuses(1) == {3: "OK"}
        assert len(stored(place.quiver)) == 2
        assert len(place.letters()) == 2


def test_statuses_wait_for_the_disk_and_come_in_any_order_and_are_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = [asyncio.Event() for _ in range(6)]
    begun: list[int] = []
    append = place.quiver.append_async

    async def slow(tables: Tables, **options: Any) -> Any:
        number = len(begun)
        begun.append(number)
        await gates[number].wait()
        if number == 1:
            raise Overloaded("the disk is slow", hint="wait", retry_after_s=7)
        return await append(tables, **options)

    monkeypatch.setattr(place.quiver, "append_async", slow)
    encoder = StreamEncoder()
    with running(place, response_stream_channel_size=3) as server, otap_call(server.target) as call:
        call.send(*(encoder.encode(number, SPANS) for number in range(6)))
        until(lambda: len(begun) == 3, "three batches")
        server.run(opened(gates[2]))
        assert call.status() == (2, "OK", "")
        until(lambda: len(begun) == 4, "one more")
        server.run(opened(gates[1]))
        batch_id, code, said = call.status()
        assert (batch_id, code) == (1, "UNAVAILABLE")
        assert "the disk is slow" in said
        for gate in gates:
            server.run(opened(gate))
        assert call.statuses(4) == dict.fromkeys([0, 3, 4, 5], "OK")
        assert call.finish() == "OK"
        until(lambda: held_bytes(server) == 0, "nothing held")
        held = server.receiver.statistics()
        assert (held.accepted, held.rejected) == (5, {"unavailable": 1})
        assert held.items["traces"] == ItemCounts(accepted=25, refused=5)


async def opened(gate: asyncio.Event) -> None:
    gate.set()


@pytest.mark.parametrize(
    ("limits", "code", "limit"),
    [
        # Of one message; of what it unpacks to; of what a stream, and all of them, may remember.
        ({"max_body_size": 16 * KB}, "the call: RESOURCE_EXHAUSTED", ""),
        ({"max_expanded_size": 32 * KB}, "RESOURCE_EXHAUSTED", "batch_bytes_max"),
        ({"max_stream_size": 32 * KB}, "RESOURCE_EXHAUSTED", "dictionary_bytes_max"),
        ({"max_stream_size": 200 * KB}, "UNAVAILABLE", "dictionary_bytes_max"),
        ({"max_streams_size": 200 * KB}, "UNAVAILABLE", "max_streams_size"),
    ],
)
def test_what_is_too_large_is_refused_and_the_next_stream_is_taken(
    place: Place, limits: dict[str, int], code: str, limit: str
) -> None:
    encoder = StreamEncoder()
    larger = [tables_of(OtlpKind.TRACES, numbered(2000, first)) for first in (1, 2001, 4001)]
    messages = [encoder.encode(number, tables) for number, tables in enumerate(larger)]
    with running(place, limits=limits) as server:
        with otap_call(server.target) as call:
            call.send(*messages)
            refusal = first_refusal(call)
            assert refusal.startswith(code)
            assert limit in refusal
        with otap_call(server.target) as call:
            call.send(StreamEncoder().encode(9, tables_of(OtlpKind.TRACES, IDS[:1])))
            assert call.statuses(1) == {9: "OK"}
        until(lambda: held_bytes(server) == 0, "nothing held")


def test_what_is_being_stored_counts_against_the_bound_of_all_streams(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, gate, begun = place.quiver.append_async, asyncio.Event(), list[Tables]()

    async def slow(tables: Tables, **options: Any) -> Any:
        begun.append(tables)
        await gate.wait()
        return await append(tables, **options)

    monkeypatch.setattr(place.quiver, "append_async", slow)
    encoder, tables = StreamEncoder(), tables_of(OtlpKind.TRACES, numbered(2000))
    limits = {"max_body_size": 512 * KB, "max_expanded_size": 512 * KB}
    limits["max_in_flight_size"] = 1024 * KB
    with running(place, limits=limits) as server, otap_call(server.target) as call:
        for number in range(4):
            call.send(encoder.encode(number, tables))
            until(lambda: len(begun) == number + 1, "a batch")  # noqa: B023
        # Each takes 192 kB and, until it is read, the 102 kB of its message.
        call.send(encoder.encode(4, tables))
        assert call.statuses(1) == {4: "UNAVAILABLE"}
        server.run(opened(gate))
        assert call.statuses(4) == dict.fromkeys(range(4), "OK")
        assert server.receiver.statistics().rejected == {"busy": 1}


def test_tokens_and_rates_are_asked_for_when_a_stream_begins(place: Place) -> None:
    token = {"name": "shop", "token": Secret("x" * 20), "events_per_s": 1000, "burst_events": 5}
    with running(place, tokens=[token]) as server:
        with otap_call(server.target) as call:
            assert call.ended() == "UNAUTHENTICATED"
        encoder = StreamEncoder()
        sent = {"authorization": f"Bearer {'x' * 20}"}
        with otap_call(server.target, metadata=sent) as call:
            call.send(*(encoder.encode(number, SPANS) for number in range(10)))
            # Held up, and not refused: 50 spans, and five of them at once.
            assert call.statuses(10) == dict.fromkeys(range(10), "OK")
            assert call.finish() == "OK"
        headers = [tables[HEADERS_SLOT].to_pylist() for tables in stored(place.quiver)]
        assert headers == [[{"name": "client", "value": "shop"}]] * 10


def test_what_is_under_way_when_it_stops_is_answered(place: Place) -> None:
    encoder = StreamEncoder()
    server = RunningOtap(place)
    server.start()
    with otap_call(server.target) as call:
        call.send(encoder.encode(1, SPANS))
        assert call.statuses(1) == {1: "OK"}
        server.stop()
        assert call.ended() == "OK"
    assert len(stored(place.quiver)) == 1


def test_another_holdfast_sends_with_zstd_inside_and_outside(place: Place) -> None:
    tables = [tables_of(OtlpKind.TRACES, numbered(count)) for count in (1, 3000, 2)]
    with running(place) as server:
        settings: dict[str, Any] = {
            "url": f"http://{server.target}",
            "arrow": {"payload_compression": "zstd"},
        }
        made = otap_exporter.make(otap_exporter.Config(**settings), exporter_context())
        units = [
            ArrowData("", Position(seq), one, 0, OtlpKind.TRACES.value)
            for seq, one in enumerate(tables)
        ]
        assert send(made, units, units) == [Answer(), Answer()]
        found = sorted(stored(place.quiver), key=lambda one: one["otap_spans"].num_rows)
        counts = [one["otap_spans"].num_rows for one in found]
        assert counts == [1, 1, 2, 2, 3000, 3000]
        assert plain(found[-1]) == plain(tables[1])


def test_batches_are_read_beside_the_event_loop_however_small_they_are(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three kilobytes may unpack to what takes a tenth of a second to read."""
    loops: list[bool] = []
    decode = StreamDecoder.decode

    def watched(decoder: StreamDecoder, message: bytes) -> OtapBatch:
        loops.append(asyncio._get_running_loop() is not None)
        return decode(decoder, message)

    monkeypatch.setattr(StreamDecoder, "decode", watched)
    with running(place) as server, otap_call(server.target) as call:
        call.send(StreamEncoder().encode(1, SPANS))
        assert call.statuses(1) == {1: "OK"}
        assert call.finish() == "OK"
    assert loops == [False]


def test_what_the_collector_writes_in_its_own_way_is_taken(place: Place) -> None:
    """A scope without fields, and zstd under the name of a level."""
    scope = pa.StructArray.from_buffers(pa.struct([]), len(IDS), [None])
    tables = {**SPANS, "otap_spans": SPANS["otap_spans"].append_column("scope", scope)}
    with running(place) as server, otap_call(server.target) as call:
        call.send(StreamEncoder().encode(1, tables))
        assert call.status() == (1, "OK", "")
        assert [plain(one) for one in stored(place.quiver)] == [plain(tables)]
    assert read_encoding(b"zstdarrow5") == b"zstd"
    with pytest.raises(CallFailed):
        read_encoding(b"zstdarrow")
