"""Columns for Spark: every Arrow type has one that Spark reads, or is left out and named."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.schema import fitter, spark_type, stored_schema
from holdfast.errors import BadInput
from holdfast.quiver import Quiver

NOW = datetime(2026, 5, 1, tzinfo=UTC)

# What is stored, and how Spark reads it.
COLUMNS: dict[str, tuple[pa.Array, pa.DataType]] = {
    "tiny": (pa.array([200], pa.uint8()), pa.int16()),
    "huge": (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
    "half": (pa.array([0.5], pa.float16()), pa.float32()),
    "word": (pa.array(["a"]).dictionary_encode(), pa.string()),
    "text": (pa.array(["a"], pa.large_string()), pa.string()),
    "view": (pa.array(["a"], pa.string_view()), pa.string()),
    "blob": (pa.array([b"ab"], pa.binary(2)), pa.binary()),
    "day": (pa.array([date(2026, 5, 1)], pa.date64()), pa.date32()),
    "nanos": (pa.array([NOW], pa.timestamp("ns", "Europe/Berlin")), pa.timestamp("us", "UTC")),
    "local": (pa.array([NOW.replace(tzinfo=None)], pa.timestamp("s")), pa.timestamp("us")),
    "money": (pa.array([Decimal("1.50")]), pa.decimal128(3, 2)),
    "tags": (pa.array([["a"]], pa.large_list(pa.large_string())), pa.list_(pa.string())),
    "pairs": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.uint8())), None),
    "inner": (pa.array([{"x": 1}], pa.struct([("x", pa.uint16())])), None),
    "nothing": (pa.nulls(1), pa.string()),
}


def test_every_type_has_a_place_in_spark() -> None:
    stored = pa.record_batch({name: array for name, (array, _) in COLUMNS.items()})
    fields = [pa.field(field.name, spark_type(field.type)) for field in stored.schema]
    for field, (_, wanted) in zip(fields, COLUMNS.values(), strict=True):
        assert wanted is None or field.type == wanted
    # What Spark will ask for is made of its own types, and back.
    asked = to_arrow_schema(from_arrow_schema(pa.schema(fields)), timezone="UTC")
    fitted = fitter(asked)(stored)
    assert fitted.schema == asked
    fitted.validate(full=True)
    row = fitted.to_pylist()[0]
    assert (row["tiny"], row["huge"], row["word"], row["tags"]) == (200, 2**64 - 1, "a", ["a"])
    assert row["nanos"] == NOW
    assert (dict(row["pairs"]), row["inner"], row["nothing"]) == ({"a": 1}, {"x": 1}, None)


def test_what_spark_has_no_type_for_is_left_out_or_named(tmp_path: Path) -> None:
    odd = pa.array([1], pa.time32("s"))
    with Quiver.open(tmp_path / "q") as quiver:
        quiver.append(pa.record_batch({"odd": odd, "plain": [1]}))
    given = {"path": str(tmp_path / "q")}
    assert "odd" not in stored_schema(parse_options(given)).names
    with pytest.raises(BadInput, match="no type for column 'odd'"):
        stored_schema(parse_options(given | {"columns": "odd"}))


def test_a_value_that_outgrew_its_column_is_named() -> None:
    fit = fitter(pa.schema([("n", pa.int16())]))
    with pytest.raises(BadInput, match=r"'n' .* do not fit int16"):
        fit(pa.record_batch({"n": pa.array([2**40], pa.int64())}))
    missing = fit(pa.record_batch({"other": [1, 2]}))
    assert missing.to_pylist() == [{"n": None}, {"n": None}]
