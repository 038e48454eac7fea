"""docs/format/flat.md lists the columns of the flat tables as they are."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from scripts.dump_format import DOCS, table_rows

from holdfast.signals.otlp.flat.schema import ATTRIBUTES, SCHEMAS, VALUE
from holdfast.signals.otlp.flat.table import (
    JOINED_BYTES_MAX,
    TABLE_BYTES_MAX,
    TOGETHER_BYTES_MAX,
)

PAGE = (DOCS / "flat.md").read_text()
STRUCTS = ("entity_ref", "event", "link", "buckets", "quantile", "exemplar")


def listed(table: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in table_rows(PAGE, f"flat {table}")]


def said(fields: Iterable[pa.Field]) -> list[tuple[str, str]]:
    """Return names and types as the page says them."""
    return [(field.name, type_name(field.type)) for field in fields]


def type_name(kind: pa.DataType) -> str:
    if kind.equals(ATTRIBUTES):
        return "attributes"
    if kind.equals(VALUE):
        return "value"
    if pa.types.is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        [name] = [name for name in STRUCTS if listed(name) == said(kind)]
        return name
    return str(kind)


def test_columns_have_the_types_the_page_gives() -> None:
    assert listed("value") == said(VALUE)
    for name, schema in SCHEMAS.items():
        assert listed("first") + listed(name) + listed("joined") == said(schema)


def test_bounds_are_those_of_the_code() -> None:
    numbers = [int(row[1].split()[0]) for row in table_rows(PAGE, "flat bounds")]
    assert numbers == [TOGETHER_BYTES_MAX, JOINED_BYTES_MAX, TABLE_BYTES_MAX]
