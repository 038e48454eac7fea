"""docs/format/otap.md lists slots, columns and bounds of OTAP as they are."""

from __future__ import annotations

import re
from dataclasses import fields

import pyarrow as pa
from scripts.dump_format import DOCS, table_rows

from holdfast.signals.otap.limits import StreamLimits
from holdfast.signals.otap.payloads import PARENTS, ROOTS, PayloadType, ValueType
from holdfast.signals.otap.plans import LOST_FIELDS
from holdfast.signals.otap.schemas import COLUMNS

PAGE = (DOCS / "otap.md").read_text()


def type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"struct ({', '.join(f'{field.name}: {type_name(field.type)}' for field in kind)})"
    return str(kind)


def test_slots_are_those_of_the_code() -> None:
    found = {int(row[0]): (row[1], row[2]) for row in table_rows(PAGE, "otap slots")}
    assert {number: slot for number, (slot, _) in found.items()} == {
        table.value: table.slot for table in PayloadType
    }
    for table, parent in PARENTS.items():
        assert found[table][1] == parent.slot
    assert {found[root][1] for root in ROOTS.values()} == {f"root of {kind}" for kind in ROOTS}


def test_columns_are_those_of_the_code() -> None:
    groups = re.findall(r"^Of (`otap_.*):\n\n<!-- table: (otap \w+) -->", PAGE, re.MULTILINE)
    listed: dict[str, list[tuple[str, ...]]] = {}
    for slots, name in groups:
        columns = [tuple(row) for row in table_rows(PAGE, name)]
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", slots), columns)
    assert listed == {
        table.slot: [(name, type_name(kind)) for name, kind in COLUMNS[table].items()]
        for table in PayloadType
    }


def test_numbers_are_those_of_the_code() -> None:
    values = [(int(row[0]), row[1]) for row in table_rows(PAGE, "otap values")]
    assert values == [(one.value, one.name.lower()) for one in ValueType]
    bounds = [(row[0], int(row[1])) for row in table_rows(PAGE, "otap bounds")]
    assert bounds == [(field.name, field.default) for field in fields(StreamLimits)]
    assert {row[0] for row in table_rows(PAGE, "otap lost")} == LOST_FIELDS
