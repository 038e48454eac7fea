"""The facts of the OpenLineage standard facets: which there are, where they belong, what they hold.

No package carries the specification's schema files, and the gateway fetches nothing, so this table
is what it knows: names, types, what is required. `schema.py` compiles it; a test compares it with
the classes of the installed openlineage-python, and fails when those have what this table lacks.
Two rules of the schema files are not in those classes: POSITIVE, and Closed.

How a shape is written:

    S I N B         string, integer, number, boolean
    POSITIVE        an integer from 1 on
    TIME UUID URI   strings of that format
    OBJECT          any object
    [shape]         an array
    {...}           an object; a name with a star is required; names that are not listed are allowed
    Closed({...})   an object in which no other names are allowed
    Each(shape)     an object that maps names of the producer's choice to a shape
    OneOf(...)      one of these strings
    Cases(...)      an object whose `type` says which of several shapes it has
    Ref(name)       one of SHAPES, which may refer to itself
    FACETS_OF_RUN, FACETS_OF_JOB
                    facets repeated from another run or job: only what all facets share is checked

A facet is found by its key and its *slot*, the place it stands in: the same key may mean something
else in another slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

SPEC_VERSION = "2-0-2"


class EventKind(StrEnum):
    """What an event describes. Its shape says so, not its schemaURL."""

    RUN = "run"
    DATASET = "dataset"
    JOB = "job"

    # Enum's own is written in Python, and this is a key that is looked up for every event.
    __hash__ = str.__hash__


class Slot(StrEnum):
    """A place where facets stand."""

    RUN = "run"
    JOB = "job"
    DATASET = "dataset"
    INPUT = "input"
    OUTPUT = "output"


# Where each slot's facets are found in an event, for hints.
PLACES = {
    Slot.RUN: "run.facets",
    Slot.JOB: "job.facets",
    Slot.DATASET: "the facets of a dataset",
    Slot.INPUT: "the inputFacets of an input",
    Slot.OUTPUT: "the outputFacets of an output",
}

# Proposal 1837: `"_deleted": true` takes back a facet that was sent before.
DELETABLE = frozenset({Slot.JOB, Slot.DATASET})


class Plain(StrEnum):
    """A shape without parts."""

    STRING = "string"
    INTEGER = "integer"
    POSITIVE = "positive integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    TIME = "date-time"
    UUID = "uuid"
    URI = "uri"
    FACETS_OF_RUN = "facets of a run"
    FACETS_OF_JOB = "facets of a job"


@dataclass(frozen=True)
class Closed:
    """An object without other fields than these."""

    fields: dict[str, Shape]


@dataclass(frozen=True)
class Each:
    """An object that maps any name to one shape."""

    shape: Shape


class OneOf(tuple[str, ...]):
    """One of these strings.

    Only where the standard closes the list. Most of its "types" are examples that others may add
    to, and those are plain strings here: a value that is new must not cost an event.
    """

    __slots__ = ()

    def __new__(cls, *options: str) -> OneOf:
        return super().__new__(cls, options)


@dataclass(frozen=True)
class Cases:
    """An object whose `type` names its case; the cases' own fields, without `type`."""

    by_type: dict[str, dict[str, Shape]]
    # Fields of which either all are there or none.
    together: tuple[str, ...] = ()


@dataclass(frozen=True)
class SchemaRef:
    """A named shape."""

    name: str


Shape: TypeAlias = (
    "Plain | OneOf | Closed | Each | Cases | SchemaRef | list[Shape] | dict[str, Shape]"
)
Fields: TypeAlias = "dict[str, Shape]"

S, I, N, B = Plain.STRING, Plain.INTEGER, Plain.NUMBER, Plain.BOOLEAN  # noqa: E741
TIME, UUID, URI, OBJECT = Plain.TIME, Plain.UUID, Plain.URI, Plain.OBJECT
POSITIVE = Plain.POSITIVE


@dataclass(frozen=True)
class Facet:
    """One standard facet in one slot."""

    slot: Slot
    key: str
    version: str
    fields: Fields


# Parts that several facets share. They follow the schema files, not each other: what looks like an
# oversight (a job without a name is fine in one facet and not in another) is theirs.
_JOB_NAME: Fields = {"namespace*": S, "name*": S}
_DEPENDENCY: Fields = {
    "job*": _JOB_NAME,
    "run": {"runId*": UUID},
    "dependency_type": S,
    "sequence_trigger_rule": S,
    "status_trigger_rule": S,
}
_PARENT: Fields = {
    "run*": {"runId*": UUID, "facets": Plain.FACETS_OF_RUN},
    "job*": {**_JOB_NAME, "facets": Plain.FACETS_OF_JOB},
}
_TAG: Fields = {"key*": S, "value*": S, "source": S}
_TRANSFORMATION: Fields = {"type*": S, "subtype": S, "description": S, "masking": B}
_INPUT_FIELD: Fields = {
    "namespace*": S,
    "name*": S,
    "field*": S,
    "transformations": [_TRANSFORMATION],
}
_TEST: Fields = {
    "severity": S,
    "description": S,
    "expected": S,
    "actual": S,
    "content": S,
    "contentType": S,
    "params": OBJECT,
}
_QUALITY: Fields = {
    "rowCount": I,
    "bytes": I,
    "fileCount": I,
    "lastUpdated": TIME,
    "columnMetrics*": Each(
        {
            "nullCount": I,
            "distinctCount": I,
            "sum": N,
            "count": N,
            "min": N,
            "max": N,
            "quantiles": Each(N),
        }
    ),
}
_SIZES: Fields = {"rowCount": I, "size": I, "fileCount": I}
_LINEAGE_FIELDS = Each({"inputs*": [SchemaRef("lineage_input")]})
_OPERAND = Cases({"field": {"field*": S}, "literal": {"value*": S}})

# Shapes with a name: they hold themselves, as a field of a schema holds fields. The compiled schema
# refers to them by that name and does not repeat them.
SHAPES: dict[str, Shape] = {
    "schema_field": {
        "name*": S,
        "type": S,
        "description": S,
        "ordinal_position": I,
        "fields": [SchemaRef("schema_field")],
    },
    "subset": Cases(
        {
            "location": {"locations*": [S]},
            "partition": {"partitions*": [{"identifier": S, "dimensions*": OBJECT}]},
            "binary": {"left*": SchemaRef("subset"), "right*": SchemaRef("subset"), "operator*": S},
            "compare": {"left*": _OPERAND, "right*": _OPERAND, "comparison*": S},
        }
    ),
    "lineage_input": Cases(
        {
            "DATASET": {
                "namespace*": S,
                "name*": S,
                "field": S,
                "transformations": [_TRANSFORMATION],
            },
            "JOB": {
                "namespace": S,
                "name": S,
                "runId": UUID,
                "transformations": [_TRANSFORMATION],
            },
        },
        together=("namespace", "name"),
    ),
    "lineage_entry": Cases(
        {
            "DATASET": {
                "namespace*": S,
                "name*": S,
                "inputs": [SchemaRef("lineage_input")],
                "fields": _LINEAGE_FIELDS,
            },
            "JOB": {
                "namespace": S,
                "name": S,
                "runId": UUID,
                "inputs": [SchemaRef("lineage_input")],
            },
        },
        together=("namespace", "name"),
    ),
}

# By slot: the key of a facet, the version of its schema file, its fields.
_RUN: dict[str, tuple[str, Fields]] = {
    "environmentVariables": ("1-0-0", {"environmentVariables*": [{"name*": S, "value*": S}]}),
    "errorMessage": ("1-0-1", {"message*": S, "programmingLanguage*": S, "stackTrace": S}),
    "executionParameters": (
        "1-0-0",
        {"parameters": [Closed({"key*": S, "name": S, "description": S, "value": S})]},
    ),
    "externalQuery": ("1-0-2", {"externalQueryId*": S, "source*": S}),
    "extractionError": (
        "1-1-2",
        {
            "totalTasks*": I,
            "failedTasks*": I,
            "errors*": [{"errorMessage*": S, "stackTrace": S, "task": S, "taskNumber": I}],
        },
    ),
    "jobDependencies": (
        "1-0-1",
        {"upstream": [_DEPENDENCY], "downstream": [_DEPENDENCY], "trigger_rule": S},
    ),
    "nominalTime": ("1-0-1", {"nominalStartTime*": TIME, "nominalEndTime": TIME}),
    "parent": ("1-2-0", {**_PARENT, "root": _PARENT}),
    "processing_engine": ("1-1-1", {"version*": S, "name": S, "openlineageAdapterVersion": S}),
    "tags": ("1-0-0", {"tags": [_TAG]}),
    "test": ("1-0-1", {"tests*": [{"name*": S, "status*": S, "type": S, **_TEST}]}),
}
_JOB: dict[str, tuple[str, Fields]] = {
    "documentation": ("1-1-0", {"description*": S, "contentType": S}),
    "jobType": (
        "2-0-4",
        {
            "processingType*": S,
            "integration*": S,
            "jobType": S,
            "emissionPattern": {
                "eventTrigger*": S,
                "eventContentMode*": S,
                "windowDuration": POSITIVE,
            },
        },
    ),
    "lineage": ("1-0-0", {"entries*": [SchemaRef("lineage_entry")]}),
    "ownership": ("1-0-1", {"owners": [{"name*": S, "type": S}]}),
    "sourceCode": ("1-0-1", {"language*": S, "sourceCode*": S}),
    "sourceCodeLocation": (
        "1-1-0",
        {
            "type*": S,
            "url*": URI,
            "repoUrl": S,
            "path": S,
            "version": S,
            "tag": S,
            "branch": S,
            "pullRequestNumber": S,
        },
    ),
    "sql": ("1-1-0", {"query*": S, "dialect": S}),
    "tags": ("1-0-0", {"tags": [_TAG]}),
}
_DATASET: dict[str, tuple[str, Fields]] = {
    "catalog": (
        "1-1-0",
        {
            "framework*": S,
            "type*": S,
            "name*": S,
            "metadataUri": S,
            "warehouseUri": S,
            "source": S,
            "catalogProperties": Each(S),
        },
    ),
    "columnLineage": (
        "1-2-0",
        {
            "fields*": Each(
                {
                    "inputFields*": [_INPUT_FIELD],
                    "transformationDescription": S,
                    "transformationType": S,
                }
            ),
            "dataset": [_INPUT_FIELD],
        },
    ),
    "dataQualityMetrics": ("1-0-1", {**_QUALITY, "captureDate": TIME}),
    "dataSource": ("1-0-1", {"name": S, "uri": URI}),
    "datasetType": ("1-0-1", {"datasetType*": S, "subType": S}),
    "documentation": ("1-1-0", {"description*": S, "contentType": S}),
    "hierarchy": ("1-0-0", {"hierarchy*": [{"type*": S, "name*": S}]}),
    "lifecycleStateChange": (
        "1-0-1",
        {
            "lifecycleStateChange*": OneOf(
                "ALTER", "CREATE", "DROP", "OVERWRITE", "RENAME", "TRUNCATE"
            ),
            "previousIdentifier": {"name*": S, "namespace*": S},
        },
    ),
    "lineage": ("1-0-0", {"inputs": [SchemaRef("lineage_input")], "fields": _LINEAGE_FIELDS}),
    "ownership": ("1-0-1", {"owners": [{"name*": S, "type": S}]}),
    "schema": ("1-2-0", {"fields": [SchemaRef("schema_field")]}),
    "storage": ("1-0-1", {"storageLayer*": S, "fileFormat": S}),
    "symlinks": ("1-0-1", {"identifiers": [{"namespace*": S, "name*": S, "type*": S}]}),
    "tags": ("1-0-0", {"tags": [{**_TAG, "field": S}]}),
    "version": ("1-0-1", {"datasetVersion*": S}),
}
_INPUT: dict[str, tuple[str, Fields]] = {
    "dataQualityAssertions": (
        "1-1-0",
        {"assertions*": [{"assertion*": S, "success*": B, "column": S, "name": S, **_TEST}]},
    ),
    "dataQualityMetrics": ("1-0-3", _QUALITY),
    "inputStatistics": ("1-0-0", _SIZES),
    "subset": ("1-0-0", {"inputCondition*": SchemaRef("subset")}),
}
_OUTPUT: dict[str, tuple[str, Fields]] = {
    "outputStatistics": ("1-0-2", _SIZES),
    "subset": ("1-0-0", {"outputCondition*": SchemaRef("subset")}),
}

FACETS: dict[tuple[Slot, str], Facet] = {
    (slot, key): Facet(slot, key, version, fields)
    for slot, rows in (
        (Slot.RUN, _RUN),
        (Slot.JOB, _JOB),
        (Slot.DATASET, _DATASET),
        (Slot.INPUT, _INPUT),
        (Slot.OUTPUT, _OUTPUT),
    )
    for key, (version, fields) in rows.items()
}

EVENT_TYPES = OneOf("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER")
