"""Every standard facet by hand: a plain valid one, the smallest valid one, and what breaks it.

The mutations say that we agree with the client. These cases say it in a form one can read: each
break has the pointer and the rule that a producer will be told.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.signals.client_classes import TIME, URI, UUID
from tests.signals.events import FACET, event_with, pointer_to_facet

from holdfast.signals.openlineage.facts import FACETS, Slot
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

STRICT = Validator(ValidationSettings(level="strict"))

NAMES = {"namespace": "n", "name": "m"}
PARENT = {"run": {"runId": UUID}, "job": NAMES}
QUALITY = {
    "rowCount": 10,
    "lastUpdated": TIME,
    "columnMetrics": {"a": {"nullCount": 0, "min": 1, "max": 2.5, "quantiles": {"0.5": 1.5}}},
}
SOURCE = {**NAMES, "type": "DATASET", "field": "a", "transformations": [{"type": "DIRECT"}]}
COMPARE = {
    "type": "compare",
    "left": {"type": "field", "field": "a"},
    "right": {"type": "literal", "value": "1"},
    "comparison": "EQUAL",
}
PARTITION = {"type": "partition", "partitions": [{"dimensions": {"day": 1}}]}
BINARY = {"type": "binary", "operator": "AND", "left": COMPARE, "right": PARTITION}

PATTERN = {"eventTrigger": "PERIODIC", "eventContentMode": "COMPLETE_SNAPSHOT"}

Break = tuple[dict[str, Any], str, str]

# Slot and key: a full one, the smallest one, and breaks: what is replaced, where it is told, rule.
CASES: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any], list[Break]]] = {
    ("run", "environmentVariables"): (
        {"environmentVariables": [{"name": "A", "value": "1"}]},
        {"environmentVariables": []},
        [
            ({"environmentVariables": [{"name": "A"}]}, "/environmentVariables/0", "required"),
            ({"environmentVariables": {"A": "1"}}, "/environmentVariables", "type"),
        ],
    ),
    ("run", "errorMessage"): (
        {"message": "m", "programmingLanguage": "Python", "stackTrace": "s"},
        {"message": "m", "programmingLanguage": "Python"},
        [({"message": 1}, "/message", "type"), ({"stackTrace": None}, "/stackTrace", "type")],
    ),
    ("run", "executionParameters"): (
        {"parameters": [{"key": "k", "name": "n", "description": "d", "value": "v"}]},
        {},
        [
            ({"parameters": [{"name": "n"}]}, "/parameters/0", "required"),
            ({"parameters": [{"key": "k", "x": 1}]}, "/parameters/0", "additionalProperties"),
        ],
    ),
    ("run", "externalQuery"): (
        {"externalQueryId": "1", "source": "bigquery"},
        {"externalQueryId": "1", "source": "bigquery"},
        [({"externalQueryId": 1}, "/externalQueryId", "type")],
    ),
    ("run", "extractionError"): (
        {"totalTasks": 2, "failedTasks": 1, "errors": [{"errorMessage": "e", "taskNumber": 1}]},
        {"totalTasks": 2, "failedTasks": 0, "errors": []},
        [
            ({"totalTasks": 1.5}, "/totalTasks", "type"),
            ({"errors": [{"task": "t"}]}, "/errors/0", "required"),
        ],
    ),
    ("run", "jobDependencies"): (
        {
            "upstream": [{"job": NAMES, "run": {"runId": UUID}, "dependency_type": "DIRECT"}],
            "downstream": [{"job": NAMES}],
            "trigger_rule": "all_success",
        },
        {},
        [
            ({"upstream": [{"run": {"runId": UUID}}]}, "/upstream/0", "required"),
            ({"downstream": [{"job": {"name": "m"}}]}, "/downstream/0/job", "required"),
        ],
    ),
    ("run", "nominalTime"): (
        {"nominalStartTime": TIME, "nominalEndTime": TIME},
        {"nominalStartTime": TIME},
        [
            ({"nominalStartTime": "2026-01-31"}, "/nominalStartTime", "format"),
            ({"nominalEndTime": "noon"}, "/nominalEndTime", "format"),
        ],
    ),
    ("run", "parent"): (
        {**PARENT, "root": PARENT},
        PARENT,
        [
            ({"run": {"runId": "1"}}, "/run/runId", "format"),
            ({"root": {"job": NAMES}}, "/root", "required"),
            ({"job": {**NAMES, "facets": {"x": {}}}}, "/job/facets/x", "required"),
        ],
    ),
    ("run", "processing_engine"): (
        {"version": "4.0", "name": "spark", "openlineageAdapterVersion": "1"},
        {"version": "4.0"},
        [({"version": 4.0}, "/version", "type")],
    ),
    ("run", "tags"): (
        {"tags": [{"key": "k", "value": "v", "source": "USER"}]},
        {},
        [({"tags": [{"key": "k"}]}, "/tags/0", "required")],
    ),
    ("run", "test"): (
        {"tests": [{"name": "n", "status": "pass", "severity": "warn", "params": {"a": [1]}}]},
        {"tests": []},
        [
            ({"tests": [{"name": "n"}]}, "/tests/0", "required"),
            ({"tests": [{"name": "n", "status": "pass", "params": []}]}, "/tests/0/params", "type"),
        ],
    ),
    ("job", "documentation"): (
        {"description": "d", "contentType": "text/markdown"},
        {"description": "d"},
        [({"description": ["d"]}, "/description", "type")],
    ),
    ("job", "jobType"): (
        {
            "processingType": "BATCH",
            "integration": "SPARK",
            "jobType": "JOB",
            "emissionPattern": {
                "eventTrigger": "PERIODIC",
                "eventContentMode": "COMPLETE_SNAPSHOT",
                "windowDuration": 60,
            },
        },
        {"processingType": "BATCH", "integration": "SPARK"},
        [
            ({"emissionPattern": {"eventTrigger": "PERIODIC"}}, "/emissionPattern", "required"),
            *(
                (
                    {"emissionPattern": {**PATTERN, "windowDuration": duration}},
                    "/emissionPattern/windowDuration",
                    "minimum",
                )
                for duration in (0, -1, -(2**63))
            ),
        ],
    ),
    ("job", "lineage"): (
        {
            "entries": [
                {**NAMES, "type": "DATASET", "inputs": [SOURCE], "fields": {"a": {"inputs": []}}},
                {"type": "JOB", "runId": UUID, "inputs": [{"type": "JOB"}]},
            ]
        },
        {"entries": []},
        [
            ({"entries": [{"type": "DATASET", "name": "m"}]}, "/entries/0", "required"),
            ({"entries": [{"type": "JOB", "name": "m"}]}, "/entries/0", "required"),
            ({"entries": [{"type": "TABLE"}]}, "/entries/0/type", "enum"),
            ({"entries": [{**NAMES}]}, "/entries/0", "required"),
        ],
    ),
    ("job", "ownership"): (
        {"owners": [{"name": "team:data", "type": "MAINTAINER"}]},
        {},
        [({"owners": [{"type": "MAINTAINER"}]}, "/owners/0", "required")],
    ),
    ("job", "sourceCode"): (
        {"language": "python", "sourceCode": "pass"},
        {"language": "python", "sourceCode": ""},
        [({"sourceCode": {}}, "/sourceCode", "type")],
    ),
    ("job", "sourceCodeLocation"): (
        {"type": "git", "url": URI, "repoUrl": "git@x:y.git", "pullRequestNumber": "1"},
        {"type": "git", "url": URI},
        [
            ({"url": "dags/a.py"}, "/url", "format"),
            ({"pullRequestNumber": 1}, "/pullRequestNumber", "type"),
        ],
    ),
    ("job", "sql"): (
        {"query": "select 1", "dialect": "spark"},
        {"query": "select 1"},
        [({"query": None}, "/query", "type"), ({"dialect": 1}, "/dialect", "type")],
    ),
    ("job", "tags"): (
        {"tags": [{"key": "k", "value": "v"}]},
        {},
        [({"tags": [{"key": "k", "value": True}]}, "/tags/0/value", "type")],
    ),
    ("dataset", "catalog"): (
        {
            "framework": "iceberg",
            "type": "glue",
            "name": "n",
            "warehouseUri": "s3://b",
            "catalogProperties": {"a": "b"},
        },
        {"framework": "iceberg", "type": "glue", "name": "n"},
        [({"catalogProperties": {"a": 1}}, "/catalogProperties/a", "type")],
    ),
    ("dataset", "columnLineage"): (
        {
            "fields": {
                "a": {
                    "inputFields": [
                        {**NAMES, "field": "b", "transformations": [{"type": "I", "masking": True}]}
                    ]
                }
            },
            "dataset": [{**NAMES, "field": "c"}],
        },
        {"fields": {}},
        [
            ({"fields": {"a/b": {}}}, "/fields/a~1b", "required"),
            (
                {"fields": {"a": {"inputFields": [NAMES]}}},
                "/fields/a/inputFields/0",
                "required",
            ),
            ({"dataset": [{**NAMES, "field": 1}]}, "/dataset/0/field", "type"),
        ],
    ),
    ("dataset", "dataQualityMetrics"): (
        {**QUALITY, "captureDate": TIME},
        {"columnMetrics": {}},
        [
            ({"columnMetrics": {"a": {"nullCount": "0"}}}, "/columnMetrics/a/nullCount", "type"),
            ({"captureDate": "today"}, "/captureDate", "format"),
        ],
    ),
    ("dataset", "dataSource"): (
        {"name": "n", "uri": "postgres://h:5432"},
        {},
        [({"uri": "string"}, "/uri", "format")],
    ),
    ("dataset", "datasetType"): (
        {"datasetType": "TABLE", "subType": "EXTERNAL"},
        {"datasetType": "TABLE"},
        [({"subType": 1}, "/subType", "type")],
    ),
    ("dataset", "documentation"): (
        {"description": "d", "contentType": "text/plain"},
        {"description": "d"},
        [({"description": False}, "/description", "type")],
    ),
    ("dataset", "hierarchy"): (
        {"hierarchy": [{"type": "DATABASE", "name": "n"}]},
        {"hierarchy": []},
        [({"hierarchy": [{"type": "DATABASE"}]}, "/hierarchy/0", "required")],
    ),
    ("dataset", "lifecycleStateChange"): (
        {"lifecycleStateChange": "RENAME", "previousIdentifier": NAMES},
        {"lifecycleStateChange": "DROP"},
        [
            ({"lifecycleStateChange": "drop"}, "/lifecycleStateChange", "enum"),
            ({"previousIdentifier": {"name": "m"}}, "/previousIdentifier", "required"),
        ],
    ),
    ("dataset", "lineage"): (
        {"inputs": [SOURCE, {"type": "JOB"}], "fields": {"a": {"inputs": [SOURCE]}}},
        {},
        [
            ({"inputs": [{"type": "JOB", "runId": "1"}]}, "/inputs/0/runId", "format"),
            ({"fields": {"a": {}}}, "/fields/a", "required"),
        ],
    ),
    ("dataset", "ownership"): (
        {"owners": [{"name": "n"}]},
        {},
        [({"owners": {}}, "/owners", "type")],
    ),
    ("dataset", "schema"): (
        {"fields": [{"name": "a", "fields": [{"name": "b", "ordinal_position": 1}]}]},
        {},
        [
            ({"fields": [{"name": "a", "fields": [{}]}]}, "/fields/0/fields/0", "required"),
            ({"fields": [{"name": "a", "type": None}]}, "/fields/0/type", "type"),
        ],
    ),
    ("dataset", "storage"): (
        {"storageLayer": "delta", "fileFormat": "parquet"},
        {"storageLayer": "delta"},
        [({"fileFormat": 1}, "/fileFormat", "type")],
    ),
    ("dataset", "symlinks"): (
        {"identifiers": [{**NAMES, "type": "TABLE"}]},
        {},
        [({"identifiers": [NAMES]}, "/identifiers/0", "required")],
    ),
    ("dataset", "tags"): (
        {"tags": [{"key": "pii", "value": "true", "field": "email"}]},
        {},
        [({"tags": [{"key": "k", "value": "v", "field": 1}]}, "/tags/0/field", "type")],
    ),
    ("dataset", "version"): (
        {"datasetVersion": "1"},
        {"datasetVersion": "1"},
        [({"datasetVersion": 1}, "/datasetVersion", "type")],
    ),
    ("input", "dataQualityAssertions"): (
        {"assertions": [{"assertion": "not_null", "success": True, "column": "a"}]},
        {"assertions": []},
        [
            ({"assertions": [{"assertion": "not_null"}]}, "/assertions/0", "required"),
            (
                {"assertions": [{"assertion": "not_null", "success": "yes"}]},
                "/assertions/0/success",
                "type",
            ),
        ],
    ),
    ("input", "dataQualityMetrics"): (
        QUALITY,
        {"columnMetrics": {}},
        [
            (
                {"columnMetrics": {"a": {"quantiles": {"1": "x"}}}},
                "/columnMetrics/a/quantiles/1",
                "type",
            )
        ],
    ),
    ("input", "inputStatistics"): (
        {"rowCount": 1, "size": 2, "fileCount": 3},
        {},
        [({"size": "2"}, "/size", "type")],
    ),
    ("input", "subset"): (
        {"inputCondition": BINARY},
        {"inputCondition": {"type": "location", "locations": []}},
        [
            ({"inputCondition": {"type": "all"}}, "/inputCondition/type", "enum"),
            ({"inputCondition": {**BINARY, "left": {}}}, "/inputCondition/left", "required"),
            (
                {"inputCondition": {"type": "location", "locations": [1]}},
                "/inputCondition/locations/0",
                "type",
            ),
        ],
    ),
    ("output", "outputStatistics"): (
        {"rowCount": 1, "size": 2, "fileCount": 3},
        {},
        [({"rowCount": 1.5}, "/rowCount", "type")],
    ),
    ("output", "subset"): (
        {"outputCondition": COMPARE},
        {"outputCondition": PARTITION},
        [
            (
                {"outputCondition": {**COMPARE, "left": {"type": "field"}}},
                "/outputCondition/left",
                "required",
            ),
            (
                {"outputCondition": {"type": "partition", "partitions": [{}]}},
                "/outputCondition/partitions/0",
                "required",
            ),
        ],
    ),
}

BREAKS = [(at, place) for at, (_, _, breaks) in CASES.items() for place in range(len(breaks))]


def test_there_are_cases_for_every_facet() -> None:
    assert set(CASES) == {(str(slot), key) for slot, key in FACETS}
    assert all(breaks for _, _, breaks in CASES.values())
    # Each is found by its place: 11 of runs, 8 of jobs, 15 of datasets, 4 of inputs, 2 of outputs.
    counts = [sum(place is slot for place, _ in FACETS) for slot in Slot]
    assert counts == [11, 8, 15, 4, 2]


@pytest.mark.parametrize(("slot", "key"), CASES)
def test_valid_ones_pass(slot: str, key: str) -> None:
    full, smallest, _ = CASES[slot, key]
    for fields in (full, smallest, {**full, "something": "new"}):
        verdict = STRICT.check(event_with(slot, {key: {**FACET, **fields}}))
        assert verdict.ok
        assert verdict.warnings == ()


@pytest.mark.parametrize(("at", "place"), BREAKS)
def test_broken_ones_are_told_exactly(at: tuple[str, str], place: int) -> None:
    slot, key = at
    full, _, breaks = CASES[at]
    change, pointer, rule = breaks[place]
    verdict = STRICT.check(event_with(slot, {key: {**FACET, **full, **change}}))
    assert not verdict.ok
    told = {(problem.pointer, problem.facet, problem.rule) for problem in verdict.errors}
    assert told == {(pointer_to_facet(slot, key) + pointer, f"{slot}.{key}", rule)}
    assert verdict.warnings == ()


@pytest.mark.parametrize(("slot", "key"), CASES)
def test_every_required_field_is_missed(slot: str, key: str) -> None:
    _, smallest, _ = CASES[slot, key]
    facet = {**FACET, **smallest}
    for name in facet:
        left = {other: value for other, value in facet.items() if other != name}
        (problem,) = STRICT.check(event_with(slot, {key: left})).errors
        assert problem.pointer == pointer_to_facet(slot, key)
        assert problem.rule == "required"
        assert f"`{name}`" in problem.message
