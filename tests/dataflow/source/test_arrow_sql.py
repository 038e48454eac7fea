"""The part of SQL that Arrow is given: what it comes to, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from holdfast.dataflow.source.arrow_sql import Unsupported, parse

ROWS: dict[str, Any] = {
    "a": pa.array([1, None, 3, -4]),
    "f": pa.array([1.5, math.nan, None, -0.0]),
    "g": pa.array([1.5, 2.0, None, 0.0], pa.float32()),
    "s": pa.array(["x", "y", None, "z"]),
    "b": pa.array([True, False, None, True]),
    "odd name": pa.array([1, 2, 3, 4]),
}


def values(text: str) -> list[Any]:
    found: list[Any] = parse(text).column(lambda name: ROWS[name], 4).to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 1", [False, None, True, False]),
        ("not a > 1 or s = 'x'", [True, None, None, True]),
        ("f > 1", [True, True, None, False]),
        ("f = f AND f <= f", [True, True, None, True]),
        ("f = 0", [False, False, None, True]),
        ("f = g", [True, False, None, True]),
        ("a in (1, 3)", [True, None, True, False]),
        ("a NOT BETWEEN 2 AND 3", [True, None, False, True]),
        ("a is not null", [True, False, True, True]),
        ("s <> 'y' and (b or a = 3)", [True, False, None, True]),
        ("-3 < a", [True, None, True, False]),
        ("`odd name` >= 3", [False, False, True, True]),
        ("cast(s = 'x' as int)", [1, 0, None, 0]),
        ("f * 2 - 1", [2.0, math.nan, None, -1.0]),
        ("true", [True] * 4),
    ],
)
def test_values_are_those_of_spark(text: str, expected: list[Any]) -> None:
    assert list(map(str, values(text))) == list(map(str, expected))


@pytest.mark.parametrize(
    "text",
    [
        "a * 2", "a / 2", "a = 1.5", "g = 1.5", "g = 1", "s = 1", "a and b", "not a", "s like 'x'",
        "upper(s)", "a.b = 1", "s = 'it''s'", "s = 'a\\\\b'", 's = "x"', "a = 1 = true", "a in (s)",
        "a in (select 1)", "case when b then 1 end", "cast(f as int)", "cast(s as double)", "a =",
        "1e5 < f", "a <=> 1", "null", "(a = 1", "a = 1)", "", "-a", "99999999999999999999 > a",
    ],
)  # fmt: skip
def test_whatever_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        values(text)


def test_the_columns_of_an_expression_are_named() -> None:
    assert parse("a > 1 and cast(b as int) = `odd name`").names == {"a", "b", "odd name"}
