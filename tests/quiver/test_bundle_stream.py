"""The streams of an Arrow bundle are those of Arrow's own writer, whichever way they were made."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.quiver.base import bundle
from holdfast.quiver.base.bundle import decode_arrow, encode_arrow, read_stream

PLAIN = pa.record_batch({"a": pa.array([1, None, 3]), "s": pa.array(["x", "", None])})
NESTED = pa.record_batch({"l": pa.array([[1], [], None]), "d": pa.array([{"x": 1}, None, {}])})
DICTIONARY = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()})
WITH_METADATA = PLAIN.replace_schema_metadata({"origin": "test"})
NO_ROWS = PLAIN.slice(0, 0)


def written_by_arrow(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


@pytest.mark.parametrize(
    "batch",
    [PLAIN, PLAIN.slice(1, 1), NESTED, NESTED.slice(1), DICTIONARY, WITH_METADATA],
    ids=["plain", "slice", "nested", "nested slice", "dictionary", "metadata"],
)
def test_a_stream_has_the_bytes_of_arrows_own_writer(batch: pa.RecordBatch) -> None:
    for _ in range(2):  # a schema is remembered after the first time
        (slot,) = decode_arrow(memoryview(encode_arrow(batch, 1 << 20).payload))
        assert bytes(slot.stream) == written_by_arrow(batch)
        assert read_stream(slot.stream).equals(batch, check_metadata=True)


class Loose(pa.ExtensionType):  # type: ignore[misc]
    """A type that finds all of its kind equal, whatever they are stored as."""

    def __init__(self, note: bytes) -> None:
        self.note = note
        super().__init__(pa.int64(), "test.loose")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.note

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, note: bytes) -> Loose:
        return cls(note)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loose)

    def __hash__(self) -> int:
        return 1


INT = pa.field("item", pa.int64())
NEARLY_THE_SAME = [
    pa.field("a", pa.list_(INT)),
    pa.field("a", pa.list_(INT), nullable=False),
    pa.field("a", pa.list_(INT), metadata={"k": "1"}),
    pa.field("a", pa.list_(INT.with_name("element"))),
    pa.field("a", pa.list_(INT.with_nullable(False))),
    pa.field("a", pa.list_(INT.with_metadata({"k": "1"}))),
    pa.field("a", pa.list_(INT.with_metadata({"k": "2"}))),
    pa.field("a", pa.map_(pa.string(), INT)),
    pa.field("a", pa.map_(pa.string(), INT.with_name("value"))),
    pa.field("a", pa.map_(pa.string(), INT, keys_sorted=True)),
    pa.field("a", pa.timestamp("us", "UTC")),
    pa.field("a", pa.timestamp("us", "Etc/UTC")),
    pa.field("a", pa.struct([pa.field("x", Loose(b"one"))])),
    pa.field("a", pa.struct([pa.field("x", Loose(b"two"))])),
]


@pytest.mark.parametrize("later", NEARLY_THE_SAME, ids=str)
@pytest.mark.parametrize("earlier", NEARLY_THE_SAME, ids=str)
def test_nearly_the_same_schema_is_not_mistaken_for_the_one_before(
    earlier: pa.Field, later: pa.Field
) -> None:
    for field in (earlier, later):
        rows = pa.nulls(1, field.type) if field.nullable else pa.array([[1]], field.type)
        batch = pa.RecordBatch.from_arrays([rows], schema=pa.schema([field]))
        (slot,) = decode_arrow(memoryview(encode_arrow(batch, 1 << 20).payload))
        assert bytes(slot.stream) == written_by_arrow(batch)


def test_slots_stand_one_after_the_other() -> None:
    given = {"a": PLAIN, "b": DICTIONARY, "c": NO_ROWS, "d": NESTED}
    encoded = encode_arrow(given, 1 << 20)
    slots = decode_arrow(memoryview(encoded.payload))
    assert [(slot.name, slot.rows) for slot in slots] == [("a", 3), ("b", 3), ("c", 0), ("d", 3)]
    assert all(read_stream(slot.stream).equals(given[slot.name]) for slot in slots)
    assert encoded.events == 9


def test_remembered_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PLAIN_SCHEMAS_MAX", 3)
    for number in range(10):
        encode_arrow(pa.record_batch({f"column_{number}": pa.array([number])}), 1 << 20)
        encode_arrow({f"slot_{number}": PLAIN}, 1 << 20)
    assert len(bundle._plain_schemas) <= 3
    assert len(bundle._last_schemas) <= 3
