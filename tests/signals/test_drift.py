"""The drift alarm: our table says exactly what the classes of the installed client say.

When this fails after an update of openlineage-python, the specification has moved: take the new
facet or field into `facts.py`, and a case for it into `test_facets.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import attr
from openlineage.client.generated import base
from tests.signals.client_classes import (
    SLOTS,
    constant_of,
    facet_classes,
    fields_of,
    format_of,
    is_required,
    members,
    version_of,
)

from holdfast.signals.openlineage.facts import (
    EVENT_TYPES,
    FACETS,
    SHAPES,
    SPEC_VERSION,
    Cases,
    Closed,
    Each,
    OneOf,
    Plain,
    SchemaRef,
    Shape,
)

# How many names deep the comparison goes: deeper than anything, and a recursion ends.
DEEPEST = 8
BASE_FIELDS = {"_producer", "_schemaURL", "_deleted"}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "anything"}


def client_lines(annotation: Any, path: str) -> Iterator[str]:
    """Yield one line for everything that a type of the client says."""
    options = members(annotation)
    for option in options:
        origin = get_origin(option)
        if origin is list:
            yield from client_lines(get_args(option)[0], f"{path}[]")
        elif origin is dict:
            yield from client_dict_lines(get_args(option)[1], path)
        elif attr.has(option):
            yield from client_class_lines(option, path, is_case=len(options) > 1)
        elif isinstance(option, type) and issubclass(option, Enum):
            yield f"{path}: {sorted(member.value for member in option)}"
        else:
            yield f"{path}: {PLAIN[option]}"


def client_dict_lines(inner: Any, path: str) -> Iterator[str]:
    if inner is Any:
        yield f"{path}: object"
    elif inner in SLOTS:
        yield f"{path}: facets of a {SLOTS[inner]}"
    else:
        yield from client_lines(inner, f"{path}{{}}")


def client_class_lines(cls: type, path: str, *, is_case: bool) -> Iterator[str]:
    if path.count(".") == DEEPEST:
        return
    fields = [(field, hint) for field, hint in fields_of(cls) if field.name not in BASE_FIELDS]
    if is_case:
        path = f"{path}<{case_of(fields)}>"
        fields = [(field, hint) for field, hint in fields if field.name != "type"]
    for field, hint in fields:
        star = "*" if is_required(field) else ""
        what = format_of(field)
        if what is not None:
            yield f"{path}.{field.name}{star}: {what}"
        else:
            yield from client_lines(hint, f"{path}.{field.name}{star}")


def case_of(fields: list[tuple[attr.Attribute[Any], Any]]) -> str:
    (field, hint) = next(each for each in fields if each[0].name == "type")
    return constant_of(field) or str(get_args(hint)[0] if get_origin(hint) is Literal else "")


def table_lines(shape: Shape, path: str) -> Iterator[str]:
    """Yield one line for everything that a shape of our table says."""
    match shape:
        case Plain.POSITIVE:  # the classes say no more than that it is an integer
            yield f"{path}: {Plain.INTEGER}"
        case Plain():
            yield f"{path}: {shape}"
        case Closed(fields):  # nor that there are no other fields
            yield from table_lines(fields, path)
        case OneOf():
            yield f"{path}: {sorted(shape)}"
        case Each(inner):
            yield from table_lines(inner, f"{path}{{}}")
        case SchemaRef(name):
            yield from table_lines(SHAPES[name], path)
        case Cases(by_type):
            for name, fields in by_type.items():
                yield from table_lines(fields, f"{path}<{name}>")
        case list():
            yield from table_lines(shape[0], f"{path}[]")
        case dict() if path.count(".") < DEEPEST:
            for name, inner in shape.items():
                yield from table_lines(inner, f"{path}.{name}")


def client_facts(slot: str, key: str, cls: type) -> set[str]:
    return set(client_class_lines(cls, f"{slot}.{key}", is_case=False))


def test_the_table_has_the_facets_of_the_client() -> None:
    assert {(str(slot), key) for slot, key in FACETS} == set(facet_classes())


def test_the_table_has_the_fields_of_the_client() -> None:
    client = {line for at, cls in facet_classes().items() for line in client_facts(*at, cls)}
    table = {
        line
        for (slot, key), facet in FACETS.items()
        for line in table_lines(facet.fields, f"{slot}.{key}")
    }
    assert sorted(client - table) == [], "the client has what the table lacks"
    assert sorted(table - client) == [], "the table has what the client lacks"
    assert len(table) > 200


def test_the_table_has_the_versions_of_the_client() -> None:
    versions = {at: version_of(cls) for at, cls in facet_classes().items()}
    assert {(str(slot), key): facet.version for (slot, key), facet in FACETS.items()} == versions


def test_the_core_is_that_of_the_client() -> None:
    assert f"/{SPEC_VERSION}/" in base.RunEvent._get_schema()
    assert set(EVENT_TYPES) == {member.value for member in base.EventType}
    known = {
        base.RunEvent: "eventTime* producer* schemaURL* run* job* eventType inputs outputs",
        base.JobEvent: "eventTime* producer* schemaURL* job* inputs outputs",
        base.DatasetEvent: "eventTime* producer* schemaURL* dataset*",
        base.Run: "runId* facets",
        base.Job: "namespace* name* facets",
        base.InputDataset: "namespace* name* facets inputFacets",
        base.OutputDataset: "namespace* name* facets outputFacets",
        base.StaticDataset: "namespace* name* facets",
        base.RunFacet: "_producer* _schemaURL*",
        base.JobFacet: "_producer* _schemaURL* _deleted",
        base.DatasetFacet: "_producer* _schemaURL* _deleted",
        base.InputDatasetFacet: "_producer* _schemaURL*",
        base.OutputDatasetFacet: "_producer* _schemaURL*",
    }
    for cls, names in known.items():
        found = {field.name + ("*" if is_required(field) else "") for field, _ in fields_of(cls)}
        assert found == set(names.split()), cls


def test_the_alarm_rings_for_a_new_field_and_a_new_requirement() -> None:
    sql = facet_classes()["job", "sql"]

    @attr.define
    class Newer(sql):  # type: ignore[misc, valid-type]
        engine: int | None = attr.field(default=None)
        dialect: str = attr.field(kw_only=True)

    new = client_facts("job", "sql", Newer) - client_facts("job", "sql", sql)
    assert new == {"job.sql.engine: integer", "job.sql.dialect*: string"}
