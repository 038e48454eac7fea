"""Compiles the table of facts to JSON Schema, one for each kind of event.

There is no `oneOf`: which kind an event is, and which case a union has, is decided by looking at
one field. So an error points at what is wrong, and not at a choice that failed as a whole.

The schema is as strict as it can be: formats are asserted, a facet in the wrong place and an
integer beyond 64 bits are errors. That makes "nothing to say about this event" one call.
`findings.py` then decides, for the events that fail, what is an error and what a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from holdfast.signals.openlineage.facts import (
    DELETABLE,
    EVENT_TYPES,
    FACETS,
    PLACES,
    SHAPES,
    Cases,
    Closed,
    Each,
    EventKind,
    Fields,
    OneOf,
    Plain,
    SchemaRef,
    Shape,
    Slot,
)

Schema: TypeAlias = "dict[str, Any] | bool"

DIALECT = "https://json-schema.org/draft/2020-12/schema"
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_PLAIN: dict[Plain, dict[str, Any]] = {
    Plain.STRING: {"type": "string"},
    Plain.INTEGER: {"type": "integer", "minimum": INT64_MIN, "maximum": INT64_MAX},
    Plain.POSITIVE: {"type": "integer", "minimum": 1, "maximum": INT64_MAX},
    Plain.NUMBER: {"type": "number"},
    Plain.BOOLEAN: {"type": "boolean"},
    Plain.OBJECT: {"type": "object"},
    Plain.TIME: {"type": "string", "format": "date-time"},
    Plain.UUID: {"type": "string", "format": "uuid"},
    Plain.URI: {"type": "string", "format": "uri"},
    Plain.FACETS_OF_RUN: {"$ref": "#/$defs/facets_of_other_run"},
    Plain.FACETS_OF_JOB: {"$ref": "#/$defs/facets_of_other_job"},
}

_BASE_EVENT: Fields = {"eventTime*": Plain.TIME, "producer*": Plain.URI, "schemaURL*": Plain.URI}
_BASE_FACET: Fields = {"_producer*": Plain.URI, "_schemaURL*": Plain.URI}
_BASE_NAME: Fields = {"namespace*": Plain.STRING, "name*": Plain.STRING}


def schema_of(shape: Shape) -> dict[str, Any]:
    """Return the JSON Schema of a shape."""
    match shape:
        case Plain():
            return _PLAIN[shape]
        case OneOf():
            return {"enum": list(shape)}
        case Closed(fields):
            return {**object_schema(fields), "additionalProperties": False}
        case Each(inner):
            return {"type": "object", "additionalProperties": schema_of(inner)}
        case SchemaRef(name):
            return {"$ref": f"#/$defs/{name}"}
        case Cases():
            return _cases_schema(shape)
        case list():
            (inner,) = shape
            return {"type": "array", "items": schema_of(inner)}
        case dict():
            return object_schema(shape)


def object_schema(fields: Fields) -> dict[str, Any]:
    """Return the JSON Schema of an object; a star marks what is required."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name.rstrip("*"): schema_of(shape) for name, shape in fields.items()},
    }
    required = [name.rstrip("*") for name in fields if name.endswith("*")]
    return {**schema, "required": required} if required else schema


def _cases_schema(cases: Cases) -> dict[str, Any]:
    """Return a schema with an `if` for each case.

    The `if` asks for `type` to be there: without it every case would hold for an object that has
    none, and an event with one mistake would be told of all fields of all cases.
    """
    branches = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": object_schema(fields),
        }
        for name, fields in cases.by_type.items()
    ]
    schema = object_schema({"type*": OneOf(*cases.by_type)})
    if cases.together:
        names = set(cases.together)
        schema["dependentRequired"] = {name: sorted(names - {name}) for name in cases.together}
    return {**schema, "allOf": branches}


def facet_schema(slot: Slot, fields: Fields) -> dict[str, Any]:
    """Return the JSON Schema of one facet, what all facets share included."""
    deleted: Fields = {"_deleted": Plain.BOOLEAN} if slot in DELETABLE else {}
    return object_schema({**_BASE_FACET, **deleted, **fields})


def base_facet(slot: Slot) -> dict[str, Any]:
    """Return the JSON Schema of what all facets of a slot share."""
    return facet_schema(slot, {})


# The field that holds a slot's facets.
FACETS_FIELD = {
    Slot.RUN: "facets",
    Slot.JOB: "facets",
    Slot.DATASET: "facets",
    Slot.INPUT: "inputFacets",
    Slot.OUTPUT: "outputFacets",
}

# The parts of events: what they are made of, and the slots of their facets.
_PARTS: dict[str, tuple[Fields, list[Slot]]] = {
    "run": ({"runId*": Plain.UUID}, [Slot.RUN]),
    "job": (_BASE_NAME, [Slot.JOB]),
    "dataset": (_BASE_NAME, [Slot.DATASET]),
    "inputs": (_BASE_NAME, [Slot.DATASET, Slot.INPUT]),
    "outputs": (_BASE_NAME, [Slot.DATASET, Slot.OUTPUT]),
}
_LISTS = {"inputs": Slot.OUTPUT, "outputs": Slot.INPUT}  # and whose facets stand there by mistake

# Which parts each kind of event has: required, optional.
_PARTS_OF: dict[EventKind, tuple[list[str], list[str]]] = {
    EventKind.RUN: (["run", "job"], ["inputs", "outputs"]),
    EventKind.JOB: (["job"], ["inputs", "outputs"]),
    EventKind.DATASET: (["dataset"], []),
}


def event_schema(
    kind: EventKind, facets: Mapping[Slot, Mapping[str, Schema]], *, lint: bool
) -> dict[str, Any]:
    """Return the JSON Schema of a kind of event, given which facets to look into.

    With `lint`, what is legal but most often a mistake fails too.
    """
    fields = {**_BASE_EVENT, "eventType": EVENT_TYPES} if kind is EventKind.RUN else _BASE_EVENT
    schema = object_schema(fields)
    required, optional = _PARTS_OF[kind]
    schema["properties"].update({name: _part(name, lint=lint) for name in required + optional})
    schema["required"] += required
    shapes = {name: schema_of(shape) for name, shape in SHAPES.items()}
    slots = {f"facets_of_{slot}": _facets_schema(slot, facets[slot]) for slot in Slot}
    others = {f"facets_of_other_{slot}": _facets_schema(slot, {}) for slot in (Slot.RUN, Slot.JOB)}
    return {"$schema": DIALECT, **schema, "$defs": {**shapes, **slots, **others}}


def _part(name: str, *, lint: bool) -> dict[str, Any]:
    fields, slots = _PARTS[name]
    schema = object_schema(fields)
    for slot in slots:
        schema["properties"][FACETS_FIELD[slot]] = {"$ref": f"#/$defs/facets_of_{slot}"}
    if name not in _LISTS:
        return schema
    if lint:
        schema["properties"][FACETS_FIELD[_LISTS[name]]] = False
    return {"type": "array", "items": schema}


def _facets_schema(slot: Slot, known: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the schema of all facets in a slot: any key is allowed, and one that nobody knows
    must have what every facet has.
    """
    schema = {"type": "object", "additionalProperties": base_facet(slot)}
    return {**schema, "properties": dict(known)} if known else schema


def misplaced_keys(slot: Slot) -> dict[str, str]:
    """Return keys that are no standard facet in this slot but look like one, each with a hint.

    They are legal, as custom facets; most often they are mistakes.
    """
    here = {key for place, key in FACETS if place is slot}
    misplaced: dict[str, str] = {}
    for place, key in FACETS:
        if key not in here:
            places = [PLACES[other] for other, name in FACETS if name == key and other != slot]
            misplaced[key] = f"The facet `{key}` belongs in {' or '.join(places)}."
        hint = f"The standard facet is spelled `{key}`, and belongs in {PLACES[place]}."
        for spelling in _other_spellings(key):
            if spelling not in here:
                misplaced.setdefault(spelling, hint)
    return misplaced


def _other_spellings(key: str) -> set[str]:
    """Return how a key is spelled by people who go by another facet: the standard itself has both
    `columnLineage` and `processing_engine`.
    """
    camel = re.sub(r"_(\w)", lambda found: found[1].upper(), key)
    snake = re.sub(r"(?<=[a-z])[A-Z]", lambda found: "_" + found[0], camel).lower()
    pascal = camel[0].upper() + camel[1:]
    return {camel, snake, pascal, key.lower(), key.upper()} - {name for _, name in FACETS}
