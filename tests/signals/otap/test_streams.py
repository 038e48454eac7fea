"""Batches survive their streams: whatever resets, grows or is replaced, the tables are the same."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.signals.otap.tables import attributes, batch, column, traces
from tests.signals.otlp.telemetry import mutated

from holdfast.signals.otap.ids import with_encoded_ids, with_plain_ids
from holdfast.signals.otap.ipc import IpcKind, read_messages
from holdfast.signals.otap.messages import BatchArrowRecords, BatchStatus, status
from holdfast.signals.otap.payloads import PayloadType, ValueType, kind_of_slots, number_of, slot_of
from holdfast.signals.otap.problem import BatchCode, NotOtap
from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otlp.kinds import OtlpKind

MUTANTS = 150
SLOW_MUTANTS = 10_000


def rows(tables: Mapping[str, pa.RecordBatch]) -> dict[str, list[dict[str, Any]]]:
    """Return tables as Python values, whatever their columns are written as."""
    return {slot: table.to_pylist() for slot, table in tables.items()}


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.tuples(st.integers(1, 20), st.sampled_from([3, 150, 400])), max_size=6),
    compression=st.sampled_from([None, "zstd"]),
    dictionary_bytes_max=st.sampled_from([0, 2_000, 10**7]),
    optional=st.sampled_from([1, 2]),
)
def test_tables_survive_a_stream_that_resets_and_grows(
    seed: int,
    sizes: Sequence[tuple[int, int]],
    compression: Any,
    dictionary_bytes_max: int,
    optional: int,
) -> None:
    chance = random.Random(seed)
    encoder = StreamEncoder(compression=compression, dictionary_bytes_max=dictionary_bytes_max)
    decoder = StreamDecoder(OtlpKind.TRACES)
    for number, (spans, pool) in enumerate(sizes):
        tables = traces(chance, spans, pool, optional)
        got = decoder.decode(encoder.encode(number, tables, {"Number": str(number)}))
        assert (got.batch_id, got.kind) == (number, OtlpKind.TRACES)
        assert got.headers == {"number": str(number)}
        assert rows(got.tables) == rows(tables)
        for slot, table in got.tables.items():
            table.validate(full=True)
            assert number_of(slot) is not None
        assert kind_of_slots(got.tables) is OtlpKind.TRACES


def test_a_dictionary_grows_by_what_is_new_and_is_stored_as_far_as_it_is_used() -> None:
    chance = random.Random(5)
    encoder, tables = StreamEncoder(), traces(chance, 200, 400, optional=1)
    encoder.encode(0, tables)
    repeated = BatchArrowRecords.FromString(encoder.encode(1, tables))
    for payload in repeated.arrow_payloads:
        # All of it was sent before: neither schema nor dictionary comes again.
        kinds = [one.kind for one in read_messages(payload.record)]
        assert kinds == [IpcKind.RECORD_BATCH]
    # A reader that has seen many values stores only those of the batch.
    encoder, decoder = StreamEncoder(), StreamDecoder(OtlpKind.TRACES)
    for number in range(6):
        got = decoder.decode(encoder.encode(number, traces(chance, 200, 60_000, optional=1)))
    small = traces(chance, 1, 2, optional=1)
    got = decoder.decode(encoder.encode(7, small))
    assert len(got.tables["otap_span_events"].column("name").dictionary) == 1
    assert decoder.dictionary_bytes > 10_000


def record_of(batches: Sequence[pa.RecordBatch], *, deltas: bool) -> list[bytes]:
    """Return what pyarrow's own writer makes of batches, one after the other."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    writer = pa.ipc.new_stream(sink, batches[0].schema, options=options)
    written, position = [], 0
    for one in batches:
        writer.write_batch(one)
        written.append(sink.getvalue()[position:])
        position = len(sink.getvalue())
    return written


def message(*payloads: tuple[int, str, bytes], batch_id: int = 1) -> bytes:
    """Return a message with these payloads."""
    made = BatchArrowRecords(batch_id=batch_id)
    for number, schema_id, record in payloads:
        made.arrow_payloads.add(type=number, schema_id=schema_id, record=record)
    written: bytes = made.SerializeToString()
    return written


def logs(names: Sequence[str | None], index: pa.DataType | None = None) -> pa.RecordBatch:
    """Return log records of which only the event's name is known; their ids are as sent."""
    ids = [0, *[1] * (len(names) - 1)][: len(names)]
    return batch(
        {
            "id": pa.array(ids, pa.uint16()),
            "event_name": column(names, pa.string(), index),
        }
    )


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_of_other_writers_are_replaced_and_grown(deltas: bool) -> None:
    names: list[list[str | None]] = [
        ["a", "b"],
        ["a", "b", "c"],
        ["x", None],
        [None],
        ["a", "b", "c"],
    ]
    written = record_of([logs(one, pa.uint8()) for one in names], deltas=deltas)
    decoder = StreamDecoder(OtlpKind.LOGS)
    for expected, record in zip(names, written, strict=True):
        got = decoder.decode(message((PayloadType.LOGS, "1", record)))
        table = got.tables["otap_logs"]
        assert table.column("event_name").to_pylist() == expected
        assert table.column("id").to_pylist() == list(range(len(expected)))
        assert table.schema.field("id").metadata == {b"encoding": b"plain"}


def test_ids_that_say_that_they_are_plain_are_plain() -> None:
    table = logs(["a", "b"])
    field = table.schema.field("id").with_metadata({b"encoding": b"plain", b"other": b"kept"})
    table = pa.RecordBatch.from_arrays(
        [pa.array([7, 3], pa.uint16()), table.column(1)],
        schema=pa.schema([field, table.schema.field(1)]),
    )
    (record,) = record_of([table], deltas=True)
    got = StreamDecoder(OtlpKind.LOGS).decode(message((PayloadType.LOGS, "1", record)))
    assert got.tables["otap_logs"].column("id").to_pylist() == [7, 3]
    assert got.tables["otap_logs"].schema.field("id").metadata[b"other"] == b"kept"


# ------------------------------------------------------- ids, against plain Python


def alike(one: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Say whether two attributes are alike, as the specification has it."""
    active = {1: "str", 2: "int", 3: "double", 4: "bool", 7: "bytes"}.get(one["type"])
    return (
        one["type"] == before["type"]
        and one["key"] == before["key"]
        and active is not None
        and one[active] is not None
        and bool(one[active] == before[active])
    )


@given(seed=st.integers(0, 2**32), count=st.integers(1, 60), index=st.sampled_from([0, 1, 2]))
@settings(max_examples=60, deadline=None)
def test_parents_of_attributes_are_written_as_a_plain_loop_writes_them(
    seed: int, count: int, index: int
) -> None:
    chance = random.Random(seed)
    index_type = (None, pa.uint8(), pa.uint16())[index]
    parents = [chance.randrange(2**16) for _ in range(count)]
    table = attributes(chance, parents, pa.uint16(), 3, index_type)
    sent = with_encoded_ids(PayloadType.SPAN_ATTRS, table)
    expected, before = [], None
    for row in table.to_pylist():
        is_like = before is not None and alike(row, before)
        base = before["parent_id"] if is_like and before is not None else 0
        expected.append((row["parent_id"] - base) % 2**16)
        before = row
    assert sent.column("parent_id").to_pylist() == expected
    assert with_plain_ids(PayloadType.SPAN_ATTRS, sent).to_pylist() == table.to_pylist()


def test_ids_of_the_specifications_examples() -> None:
    attrs = batch(
        {
            "parent_id": pa.array([1] * 13, pa.uint16()),
            "key": pa.array([*["k1"] * 5, *["k2"] * 5, "", "", ""]),
            "type": pa.array([1] * 8 + [2, 2, 0, 5, 6], pa.uint8()),
            "str": pa.array([*["v1"] * 3, *["v2"] * 7, None, None, None]),
            "int": pa.array([None] * 8 + [1, 1, None, None, None], pa.int64()),
        }
    )
    plain = with_plain_ids(PayloadType.SPAN_ATTRS, attrs)
    assert plain.column("parent_id").to_pylist() == [1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 1, 1, 1]
    events = batch(
        {
            "parent_id": pa.array([0, 1, 1, 2, 0, 3], pa.uint16()),
            "name": pa.array([*"aaaa", *"bb"]),
        }
    )
    plain = with_plain_ids(PayloadType.SPAN_EVENTS, events)
    assert plain.column("parent_id").to_pylist() == [0, 1, 2, 4, 0, 3]
    spans = batch({"id": pa.array([None, 0, 0, 1, None, 0, 0, 1, 1], pa.uint16())})
    plain = with_plain_ids(PayloadType.SPANS, spans)
    assert plain.column("id").to_pylist() == [None, 0, 0, 1, None, 1, 1, 2, 3]


# ----------------------------------------------------------------------- bad input


def test_slots_and_statuses_have_their_numbers() -> None:
    assert {number_of(slot_of(number)) for number in range(1, 80)} == set(range(1, 80))
    assert number_of("otlp_traces") is None
    assert number_of("otap_type_") is None
    said = BatchStatus.FromString(status(9, BatchCode.UNAVAILABLE, "x" * 5_000))
    assert (said.batch_id, said.status_code, len(said.status_message)) == (9, 14, 1024)


def refusal(decoder: StreamDecoder, written: bytes) -> NotOtap:
    """Return how a message is refused."""
    with pytest.raises(NotOtap) as caught:
        decoder.decode(written)
    return caught.value


def test_rows_before_their_schema_are_refused_and_a_new_schema_id_mends_it() -> None:
    first, second = record_of([logs(["a"]), logs(["b"])], deltas=True)
    decoder = StreamDecoder(OtlpKind.LOGS)
    problem = refusal(decoder, message((PayloadType.LOGS, "1", second), batch_id=4))
    assert (problem.code, problem.batch_id) == (BatchCode.INVALID_ARGUMENT, 4)
    assert problem.breaks_stream
    assert "no schema" in problem.reason
    assert decoder.decode(message((PayloadType.LOGS, "1", first))).tables
    assert decoder.decode(message((PayloadType.LOGS, "1", second))).tables
    # Another id begins anew, also one that was there before.
    assert refusal(decoder, message((PayloadType.LOGS, "2", second))).breaks_stream
    assert decoder.decode(message((PayloadType.LOGS, "3", first))).tables
    assert refusal(decoder, message((PayloadType.LOGS, "1", second))).breaks_stream


def test_one_schema_id_may_name_two_tables() -> None:
    (log_record,) = record_of([logs(["a"], pa.uint8())], deltas=True)
    attrs = attributes(random.Random(1), [0, 0], pa.uint16(), 2, pa.uint8())
    (attr_record,) = record_of([attrs], deltas=True)
    decoder = StreamDecoder(OtlpKind.LOGS)
    both = message((PayloadType.LOGS, "1", log_record), (PayloadType.LOG_ATTRS, "1", attr_record))
    assert set(decoder.decode(both).tables) == {"otap_logs", "otap_log_attrs"}


def test_unknown_tables_are_kept_as_they_came_and_sent_on() -> None:
    table = batch({"parent_id": pa.array([5, 5], pa.uint16()), "news": pa.array(["a", "b"])})
    (log_record,), (new_record,) = (
        record_of([logs(["a"])], deltas=True),
        record_of([table], deltas=True),
    )
    written = message((PayloadType.LOGS, "1", log_record), (99, "2", new_record))
    got = StreamDecoder(OtlpKind.LOGS).decode(written)
    assert got.tables["otap_type_99"].equals(table)
    again = StreamDecoder(OtlpKind.LOGS).decode(StreamEncoder().encode(1, got.tables))
    assert again.tables["otap_type_99"].equals(table)


def test_a_bad_table_does_not_keep_the_others_dictionaries_from_growing() -> None:
    grown = record_of([logs(["a"], pa.uint8()), logs(["a", "b"], pa.uint8())], deltas=True)
    decoder = StreamDecoder(OtlpKind.LOGS)
    decoder.decode(message((PayloadType.LOGS, "1", grown[0])))
    orphan = attributes(random.Random(1), [70], pa.uint16(), 2, None)
    (bad,) = record_of([orphan], deltas=True)
    problem = refusal(
        decoder, message((PayloadType.LOG_ATTRS, "2", bad), (PayloadType.LOGS, "1", grown[1]))
    )
    assert not problem.breaks_stream
    assert "LOG_ATTRS refers to a row of LOGS" in problem.reason
    # Rows that only refer to what has come, as no writer of pyarrow sends them first.
    names = pa.DictionaryArray.from_arrays(pa.array([1], pa.uint8()), pa.array(["a", "b"]))
    refers = batch({"id": pa.array([0], pa.uint16()), "event_name": names})
    written = record_of([refers, refers], deltas=True)[1]
    got = decoder.decode(message((PayloadType.LOGS, "1", written)))
    assert got.tables["otap_logs"].column("event_name").to_pylist() == ["b"]


def bodies(kind: int, serialised: bytes) -> pa.RecordBatch:
    """Return a log record with a body, and one without."""
    columns = [pa.array([0, kind], pa.uint8()), pa.array([b"no CBOR", serialised])]
    return batch({"body": pa.StructArray.from_arrays(columns, names=["type", "ser"])})


@pytest.mark.parametrize(
    ("payload_type", "table", "reason"),
    [
        (PayloadType.SPANS, logs(["a"]), "does not belong"),
        (0, logs(["a"]), "payload type 0"),
        (99, logs(["a"]), "none of them is LOGS"),
        (PayloadType.LOG_ATTRS, logs(["a"]), "is missing, or null"),
        (PayloadType.LOGS, batch({"id": pa.array(["a"])}), "is string, and not uint16"),
        (PayloadType.LOGS, batch({"id": pa.array([1, 0], pa.uint16())}), "two rows of LOGS"),
        (PayloadType.LOGS, batch({"body": pa.nulls(1)}), "of type null is not taken"),
        (PayloadType.LOGS, bodies(9, b""), "has type 9"),
        (PayloadType.LOGS, bodies(ValueType.MAP, b"\xa1\x61k" * 10**5), "nested too deeply"),
        (PayloadType.LOGS, bodies(ValueType.SLICE, b"\x9f"), "cut short"),
    ],
)
def test_tables_that_nobody_could_read_are_refused(
    payload_type: int, table: pa.RecordBatch, reason: str
) -> None:
    (record,) = record_of([table], deltas=True)
    problem = refusal(StreamDecoder(OtlpKind.LOGS), message((payload_type, "1", record)))
    assert problem.code is BatchCode.INVALID_ARGUMENT
    assert reason in problem.reason


def test_a_name_within_a_column_that_is_no_text_is_refused() -> None:
    written = StreamEncoder().encode(0, traces(random.Random(1), 4, 20))
    broken = written.replace(b"schema_url", b"schema_\x80rl")
    assert broken != written
    with pytest.raises(NotOtap):
        StreamDecoder(OtlpKind.TRACES).decode(broken)


def _mutate_streams(seed: int, count: int) -> tuple[int, int]:
    """Feed streams with broken messages between sound ones; return how many were taken, refused."""
    chance = random.Random(seed)
    taken = refused = 0
    codes: set[BatchCode] = set()
    while taken + refused < count:
        compression: Any = chance.choice([None, "zstd"])
        encoder, decoder = StreamEncoder(compression=compression), StreamDecoder(OtlpKind.TRACES)
        spoiled = False
        for number in range(10):
            written = encoder.encode(number, traces(chance, 4, 20))
            if chance.random() < 0.3 and not spoiled:
                decoder.decode(written)
                continue
            try:
                got = decoder.decode(mutated(written, chance))
            except NotOtap as problem:
                refused += 1
                codes.add(problem.code)
                if problem.breaks_stream:
                    break
                # It may have brought a schema whose columns are called otherwise.
                spoiled = True
            else:
                taken += 1
                for table in got.tables.values():
                    table.validate(full=True)
                break  # its dictionaries may be others now
    assert codes <= {BatchCode.INVALID_ARGUMENT, BatchCode.RESOURCE_EXHAUSTED}
    return taken, refused


def test_broken_messages_are_refused_and_nothing_else_happens() -> None:
    taken, refused = _mutate_streams(seed=7, count=MUTANTS)
    assert taken
    assert refused


@pytest.mark.slow
def test_many_broken_messages_are_refused_and_nothing_else_happens() -> None:
    taken, refused = _mutate_streams(seed=8, count=SLOW_MUTANTS)
    assert taken
    assert refused
