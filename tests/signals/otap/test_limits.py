"""Nothing that a stream may make its reader hold is without a bound, and each bound is told."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from itertools import count

import pyarrow as pa
import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st
from tests.signals.otap.tables import batch, column
from tests.signals.otap.test_streams import logs, message, record_of, refusal

from holdfast.signals.otap.dictionaries import GrowingDictionary, own_dictionary
from holdfast.signals.otap.limits import StreamLimits
from holdfast.signals.otap.messages import BatchArrowRecords
from holdfast.signals.otap.payloads import PayloadType
from holdfast.signals.otap.problem import BatchCode, StreamTooLarge
from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otlp.kinds import OtlpKind

LOGS = PayloadType.LOGS


def one_log(table: pa.RecordBatch) -> bytes:
    """Return a message with a table of log records."""
    return message((LOGS, "1", record_of([table], deltas=True)[0]))


def nested(levels: int) -> pa.RecordBatch:
    kind = pa.int8()
    for _ in range(levels - 1):
        kind = pa.struct([pa.field("inner", kind)])
    return batch({"deep": pa.nulls(1, kind)})


def with_headers(number_of_them: int) -> bytes:
    headers = Encoder().encode([(f"name-{number}", "v") for number in range(number_of_them)])
    made = BatchArrowRecords(batch_id=1, headers=headers)
    written: bytes = made.SerializeToString()
    return written


def repeated_dictionaries(times: int) -> bytes:
    """Return rows with a dictionary that is sent several times."""
    first, second = record_of([logs(["a"], pa.uint8()), logs(["b"], pa.uint8())], deltas=False)
    rows_at = second.rindex(b"\xff\xff\xff\xff")
    return message((LOGS, "1", first + second[:rows_at] * times))


# Limit: its value in the test, a message that keeps it, and one that does not.
CASES: dict[str, tuple[int, Callable[[], bytes], Callable[[], bytes]]] = {
    "batch_bytes_max": (
        100,
        lambda: one_log(batch({"a": pa.array([b"x" * 60])})),
        lambda: one_log(batch({"a": pa.array([b"x" * 130])})),
    ),
    "dictionary_bytes_max": (
        64,
        lambda: one_log(logs(["x" * 10], pa.uint8())),
        lambda: one_log(logs(["x" * 100], pa.uint8())),
    ),
    "rows_max": (3, lambda: one_log(logs(["a"] * 3)), lambda: one_log(logs(["a"] * 4))),
    "values_max": (
        3,
        lambda: one_log(batch({"list": pa.array([[1, 2, 3]])})),
        lambda: one_log(batch({"list": pa.array([[1, 2, 3, 4]])})),
    ),
    "tables_max": (
        1,
        lambda: one_log(logs(["a"])),
        lambda: message((LOGS, "1", b""), (PayloadType.LOG_ATTRS, "2", b"")),
    ),
    "fields_max": (2, lambda: one_log(logs(["a"])), lambda: b"\x12\x00" * 3),
    "columns_max": (2, lambda: one_log(logs(["a"])), lambda: one_log(nested(3))),
    "nesting_max": (2, lambda: one_log(nested(2)), lambda: one_log(nested(3))),
    "messages_max": (
        3,
        lambda: one_log(logs(["a"], pa.uint8())),
        lambda: repeated_dictionaries(1),
    ),
    "schema_bytes_max": (
        400,
        lambda: one_log(logs(["a"])),
        lambda: one_log(batch({"x" * 400: pa.array([1])})),
    ),
    "schema_id_characters_max": (
        3,
        lambda: message((LOGS, "123", record_of([logs(["a"])], deltas=True)[0])),
        lambda: message((LOGS, "1234", record_of([logs(["a"])], deltas=True)[0])),
    ),
    "header_bytes_max": (200, lambda: with_headers(4), lambda: with_headers(8)),
}


def test_every_limit_has_a_case() -> None:
    assert set(CASES) == {field.name for field in fields(StreamLimits)}


@pytest.mark.parametrize("name", CASES)
def test_one_step_beyond_a_limit_is_refused(name: str) -> None:
    value, keeps, breaks = CASES[name]
    limits = StreamLimits(**{name: value})
    StreamDecoder(OtlpKind.LOGS, limits).decode(keeps())
    problem = refusal(StreamDecoder(OtlpKind.LOGS, limits), breaks())
    if name == "header_bytes_max":
        assert problem.code is BatchCode.INVALID_ARGUMENT
        assert "headers" in problem.reason
    else:
        assert isinstance(problem, StreamTooLarge)
        assert (problem.limit, problem.code) == (name, BatchCode.RESOURCE_EXHAUSTED)


def test_what_would_unpack_to_much_is_refused_before_it_is_unpacked() -> None:
    zeros = batch({"id": pa.nulls(1 << 23, pa.int8()), "a": pa.nulls(1 << 23, pa.int64())})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, zeros.schema, options=options) as writer:
        writer.write_batch(zeros)
    record = sink.getvalue().to_pybytes()
    assert len(record) < 200_000 < zeros.nbytes
    before_bytes = pa.default_memory_pool().bytes_allocated()
    del zeros, sink, writer
    problem = refusal(StreamDecoder(OtlpKind.LOGS), message((LOGS, "1", record)))
    assert isinstance(problem, StreamTooLarge)
    assert not problem.breaks_stream
    assert pa.default_memory_pool().bytes_allocated() <= before_bytes


@pytest.mark.parametrize(
    "values",
    [
        pa.StructArray.from_buffers(pa.struct([]), 1 << 22, [None]),
        pa.Array.from_buffers(pa.binary(0), 1 << 22, [None, pa.py_buffer(b"")]),
    ],
    ids=["no fields", "no bytes"],
)
def test_values_that_take_no_bytes_are_refused(values: pa.Array) -> None:
    """Some hundred bytes could be as many of them as there are numbers."""
    offsets = pa.array([0, len(values)], pa.int32())
    problem = refusal(
        StreamDecoder(OtlpKind.LOGS),
        one_log(batch({"x": pa.ListArray.from_arrays(offsets, values)})),
    )
    assert "is not taken" in problem.reason
    if pa.types.is_struct(values.type):
        # As a column of its own it is taken, because the Collector sends it, within `rows_max`.
        decoder = StreamDecoder(OtlpKind.LOGS, StreamLimits(rows_max=3))
        assert decoder.decode(one_log(batch({"x": values.slice(0, 3)}))).tables
        more = refusal(
            decoder, message((LOGS, "2", record_of([batch({"x": values})], deltas=True)[0]))
        )
        assert isinstance(more, StreamTooLarge)
    else:
        made = pa.DictionaryArray.from_arrays(pa.array([0], pa.uint32()), values)
        problem = refusal(StreamDecoder(OtlpKind.LOGS), one_log(batch({"x": made})))
        assert "is not taken" in problem.reason


@pytest.mark.parametrize("name", ["_seq", "_damaged_slots", "holdfast.kind"])
def test_names_that_the_store_uses_itself_are_refused(name: str) -> None:
    """Or the batch could not be stored, and would be sent again for ever."""
    table = batch({name: pa.array([1])})
    if "." in name:
        table = batch({"x": pa.array([1])}).replace_schema_metadata({name: "arrow"})
    assert refusal(StreamDecoder(OtlpKind.LOGS), one_log(table)).code is BatchCode.INVALID_ARGUMENT


def test_a_batch_costs_nothing_for_values_that_it_does_not_use() -> None:
    """A message of 200 bytes may use one value of a dictionary of millions."""
    count = (1 << 22) - 8
    values = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes(count // 8))])
    table = batch({"x": pa.DictionaryArray.from_arrays(pa.array([7], pa.uint32()), values)})
    first, second = record_of([table, table], deltas=True)
    decoder = StreamDecoder(OtlpKind.LOGS, StreamLimits(rows_max=2 * count))
    decoder.decode(message((LOGS, "1", first)))
    tracemalloc.start()
    try:
        got = decoder.decode(message((LOGS, "1", second)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got.tables["otap_logs"].column("x").to_pylist() == [False]
    assert peak_bytes < count // 16


@given(
    pieces=st.lists(st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=9), min_size=1),
    data=st.data(),
)
def test_a_dictionary_that_grows_is_the_same_in_few_pieces(
    pieces: list[list[str | None]], data: st.DataObject
) -> None:
    made = GrowingDictionary(pa.array(pieces[0], pa.string()))
    for piece in pieces[1:]:
        made.add(pa.array(piece, pa.string()))
    values = [value for piece in pieces for value in piece]
    assert len(made) == len(values)
    assert len(made._pieces) <= 2 + max(1, len(values)).bit_length()
    row = st.one_of(st.none(), st.integers(0, len(values) - 1)) if values else st.none()
    rows = data.draw(st.lists(row, max_size=20))
    kind = pa.dictionary(pa.uint16(), pa.string())
    own = own_dictionary(pa.array(rows, pa.uint16()), made, kind)
    own.validate(full=True)
    expected = [None if at is None else values[at] for at in rows]
    assert own.to_pylist() == expected
    # By place, not by value: what was in the dictionary twice may be so here.
    assert sorted(own.dictionary.to_pylist()) == sorted(
        value
        for value in (values[at] for at in {at for at in rows if at is not None})
        if value is not None
    )


def test_dictionaries_that_never_end_make_the_sender_begin_a_new_stream() -> None:
    limits = StreamLimits(dictionary_bytes_max=2_000)
    decoder = StreamDecoder(OtlpKind.LOGS, limits)
    encoder, table = StreamEncoder(), logs([])

    def send_for_ever() -> None:
        nonlocal table
        for number in count():
            table = logs([f"{number} {'x' * 50}"], pa.uint16())
            decoder.decode(encoder.encode(number, {"otap_logs": table}))
            assert decoder.dictionary_bytes <= limits.dictionary_bytes_max

    with pytest.raises(StreamTooLarge) as caught:
        send_for_ever()
    failure = caught.value
    # The batch is not at fault: on a new stream it is taken.
    assert failure.code is BatchCode.UNAVAILABLE
    assert failure.breaks_stream
    assert decoder.dictionary_bytes == 0
    assert refusal(decoder, encoder.encode(101, {"otap_logs": table})).breaks_stream
    again = StreamDecoder(OtlpKind.LOGS, limits)
    assert again.decode(StreamEncoder().encode(1, {"otap_logs": table})).tables
    # Our own side begins anew by itself before it comes to that.
    encoder, decoder = StreamEncoder(dictionary_bytes_max=500), StreamDecoder(OtlpKind.LOGS, limits)
    for number in range(100):
        table = logs([f"{number} {'x' * 50}"], pa.uint16())
        assert decoder.decode(encoder.encode(number, {"otap_logs": table})).tables


def test_a_new_schema_id_gives_back_what_the_old_one_held() -> None:
    decoder = StreamDecoder(OtlpKind.LOGS)
    held = []
    for number in range(5):
        table = batch({"event_name": column(["x" * 1_000], pa.string(), pa.uint8())})
        record = record_of([table], deltas=True)[0]
        decoder.decode(message((LOGS, str(number), record)))
        held.append(decoder.dictionary_bytes)
    assert len(set(held)) == 1
