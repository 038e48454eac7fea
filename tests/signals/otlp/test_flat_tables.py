"""Requests become flat tables and requests again, and nothing is lost on the way."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from tests.signals.otlp.canonical import canonical
from tests.signals.otlp.made_up import INDICES, otlp_requests
from tests.signals.otlp.telemetry import mutated, request

from holdfast.errors import BadInput
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.flat import table as table_module
from holdfast.signals.otlp.flat import wire
from holdfast.signals.otlp.flat.json_value import message_of
from holdfast.signals.otlp.flat.nested import Converter
from holdfast.signals.otlp.flat.pieces import pieces_of
from holdfast.signals.otlp.flat.requests import requests_of
from holdfast.signals.otlp.flat.schema import DERIVED, METRIC_TYPES, SCHEMAS, TABLES
from holdfast.signals.otlp.flat.table import flat_batches, flat_table
from holdfast.signals.otlp.flat.values import as_text, decoded_pairs
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp, TooMuchMemory

DEFAULT_MUTANTS = 300
SLOW_MUTANTS = 20_000


def table_of(kind: OtlpKind, bodies: list[bytes], unreadable: list[int] | None = None) -> Any:
    """Return the table of some requests, which all ways of going through them must agree on."""
    tables, left_out = [], []
    for fewest in (1, 3, 1_000_000):
        places: list[int] | None = None if unreadable is None else []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "TOGETHER_MIN", fewest)
            made = flat_table(kind, bodies, unreadable=places)
        made.validate(full=True)
        assert made.schema == SCHEMAS[TABLES[kind]]
        tables.append(made)
        left_out.append(places)
    # Printed, because a NaN is not equal to itself.
    first, *others = (repr(made.to_pylist()) for made in tables)
    assert all(other == first for other in others)
    assert all(other == left_out[0] for other in left_out)
    if unreadable is not None:
        unreadable += left_out[0] or []
    return tables[0]


def assert_comes_back(kind: OtlpKind, bodies: list[bytes], made: pa.RecordBatch) -> None:
    """Assert that the table says what the requests said, those without items excepted."""
    wanted = [found for body in bodies if (found := canonical(kind, body))]
    for by in Converter:
        back = requests_of(kind, made, by=by)
        assert [canonical(kind, body) for body in back] == wanted


@pytest.mark.parametrize("kind", OtlpKind)
@given(data=st.data())
def test_requests_come_back_from_a_flat_table(kind: OtlpKind, data: st.DataObject) -> None:
    bodies = data.draw(st.lists(otlp_requests(kind), min_size=1, max_size=3))
    made = table_of(kind, bodies)
    assert made.num_rows == sum(codec.count(kind, body) for body in bodies)
    assert_comes_back(kind, bodies, made)


# ---------------------------------------------------- every field of the protocol has a column


def paths(descriptor: Any, above: tuple[FieldDescriptor, ...] = ()) -> Iterator[Any]:
    """Yield every way from a message to a field; values within values are not followed."""
    for field in descriptor.fields:
        if field.name in INDICES:
            continue
        way = (*above, field)
        yield way
        inside = [one.message_type for one in above if one.message_type is not None]
        if field.message_type is not None and field.message_type not in inside:
            yield from paths(field.message_type, way)


def with_field(kind: OtlpKind, way: tuple[FieldDescriptor, ...]) -> bytes:
    """Return a request in which a field is set, and nothing else but what leads to an item."""
    request: Any = REQUESTS[kind]()
    message = request
    for field in way:
        value = getattr(message, field.name)
        if field.message_type is not None:
            message = value.add() if field.is_repeated else value
            message.SetInParent()
            continue
        one: object = 7
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            one = b"\x07" if field.type == FieldDescriptor.TYPE_BYTES else "seven"
        elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            one = True
        if field.is_repeated:
            value.append(one)
        else:
            setattr(message, field.name, one)
    _add_an_item(kind, request)
    return bytes(request.SerializeToString())


def _add_an_item(kind: OtlpKind, request: Any) -> None:
    lists = {
        OtlpKind.TRACES: ("resource_spans", "scope_spans", "spans"),
        OtlpKind.LOGS: ("resource_logs", "scope_logs", "log_records"),
        OtlpKind.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
    }
    message = request
    for name in lists[kind]:
        found = getattr(message, name)
        message = found[0] if found else found.add()
    if kind is OtlpKind.METRICS:
        data = getattr(message, message.WhichOneof("data") or "gauge")
        if not data.data_points:
            data.data_points.add()


# What the columns of a message begin with, where it is joined to items.
PREFIXES = {
    **dict.fromkeys(("Resource", "ResourceSpans", "ResourceLogs"), "resource_"),
    **dict.fromkeys(("InstrumentationScope", "ScopeSpans", "ScopeLogs"), "scope_"),
    "ResourceMetrics": "resource_",
    "ScopeMetrics": "scope_",
    "Metric": "metric_",
    "Status": "status_",
}
# Fields that only lead to others; which one of a metric's is there is what `metric_type` says.
LEADING = {
    *("resource_spans", "scope_spans", "spans", "resource_logs", "scope_logs", "log_records"),
    *("resource_metrics", "scope_metrics", "metrics", "data_points", "resource", "scope", "status"),
    *(f"metric_{name}" for name in METRIC_TYPES),
    # Values of values are JSON.
    *("array_value", "kvlist_value", "values"),
}


def column_of(field: FieldDescriptor) -> str:
    if field.name in LEADING:
        return field.name
    message: Any = field.containing_type
    return PREFIXES.get(message.name, "") + field.name


def names_of(kind: pa.DataType) -> set[str]:
    if pa.types.is_map(kind):
        return names_of(kind.key_type) | names_of(kind.item_type) | {"key", "value"}
    inside = set()
    for place in range(kind.num_fields):
        inside |= {kind.field(place).name} | names_of(kind.field(place).type)
    return inside


@pytest.mark.parametrize("kind", OtlpKind)
def test_every_field_has_a_column_and_comes_back_by_itself(kind: OtlpKind) -> None:
    schema = SCHEMAS[TABLES[kind]]
    names = set(schema.names).union(*(names_of(field.type) for field in schema))
    ways = list(paths(REQUESTS[kind].DESCRIPTOR))
    assert len(ways) > 60
    missing = {column_of(way[-1]) for way in ways} - names - LEADING
    assert missing == set()
    bodies = [with_field(kind, way) for way in ways]
    made = table_of(kind, bodies)
    assert made.num_rows == len(ways)
    assert_comes_back(kind, bodies, made)


def test_a_column_that_is_gone_is_noticed() -> None:
    body = request(OtlpKind.TRACES, random.Random(1))
    without = flat_table(OtlpKind.TRACES, [body]).drop_columns(["events"])
    with pytest.raises(BadInput, match="`events`"):
        requests_of(OtlpKind.TRACES, without)


@pytest.mark.parametrize("kind", OtlpKind)
def test_columns_that_follow_from_others_are_not_needed(kind: OtlpKind) -> None:
    bodies = [request(kind, random.Random(2)) for _ in range(2)]
    made = flat_table(kind, bodies)
    few = made.drop_columns([name for name in made.schema.names if name in DERIVED])
    assert_comes_back(kind, bodies, few)


# ------------------------------------------------------------------------- what is not right


def compare_mutants(seed: int, count: int) -> tuple[int, int]:
    """Convert broken requests; return how many were readable and how many were not."""
    chance = random.Random(seed)
    readable = 0
    for kind in OtlpKind:
        sound = [request(kind, chance, items=1) for _ in range(20)]
        mutants = [mutated(one, chance) for one in chance.choices(sound, k=count)]
        kept = []
        for body in mutants:
            try:
                codec.check(kind, body)
            except NotOtlp:
                continue
            kept.append(body)
        made = table_of(kind, kept)
        assert_comes_back(kind, kept, made)
        # Those that protobuf refuses may be read, in part; they stop nobody else.
        unreadable: list[int] = []
        everything = flat_table(kind, mutants, unreadable=unreadable)
        assert everything.num_rows >= made.num_rows
        assert len(unreadable) <= len(mutants) - len(kept)
        readable += len(kept)
    return readable, 3 * count - readable


def test_broken_requests_mean_what_protobuf_says() -> None:
    readable, refused = compare_mutants(seed=1, count=DEFAULT_MUTANTS)
    assert readable > DEFAULT_MUTANTS // 20
    assert refused > DEFAULT_MUTANTS // 4


@pytest.mark.slow
def test_many_broken_requests_mean_what_protobuf_says() -> None:
    for seed in range(SLOW_MUTANTS // 1000):
        compare_mutants(seed=100 + seed, count=1000)


def test_of_two_values_the_last_one_counts() -> None:
    span: Any = REQUESTS[OtlpKind.TRACES]()
    span.resource_spans.add().scope_spans.add().spans.add().attributes.add(
        key="k"
    ).value.string_value = "s"
    body = span.SerializeToString()
    # Field 3 of the value, an integer, behind its text.
    twice = body.replace(b"\x12\x03\x0a\x01s", b"\x12\x05\x0a\x01s\x18\x05")
    lengths = bytearray(twice)
    for at in (1, 3, 5, 7):
        lengths[at] += 2
    [row] = table_of(OtlpKind.TRACES, [bytes(lengths)]).to_pylist()
    [(key, value)] = row["attributes"]
    assert (key, value["int_value"], value["string_value"]) == ("k", 5, None)


def test_an_index_of_profiles_is_no_value() -> None:
    made: Any = REQUESTS[OtlpKind.LOGS]()
    log = made.resource_logs.add().scope_logs.add().log_records.add()
    log.body.string_value_strindex = 3
    log.attributes.add(key_strindex=4).value.array_value.values.add(string_value_strindex=5)
    [row] = table_of(OtlpKind.LOGS, [made.SerializeToString()]).to_pylist()
    assert set(row["body"].values()) == {None}
    assert row["attributes"][0][1]["json_value"] == "[null]"


def test_an_unreadable_request_is_named_or_left_out() -> None:
    sound = request(OtlpKind.TRACES, random.Random(3))
    bodies = [sound, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", sound[:-1], sound]
    with pytest.raises(NotOtlp, match=r"requests\[1\]"):
        flat_table(OtlpKind.TRACES, bodies)
    unreadable: list[int] = []
    made = flat_table(OtlpKind.TRACES, bodies, unreadable=unreadable)
    assert unreadable == [1, 2]
    assert set(made.column("_request").to_pylist()) == {0, 3}


# ------------------------------------------------------------------------- keys and values


def spans_with(*attributes: tuple[str, str]) -> bytes:
    made: Any = REQUESTS[OtlpKind.TRACES]()
    span = made.resource_spans.add().scope_spans.add().spans.add()
    for key, text in attributes:
        span.attributes.add(key=key).value.string_value = text
    body: bytes = made.SerializeToString()
    return body


def test_a_key_that_is_there_twice_stays_and_hinders_nobody() -> None:
    bodies = [
        spans_with(("k", "1"), ("k", "2"), ("", "3"), ("", "4"), ("k", "5")),
        spans_with(("k\0002", "1")),
        spans_with(("k", "1")),
    ]
    made = table_of(OtlpKind.TRACES, bodies)
    keys = [[key for key, _ in row] for row in made.column("attributes").to_pylist()]
    assert keys == [["k", "k\0002", "", "\0002", "k\0003"], ["k\0002\0001"], ["k"]]
    assert_comes_back(OtlpKind.TRACES, bodies, made)
    with duckdb.connect() as connection:
        connection.register("spans", made)
        found = connection.sql("select attributes['k'].string_value from spans").fetchall()
    assert found == [("1",), (None,), ("1",)]


def test_engines_read_every_column() -> None:
    for kind in OtlpKind:
        bodies = [request(kind, random.Random(seed)) for seed in range(20)]
        made = flat_table(kind, bodies)
        frame = polars.from_arrow(made)
        assert isinstance(frame, polars.DataFrame)
        assert frame.columns == made.schema.names
        assert frame["service_name"].to_list() == made.column("service_name").to_pylist()
        with duckdb.connect() as connection:
            connection.register("items", made)
            rows = connection.sql("select * from items").fetchall()
            services = connection.sql(
                "select distinct resource_attributes['service.name'].string_value from items"
            ).fetchall()
        assert len(rows) == made.num_rows
        assert {name for (name,) in services} == set(made.column("service_name").to_pylist())


@pytest.mark.parametrize(
    "text",
    ["", "5", '"text"', '{"bytes_value":"AAAA"}', '[{"bytes_value":"*"}]', "[1e", "[" * 2000],
)
def test_a_text_that_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="json_value"):
        message_of(text)


# --------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("kind", OtlpKind)
def test_large_requests_are_cut_between_their_items(kind: OtlpKind) -> None:
    body = request(kind, random.Random(4), items=200)
    for max_bytes in (1, 300, 2_000, len(body)):
        pieces = list(pieces_of(kind, body, max_bytes))
        assert sum(codec.check(kind, piece) for piece in pieces) == codec.check(kind, body)
        many = [piece for piece in pieces if codec.check(kind, piece) > 1]
        assert all(len(piece) <= max(max_bytes, 300) for piece in many)
        assert canonical(kind, b"".join(pieces)) == canonical(kind, body)
    assert len(list(pieces_of(kind, body, 2_000))) > 3


def test_what_is_repeated_with_each_piece_never_outweighs_the_request() -> None:
    made: Any = REQUESTS[OtlpKind.METRICS]()
    resource = made.resource_metrics.add()
    resource.resource.attributes.add(key="k").value.string_value = "r" * 10_000
    scope = resource.scope_metrics.add()
    scope.scope.name = "s" * 10_000
    for number in range(500):
        scope.metrics.add(name=str(number)).gauge.data_points.add(as_int=number, flags=number)
    body = made.SerializeToString()
    pieces = list(pieces_of(OtlpKind.METRICS, body, 1_000))
    assert len(pieces) < 5
    assert sum(map(len, pieces)) < 3 * len(body)
    assert_comes_back(OtlpKind.METRICS, [body], table_of(OtlpKind.METRICS, [body]))


def test_a_large_resource_of_many_items_makes_small_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Any = REQUESTS[OtlpKind.TRACES]()
    resource = made.resource_spans.add()
    resource.resource.attributes.add(key="k").value.string_value = "r" * 10_000
    spans = resource.scope_spans.add().spans
    for number in range(1_000):
        spans.add(flags=number)
    body = made.SerializeToString()
    monkeypatch.setattr(table_module, "JOINED_BYTES_MAX", 1_000_000)
    batches = list(flat_batches(OtlpKind.TRACES, [body]))
    assert sum(batch.num_rows for batch in batches) == 1_000
    assert all(batch.nbytes < 1_500_000 for batch in batches)
    monkeypatch.setattr(table_module, "TABLE_BYTES_MAX", 5_000_000)
    with pytest.raises(TooMuchMemory):
        flat_table(OtlpKind.TRACES, [body])


@pytest.mark.parametrize("kind", OtlpKind)
def test_no_requests_are_an_empty_table(kind: OtlpKind) -> None:
    for bodies in ([], [b""]):
        made = table_of(kind, bodies)
        assert made.num_rows == 0
        assert requests_of(kind, made) == []


def attributes_at_random(chance: random.Random, count: int) -> list[bytes]:
    """Return messages `KeyValue`, many of them broken, some with long keys and numbers."""
    made = []
    for _ in range(count):
        pair = KeyValue(key=chance.choice(["", "k", "ä" * 40, "k" * chance.randint(126, 131)]))
        which = chance.randrange(9)
        if which == 0:
            pair.value.string_value = "t" * chance.choice([0, 1, 120, 125, 127, 128, 16_400])
        elif which == 1:
            pair.value.int_value = chance.choice([0, 127, 128, -1, 2**63 - 1, -(2**63)])
        elif which == 2:
            pair.value.double_value = chance.choice([0.0, -0.5, 1e300])
        elif which == 3:
            pair.value.bool_value = chance.random() < 0.5
        elif which == 4:
            pair.value.bytes_value = chance.randbytes(chance.choice([0, 3, 200]))
        elif which == 5:
            pair.value.array_value.values.add(int_value=1)
        elif which == 6:
            pair.value.kvlist_value.values.add(key="k").value.SetInParent()
        elif which == 7:
            pair.value.SetInParent()
        body = pair.SerializeToString()
        made.append(mutated(body, chance) if body and chance.random() < 0.3 else body)
    return made


def test_attributes_read_together_are_those_read_one_by_one() -> None:
    chance = random.Random(5)
    for _ in range(300):
        bodies = attributes_at_random(chance, chance.randint(1, 6))
        try:
            one_by_one = [KeyValue.FromString(body) for body in bodies]
        except DecodeError:
            one_by_one = None
        try:
            keys, values = decoded_pairs(wire.messages_of(bodies))
            keys = as_text(keys)
        except NotOtlp:
            assert one_by_one is None, bodies
            continue
        keys.validate(full=True)
        values.validate(full=True)
        if one_by_one is None:
            continue
        assert keys.to_pylist() == [pair.key for pair in one_by_one]
        for pair, value in zip(one_by_one, values.to_pylist(), strict=True):
            assert (value is not None) == pair.HasField("value")
            which = pair.value.WhichOneof("value")
            found = {name: one for name, one in (value or {}).items() if one is not None}
            if which in ("array_value", "kvlist_value"):
                assert found.keys() == {"json_value"}
            elif which in (None, "string_value_strindex"):
                assert found == {}
            else:
                assert repr(found) == repr({which: getattr(pair.value, which)})


@pytest.mark.parametrize("length", [2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_attribute_that_says_to_be_longer_than_all_memory_is_refused(length: int) -> None:
    for body in (
        b"\x0a" + codec.as_varint(length) + b"key",
        b"\x0a\x01k\x12" + codec.as_varint(length) + b"\x0a\x01t",
        b"\x0a\x01k\x12\x0c\x0a" + codec.as_varint(length).ljust(11, b"t"),
    ):
        with pytest.raises(NotOtlp):
            decoded_pairs(wire.messages_of([body, body]))


def test_nothing_of_pandas_is_imported() -> None:
    code = (
        "import random, sys\n"
        "from tests.signals.otlp.telemetry import request\n"
        "from holdfast.signals.otlp.kinds import OtlpKind\n"
        "from holdfast.signals.otlp.flat.table import flat_table\n"
        "print([flat_table(k, [request(k, random.Random(1))]).num_rows for k in OtlpKind])\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)
