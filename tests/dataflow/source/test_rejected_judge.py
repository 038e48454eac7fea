"""Which rows fit: one value that does not costs one row, whatever stands beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from holdfast.dataflow.source.rejected_judge import fit_rows
from holdfast.dataflow.source.schema import fitter

NOW = datetime(2026, 5, 1, tzinfo=UTC)
POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])


@pytest.mark.parametrize(
    ("stored", "wanted", "fitting", "unfit"),
    [
        pytest.param(pa.array([1, 300, -129, 127]), pa.int8(), [1, 127], [1, 2], id="overflow"),
        pytest.param(
            pa.array(["1", "many", None, "3.5", "4"]), pa.int64(), [1, None, 4], [1, 3], id="text"
        ),
        pytest.param(pa.array([1.0, 1.5]), pa.int32(), [1], [1], id="fraction"),
        pytest.param(pa.array([2**53 + 1, 5]), pa.float64(), [5.0], [0], id="precision"),
        pytest.param(pa.array([1, None]), pa.string(), ["1", None], [], id="anything is a text"),
        pytest.param(pa.array([b"a", b"\xff"]), pa.string(), ["a"], [1], id="no UTF-8"),
        pytest.param(
            pa.array([["1"], ["a", "2"], []]), pa.list_(pa.int8()), [[1], []], [1], id="list"
        ),
        pytest.param(
            pa.array([["1"], ["a"]], pa.list_(pa.string(), 1)), pa.list_(pa.int8()), [[1]], [1],
            id="a list of one length",
        ),
        pytest.param(
            pa.array([{"l": ["a"]}, {"l": ["2"]}]), pa.struct([("l", pa.list_(pa.int8()))]),
            [{"l": [2]}], [0], id="a list inside",
        ),
        pytest.param(
            pa.array([[("a", "1")], [("b", "x")]], pa.map_(pa.string(), pa.string())),
            pa.map_(pa.string(), pa.int64()), [[("a", 1)]], [1], id="a map",
        ),
        pytest.param(
            pa.array(["1", "x", "1"]).dictionary_encode(), pa.int64(), [1, 1], [1], id="dictionary"
        ),
        pytest.param(
            pa.array([{"x": "1"}, {"x": "a"}, None]),
            POINT,
            [{"x": 1, "y": None}, None],
            [1],
            id="a struct with less, and with other types",
        ),
        pytest.param(
            pa.array([{"z": 1, "y": 2, "x": 3}]),
            POINT,
            [{"x": 3, "y": 2}],
            [],
            id="a struct with more, in another order",
        ),
        pytest.param(pa.array([{"x": 1}, None]), pa.int64(), [None], [0], id="once a number"),
        pytest.param(pa.array([1, None]), POINT, [None], [0], id="once a struct"),
        pytest.param(pa.array([True, False]), pa.timestamp("us"), [], [0, 1], id="hopeless"),
        pytest.param(pa.nulls(2), pa.int64(), [None, None], [], id="nothing at all"),
        pytest.param(
            pa.array([2**60, 0], pa.timestamp("s")),
            pa.timestamp("us"),
            [datetime(1970, 1, 1)],  # noqa: DTZ001
            [0],
            id="a time beyond all times",
        ),
    ],
)  # fmt: skip
def test_rows_that_fit_go_on_and_the_others_are_named(
    stored: pa.Array, wanted: pa.DataType, fitting: list[Any], unfit: list[int]
) -> None:
    batch = pa.record_batch({"n": stored, "beside": list(range(len(stored)))})
    schema = pa.schema([("n", wanted), ("beside", pa.int64()), ("gone", pa.string())])
    rows, rejected = fit_rows(batch, schema)
    assert rows.schema == schema
    assert rows.column("n").to_pylist() == fitting
    assert rows.column("beside").to_pylist() == [p for p in range(len(stored)) if p not in unfit]
    assert set(rows.column("gone").to_pylist()) <= {None}
    assert [one.row_index for one in rejected] == unfit
    assert all((m.column, m.stored, m.wanted) == ("n", stored.type, wanted) for m in rejected)


def test_a_row_is_told_by_the_first_column_that_does_not_fit() -> None:
    batch = pa.record_batch({"a": ["1", "x", "2"], "b": ["x", "x", "2"]})
    rows, rejected = fit_rows(batch, pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    assert rows.to_pylist() == [{"a": 2, "b": 2}]
    assert [(one.row_index, one.column) for one in rejected] == [
        (0, "b"),
        (1, "a"),
    ]
    assert str(rejected[1]) == (
        "column 'a' is string there and int64 in the query, and the value does not fit: "
        "Failed to parse string: 'x' as a scalar of type int64"
    )


def test_runs_and_nanoseconds_fit_also_inside_of_others() -> None:
    nanos = pa.array([1_234_567], pa.timestamp("ns", "UTC"))
    batch = pa.record_batch(
        {
            "runs": pc.run_end_encode(pa.array(["a"])),
            "inner": pa.StructArray.from_arrays([nanos], ["at"]),
        }
    )
    time = pa.timestamp("us", "UTC")
    wanted = pa.schema([("runs", pa.string()), ("inner", pa.struct([("at", time)]))])
    row = fitter(wanted)(batch).to_pylist()[0]
    assert row["runs"] == "a"
    assert row["inner"]["at"] == datetime(1970, 1, 1, 0, 0, 0, 1234, tzinfo=UTC)


# ------------------------------------------------------------------------------ property

KINDS: list[st.SearchStrategy[Any]] = [
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-200, 200),
    st.floats(allow_nan=False, width=64),
    st.booleans(),
    st.text(max_size=3),
    st.integers(-200, 200).map(str),
    st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 300), min_size=1),
    st.lists(st.integers(0, 300), max_size=3),
    st.lists(st.integers(0, 300).map(str), max_size=3),
]
WANTED = st.sampled_from(
    [
        pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
        pa.timestamp("us", "UTC"), pa.date32(), pa.decimal128(5, 2), pa.binary(), POINT,
        pa.list_(pa.int8()),
    ]
)  # fmt: skip


def columns(rows: int) -> st.SearchStrategy[pa.Array]:
    """Return columns of values of one kind each, some of them null."""
    values = st.sampled_from(KINDS).flatmap(
        lambda kind: st.lists(kind | st.none(), min_size=rows, max_size=rows)
    )
    return values.map(pa.array)


@settings(max_examples=examples(300))
@given(st.data(), st.integers(1, 12))
def test_what_fits_and_what_does_not_is_everything_in_order(data: st.DataObject, rows: int) -> None:
    """And a row is judged by itself alone: it is judged again, beside others, after a restart."""
    drawn = {name: data.draw(columns(rows)) for name in "ab"}
    batch = pa.record_batch({"number": list(range(rows)), **drawn})
    fields = [("number", pa.int64()), *((name, data.draw(WANTED)) for name in "ab")]
    wanted = pa.schema(fields)
    fitted, rejected = fit_rows(batch, wanted)
    fitted.validate(full=True)
    went_on, stayed = (
        fitted.column("number").to_pylist(),
        [one.row_index for one in rejected],
    )
    assert sorted([*went_on, *stayed]) == list(range(rows))
    assert went_on == sorted(went_on)
    assert stayed == sorted(stayed)
    alone = [fit_rows(batch.slice(place, 1), wanted) for place in range(rows)]
    assert [place for place, (_, unfit) in enumerate(alone) if unfit] == stayed
    assert shown([fitted]) == shown([one for one, _ in alone])
    if not rejected:
        assert shown([fitter(wanted)(batch)]) == shown([fitted])


def shown(batches: list[pa.RecordBatch]) -> list[str]:
    """Return the columns of some batches as Arrow prints them.

    Not as values of Python: a number that "nan" is equals nothing, and not every time is a date.
    Arrow may leave any value beneath a struct that is null, and prints it, too: `flatten` does not.
    """
    names = batches[0].schema.names
    columns = [pa.concat_arrays([batch.column(name) for batch in batches]) for name in names]
    return [
        part.to_string(window=20)
        for column in columns
        for part in (
            (column.is_valid(), *column.flatten()) if pa.types.is_struct(column.type) else (column,)
        )
    ]
