"""Bundles as payloads: raw events and record batches come out of the bytes as they went in."""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.batches import numbers, plain_rows
from tests.quiver.machine import Machine

from holdfast.errors import BadInput, BundleTooLarge
from holdfast.quiver.base.bundle import (
    SLOTS_MAX,
    Encoded,
    check_slot,
    decode_arrow,
    encode_arrow,
    encode_raw,
    joined,
    read_stream,
)
from holdfast.quiver.base.frame import NO_WATERMARK, FrameKind
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.segments.segment import held_bundle

LIMIT = 1 << 20

headers_of_one = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
events = st.lists(st.tuples(st.binary(max_size=40), headers_of_one), min_size=1, max_size=8)
slot_names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}\Z")


@given(events, slot_names, st.booleans())
def test_raw_events_come_back_byte_for_byte_with_their_headers(
    given_events: list[tuple[bytes, dict[str, str] | None]], slot: str, with_headers: bool
) -> None:
    payloads = [payload for payload, _ in given_events]
    headers = [header for _, header in given_events] if with_headers else None
    encoded = encode_raw(slot, payloads, headers, LIMIT)
    assert (encoded.kind, encoded.events) == (FrameKind.RAW, len(payloads))
    rows = raw_rows(encoded, slot)
    assert [payload for payload, _ in rows] == payloads
    wanted = [header or None for header in headers] if headers else [None] * len(payloads)
    assert [None if h is None else json.loads(h) for _, h in rows] == wanted


# Around the sizes where parts are copied alone, and without the interpreter's lock; few and many.
part_sizes = st.sampled_from([0, 1, 100, 8 * 1024 - 1, 8 * 1024, 100_000, 256 * 1024, 300_000])


@given(st.lists(part_sizes, max_size=12), st.integers(0, 255))
def test_parts_are_joined_byte_for_byte(sizes: list[int], first: int) -> None:
    parts = [bytes([(first + place) % 256]) * size for place, size in enumerate(sizes)]
    given_parts = [part if place % 2 else pa.py_buffer(part) for place, part in enumerate(parts)]
    assert joined(given_parts).to_pybytes() == b"".join(parts)


@pytest.mark.parametrize("event", [b"\xff\x80", b"\xff" * 5_000])
def test_many_raw_events_come_back_as_a_few_do(event: bytes) -> None:
    """Large bundles are kept in Arrow's memory, whose bytes are signed unless cast."""
    events = [event] * 10
    assert raw_rows(encode_raw("slot", events, None, LIMIT), "slot") == [(event, None)] * 10


@pytest.mark.parametrize("slot", ["", "a/b", 5, None, ["events"]])
def test_a_slot_that_is_no_name_is_refused_each_time(slot: Any) -> None:
    """Also one without a hash: names that were checked are remembered."""
    for _ in range(2):
        with pytest.raises(BadInput, match="is not a slot name"):
            encode_raw(slot, b"event", None, LIMIT)


def raw_rows(encoded: Encoded, slot: str) -> list[tuple[bytes, str | None]]:
    """Return the payloads and headers that a reader sees."""
    held = HeldBundle(0, FrameKind.RAW, 0, NO_WATERMARK, None, 0, encoded.events, encoded.payload)
    return plain_rows(held_bundle(held).slots[slot])


def test_one_payload_needs_no_list() -> None:
    one, two = (encode_raw("s", payloads, None, LIMIT) for payloads in (b"abc", [b"abc"]))
    assert one == two


def test_bytes_like_payloads_are_taken_as_the_bytes_they_are() -> None:
    encoded = encode_raw("s", [bytearray(b"ab"), memoryview(b"cd")], None, LIMIT)  # type: ignore[list-item]
    assert [payload for payload, _ in raw_rows(encoded, "s")] == [b"ab", b"cd"]


@given(slot_names)
def test_every_name_of_the_pattern_is_a_slot_name(name: str) -> None:
    assert check_slot(name) == name


@given(st.dictionaries(slot_names, st.lists(st.integers(0, 9), max_size=4), min_size=1))
def test_slots_come_back_in_their_order_with_their_rows(slots: dict[str, list[int]]) -> None:
    slots["rows"] = [1]
    given_slots = {name: numbers(*values) for name, values in slots.items()}
    encoded = encode_arrow(given_slots, LIMIT)
    assert encoded.kind == FrameKind.ARROW
    assert encoded.events == sum(map(len, slots.values()))
    found = decode_arrow(memoryview(encoded.payload))
    assert [slot.name for slot in found] == list(slots)
    assert [slot.rows for slot in found] == [len(values) for values in slots.values()]
    for slot in found:
        assert read_stream(slot.stream).equals(given_slots[slot.name])


def test_a_table_of_many_chunks_becomes_one_batch_with_dictionaries_and_all() -> None:
    chunks: list[list[str]] = [["a", "b"], ["c", "a"], []]
    words = [pa.array(values, pa.string()).dictionary_encode() for values in chunks]
    table = pa.table({"word": pa.chunked_array(words, words[0].type)})
    (slot,) = decode_arrow(memoryview(encode_arrow(table, LIMIT).payload))
    assert plain_rows(read_stream(slot.stream)) == [("a",), ("b",), ("c",), ("a",)]


def test_a_slice_takes_only_its_own_rows_along() -> None:
    whole = pa.record_batch({"text": ["x" * 1000] * 100})
    assert len(encode_arrow(whole.slice(3, 1), LIMIT).payload) < 3000


def test_streams_stand_at_multiples_of_eight_so_that_reads_need_no_copy() -> None:
    data = {"a": numbers(1), "bb": pa.record_batch({"t": ["odd"]}), "ccc": numbers(1, 2, 3)}
    payload = encode_arrow(data, LIMIT).payload
    slots = decode_arrow(memoryview(payload))
    base = pa.py_buffer(payload).address
    assert len(slots) == 3
    assert all((pa.py_buffer(slot.stream).address - base) % 8 == 0 for slot in slots)


def test_a_schema_keeps_its_metadata_and_its_fields_theirs() -> None:
    field = pa.field("n", pa.int64(), nullable=False, metadata={"unit": "ms"})
    schema = pa.schema([field], metadata={"origin": "here"})
    batch = pa.RecordBatch.from_arrays([pa.array([1])], schema=schema)
    (slot,) = decode_arrow(memoryview(encode_arrow(batch, LIMIT).payload))
    assert read_stream(slot.stream).schema.equals(schema, check_metadata=True)


def test_an_extension_type_nobody_registered_comes_back_as_its_storage_with_its_name() -> None:
    class Nameless(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.int16(), "holdfast.test.nameless")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Nameless:
            return cls()

    array = pa.ExtensionArray.from_storage(Nameless(), pa.array([1, None], pa.int16()))
    (slot,) = decode_arrow(memoryview(encode_arrow(pa.record_batch({"a": array}), LIMIT).payload))
    found = read_stream(slot.stream)
    assert plain_rows(found) == [(1,), (None,)]
    assert found.schema.field("a").metadata[b"ARROW:extension:name"] == b"holdfast.test.nameless"


def test_64_slots_are_the_most() -> None:
    assert SLOTS_MAX == 64
    assert encode_arrow({f"s{n}": numbers(n) for n in range(64)}, LIMIT).events == 64


def test_the_limit_counts_the_bytes_of_the_payload() -> None:
    size = len(encode_arrow(numbers(1, 2, 3), LIMIT).payload)
    assert encode_arrow(numbers(1, 2, 3), size).events == 3
    with pytest.raises(BundleTooLarge, match=f"{size} bytes, the limit is {size - 1}"):
        encode_arrow(numbers(1, 2, 3), size - 1)


@pytest.mark.parametrize("rows", [10, 1_000])
def test_large_record_batches_are_put_together_beside_the_event_loop(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Checking and copying tens of megabytes takes as long as other requests wait."""
    threads: list[int] = []

    def encode(*content: Any, **options: Any) -> Encoded:
        threads.append(threading.get_ident())
        return encode_arrow(*content, **options)

    monkeypatch.setattr("holdfast.quiver.quiver.encode_arrow", encode)
    monkeypatch.setattr("holdfast.quiver.base.bundle.LARGE_BYTES", 4_000)
    receipt = asyncio.run(machine.start().append_async({"events": numbers(*range(rows))}))
    assert receipt.events == rows
    assert (threads == [threading.get_ident()]) is (rows == 10)


def texts_with_offsets(*offsets: int) -> pa.RecordBatch:
    buffers = [None, pa.py_buffer(array("i", offsets)), pa.py_buffer(b"abcdef")]
    return pa.record_batch({"text": pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)})


def test_only_a_trusted_batch_is_not_looked_through_value_by_value(machine: Machine) -> None:
    """Trust is said with each append, so that none is given by mistake."""
    inside = texts_with_offsets(0, 900, 6)
    encode_arrow(inside, LIMIT, trusted=True)
    quiver = machine.start()
    with pytest.raises(BadInput, match="Arrow cannot store"):
        quiver.append(inside)
    with pytest.raises(BadInput, match="Arrow cannot store"):
        asyncio.run(quiver.append_async(inside))
    sound = numbers(1, 2, 3)
    with quiver.transaction() as transaction:
        with pytest.raises(BadInput, match="Arrow cannot store"):
            transaction.append(inside)
        transaction.append(sound)
    assert quiver.append(sound, trusted=True).events == 3
    assert asyncio.run(quiver.append_async(sound, trusted=True)).events == 3
    assert encode_arrow(sound, LIMIT, trusted=True) == encode_arrow(sound, LIMIT)
