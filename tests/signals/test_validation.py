"""Levels, overrides, deleted facets, shapes, and how problems are told."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.signals.client_classes import UUID
from tests.signals.events import (
    BASE,
    DATASET,
    FACET,
    JOB,
    ODD_JSON,
    ODD_KEYS,
    RUN,
    dataset_event,
    event_with,
    full_event,
    job_event,
    run_event,
)

from holdfast.signals.openlineage.facts import FACETS, Slot
from holdfast.signals.openlineage.findings import MAX_PROBLEMS, Override
from holdfast.signals.openlineage.problem import MAX_POINTER_PART_CHARS, Problem
from holdfast.signals.openlineage.validation import (
    EventKind,
    Level,
    ValidationSettings,
    Validator,
    Verdict,
)

VALIDATORS: dict[Level, Validator] = {
    level: Validator(ValidationSettings(level=level))
    for level in ("off", "core", "standard", "strict")
}
STANDARD, STRICT = VALIDATORS["standard"], VALIDATORS["strict"]

BAD_SQL = {"sql": {**FACET, "query": 1}}


def rules(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.pointer, problem.rule) for problem in problems]


def verdicts(document: object) -> dict[str, bool]:
    return {level: validator.check(document).ok for level, validator in VALIDATORS.items()}


def with_overrides(facets: dict[str, Override], level: Level = "standard") -> Validator:
    return Validator(ValidationSettings(level=level, facets=facets))


# Levels.


def test_the_default_is_standard() -> None:
    assert ValidationSettings().level == "standard"
    loose = run_event(eventTime="2026-01-31T12:00:00")
    assert Validator().check(loose) == STANDARD.check(loose)


def test_off_takes_any_object_and_nothing_else() -> None:
    assert VALIDATORS["off"].check({}) == Verdict(None)
    assert VALIDATORS["off"].check({"job": 1}) == Verdict(EventKind.JOB)
    others: list[Any] = [[], None, 1, "x", True]
    for document in others:
        assert not VALIDATORS["off"].check(document).ok


@pytest.mark.parametrize(
    ("event", "accepted_from"),
    [
        (run_event(), "strict"),
        (run_event(eventTime="2026-01-31T12:00:00"), "standard"),
        (run_event(producer="airflow"), "standard"),
        (event_with("job", BAD_SQL), "core"),
        (event_with("job", {"sql": {"query": "select 1"}}), "off"),
        (event_with("job", {"mine": {}}), "off"),
        (event_with("job", {"mine": None}), "off"),
        (run_event(eventType="STARTED"), "off"),
        (run_event(inputs=None), "off"),
        (run_event(job={"name": "x"}), "off"),
    ],
)
def test_each_level_takes_what_the_stricter_one_takes(event: Any, accepted_from: str) -> None:
    levels = ["strict", "standard", "core", "off"]
    accepting = levels[levels.index(accepted_from) :]
    assert verdicts(event) == {level: level in accepting for level in VALIDATORS}


LOOSE = [
    # What real clients and Marquez take, and the specification does not.
    ("eventTime", "2021-11-03T10:53:52.427"),
    ("eventTime", "2021-11-03T10:53:52+0000"),
    ("eventTime", "2021-11-03T10:53Z"),
    ("eventTime", "2021-11-03 10:53:52Z"),
    ("eventTime", "2021-11-03T10:53:52Z[UTC]"),
    ("producer", "airflow"),
    ("producer", "https://example.com/a b"),
    ("producer", "https://example.com/é"),
    ("schemaURL", "x.json"),
]
EXACT = [
    ("eventTime", "2021-11-03t10:53:52z"),
    ("eventTime", "2016-12-31T23:59:60Z"),
    ("eventTime", "2021-11-03T10:53:52.123456789+10:00"),
    ("producer", "ol:airflow"),
    ("schemaURL", "https://openlineage.io/spec/1-0-1/OpenLineage.json#/definitions/RunEvent"),
]


@pytest.mark.parametrize(("field", "value"), LOOSE)
def test_a_loose_format_is_a_warning_and_in_strict_an_error(field: str, value: str) -> None:
    event = run_event(**{field: value})
    lenient, strict = STANDARD.check(event), STRICT.check(event)
    assert lenient.ok
    assert rules(lenient.warnings) == rules(strict.errors) == [(f"/{field}", "format")]


@pytest.mark.parametrize("run_id", ["run-1", "0195fdc17bc97a278d929a6f1b0f6a41", f"{{{UUID}}}"])
def test_a_loose_run_id_is_a_warning(run_id: str) -> None:
    event = run_event(run={"runId": run_id})
    assert rules(STANDARD.check(event).warnings) == [("/run/runId", "format")]
    assert not STRICT.check(event).ok


@pytest.mark.parametrize(("field", "value"), EXACT)
def test_an_exact_format_passes_strict(field: str, value: str) -> None:
    assert STRICT.check(run_event(**{field: value})) == Verdict(EventKind.RUN)


@pytest.mark.parametrize("text", ["yesterday", "", "2021-11-03", "1635936832", "2021-13-03T00:00Z"])
def test_a_time_that_nobody_can_read_is_an_error_at_every_level(text: str) -> None:
    event = run_event(eventTime=text)
    assert verdicts(event) == {"off": True, "core": False, "standard": False, "strict": False}


# Overrides.


@pytest.mark.parametrize("name", ["sql", "job.sql"])
def test_a_facet_may_be_ignored_or_warned_about(name: str) -> None:
    event = event_with("job", BAD_SQL)
    assert with_overrides({name: "ignore"}).check(event) == Verdict(EventKind.RUN)
    warned = with_overrides({name: "warn"}, "strict").check(event)
    assert warned.ok
    assert rules(warned.warnings) == [("/job/facets/sql/query", "type")]
    assert warned.warnings[0].facet == "job.sql"


def test_reject_checks_a_facet_at_core() -> None:
    event = event_with("job", BAD_SQL)
    assert VALIDATORS["core"].check(event).ok
    assert not with_overrides({"sql": "reject"}, "core").check(event).ok
    assert with_overrides({"ownership": "reject"}, "core").check(event).ok


def test_the_override_with_a_place_wins() -> None:
    tags = {"tags": {**FACET, "tags": 1}}
    validator = with_overrides({"job.tags": "reject", "tags": "ignore", "run.tags": "warn"})
    assert not validator.check(event_with("job", tags)).ok
    assert rules(validator.check(event_with("run", tags)).warnings) == [
        ("/run/facets/tags/tags", "type")
    ]
    assert validator.check(event_with("dataset", tags)) == Verdict(EventKind.RUN)


def test_custom_facets_and_keys_with_dots_have_overrides_too() -> None:
    broken = {"spark.logicalPlan": "no object"}
    validator = Validator(ValidationSettings(facets={"spark.logicalPlan": "ignore"}))
    assert not STANDARD.check(event_with("run", broken)).ok
    assert validator.check(event_with("run", broken)).ok
    assert validator.check(event_with("dataset", broken)).ok
    assert any("spark.logicalPlan" in notice for notice in validator.notices)


def test_a_place_wins_over_a_key_with_dots_in_any_order() -> None:
    overrides: list[tuple[str, Override]] = [("spark.plan", "ignore"), ("run.spark.plan", "warn")]
    for ordered in (overrides, overrides[::-1]):
        validator = with_overrides(dict(ordered))
        assert rules(validator.check(event_with("run", {"spark.plan": 1})).warnings) == [
            ("/run/facets/spark.plan", "type")
        ]
        assert validator.check(event_with("job", {"spark.plan": 1})) == Verdict(EventKind.RUN)


def test_ignoring_a_key_in_the_wrong_place_silences_the_lint() -> None:
    event = event_with("run", {"sql": FACET})
    assert STANDARD.check(event).warnings
    assert with_overrides({"run.sql": "ignore"}).check(event).warnings == ()


def test_an_unknown_level_or_override_is_refused() -> None:
    several: list[dict[str, Any]] = [
        {"level": "hard"},
        {"facets": {"sql": "drop"}},
        {"facetdirs": []},
    ]
    for wrong in several:
        with pytest.raises(ValueError, match="validation error"):
            ValidationSettings.model_validate(wrong)


# Deleted facets.


@pytest.mark.parametrize("slot", ["job", "dataset"])
def test_a_deleted_facet_needs_only_its_base(slot: str) -> None:
    key = {"job": "sql", "dataset": "storage"}[slot]
    for facet in ({}, {"query": 7, "storageLayer": 7}):
        event = event_with(slot, {key: {**FACET, "_deleted": True, **facet}})
        assert STRICT.check(event) == Verdict(EventKind.RUN)


@pytest.mark.parametrize("facet", [{"_deleted": True}, {**FACET, "_deleted": True, "_producer": 1}])
def test_a_deleted_facet_needs_its_base(facet: dict[str, Any]) -> None:
    assert not STRICT.check(event_with("job", {"sql": facet})).ok


@pytest.mark.parametrize(
    "facet", [{**FACET, "_deleted": False}, {**FACET, "_deleted": "true"}, {**FACET, "_deleted": 1}]
)
def test_a_facet_that_is_not_quite_deleted_is_checked(facet: dict[str, Any]) -> None:
    assert not STANDARD.check(event_with("job", {"sql": facet})).ok


@pytest.mark.parametrize(("slot", "key"), [("run", "errorMessage"), ("input", "subset")])
def test_a_facet_of_a_run_or_an_input_cannot_be_deleted(slot: str, key: str) -> None:
    assert not STANDARD.check(event_with(slot, {key: {**FACET, "_deleted": True}})).ok


# Shapes.


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (run_event(), EventKind.RUN),
        (job_event(), EventKind.JOB),
        (dataset_event(), EventKind.DATASET),
        (run_event(dataset=DATASET), EventKind.RUN),
        (dataset_event(run=RUN), EventKind.DATASET),
        (dataset_event(job={"name": "no namespace"}), EventKind.DATASET),
        (job_event(dataset={}), EventKind.JOB),
    ],
)
def test_the_shape_says_the_kind(event: dict[str, Any], kind: EventKind) -> None:
    assert STRICT.check(event) == Verdict(kind)


def test_an_event_that_is_two_things_or_none_is_told_so() -> None:
    two, none = {**BASE, "job": JOB, "dataset": DATASET}, BASE
    for event in (two, none):
        (problem,) = STANDARD.check(event).errors
        assert (problem.pointer, problem.rule) == ("", "shape")
    neither = STANDARD.check({**BASE, "job": {}, "dataset": {}})
    assert (neither.kind, neither.ok) == (EventKind.JOB, False)


def test_a_run_without_a_job_misses_the_job() -> None:
    (problem,) = STANDARD.check({**BASE, "run": RUN}).errors
    assert (problem.pointer, problem.message) == ("", "`job` is missing")


@pytest.mark.parametrize("event", [run_event(), job_event(), dataset_event()])
def test_a_schema_url_of_another_kind_is_a_warning(event: dict[str, Any]) -> None:
    agreed = 0
    for name in ("RunEvent", "JobEvent", "DatasetEvent"):
        event["schemaURL"] = f"https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/{name}"
        verdict = STRICT.check(event)
        assert verdict.ok
        agreed += not verdict.warnings
        assert rules(verdict.warnings) in ([], [("/schemaURL", "schema_url")])
    assert agreed == 1


# Lint.


@pytest.mark.parametrize(
    ("slot", "key", "hint"),
    [
        ("run", "sql", "belongs in job.facets"),
        ("dataset", "outputStatistics", "the outputFacets of an output"),
        ("dataset", "parent", "belongs in run.facets"),
        ("job", "SQL", "spelled `sql`"),
        ("job", "OwnerShip", None),
        ("run", "nominal_time", "spelled `nominalTime`"),
        ("run", "processingEngine", "spelled `processing_engine`"),
        ("dataset", "Schema", "spelled `schema`"),
        ("input", "schema", "the facets of a dataset"),
    ],
)
def test_a_facet_in_the_wrong_place_is_a_warning(slot: str, key: str, hint: str | None) -> None:
    for validator in (STANDARD, STRICT):
        verdict = validator.check(event_with(slot, {key: FACET}))
        assert verdict.ok
        assert [problem.rule for problem in verdict.warnings] == (["misplaced"] if hint else [])
        assert hint is None or hint in verdict.warnings[0].hint
    assert VALIDATORS["core"].check(event_with(slot, {key: FACET})) == Verdict(EventKind.RUN)


def test_a_misplaced_facet_must_still_be_a_facet() -> None:
    verdict = STANDARD.check(event_with("run", {"sql": {}}))
    assert [problem.rule for problem in verdict.errors] == ["required", "required"]


def test_facets_of_inputs_on_an_output_are_a_warning() -> None:
    event = run_event(outputs=[{**DATASET, "inputFacets": {"subset": 1}}])
    verdict = STRICT.check(event)
    assert verdict.ok
    assert rules(verdict.warnings) == [("/outputs/0/inputFacets", "misplaced")]


def test_no_standard_facet_is_misplaced_where_it_belongs() -> None:
    verdict = STRICT.check(full_event())
    assert verdict == Verdict(EventKind.RUN)
    assert len(FACETS) == 40


# How it is told.


def test_a_problem_has_pointer_facet_rule_message_and_hint() -> None:
    event = event_with("job", {"ownership": {**FACET, "owners": [{"type": "T"}]}})
    (problem,) = STANDARD.check(event).errors
    assert problem.to_fields() == {
        "pointer": "/job/facets/ownership/owners/0",
        "facet": "job.ownership",
        "rule": "required",
        "message": "`name` is missing",
        "hint": "Add `name`.",
    }
    (problem,) = STANDARD.check(run_event(eventType=None)).errors
    assert "facet" not in problem.to_fields()
    assert "Leave the field out" in problem.hint
    (problem,) = STANDARD.check(run_event(inputs=None)).errors
    assert problem.message == "must be an array, not null"
    assert "Leave the field out" in problem.hint


SECRET = "hunter2-secret"


@pytest.mark.parametrize("level", ["core", "standard", "strict"])
def test_no_value_of_an_event_is_ever_told(level: Literal["core", "standard", "strict"]) -> None:
    event: dict[str, Any] = event_with(
        "job",
        {"sql": {**FACET, "query": [SECRET]}, "mine": SECRET, "ownership": {"owners": SECRET}},
    )
    event |= {"eventType": SECRET, "eventTime": SECRET, "producer": f"{SECRET} x", "run": SECRET}
    for raw in (json.dumps(event), json.dumps(event) + SECRET, f'{{"a": "{SECRET}", "b": NaN}}'):
        _, verdict = VALIDATORS[level].parse_and_check(raw.encode())
        assert not verdict.ok
        assert SECRET not in repr(verdict)


def test_a_long_key_is_cut_in_a_pointer() -> None:
    key = "k" * 10_000
    (problem, _) = STANDARD.check(event_with("run", {key: {}})).errors
    assert problem.pointer == f"/run/facets/{'k' * MAX_POINTER_PART_CHARS}…"
    assert problem.facet is not None
    assert len(problem.facet) <= MAX_POINTER_PART_CHARS + 1


def test_a_flood_of_errors_is_cut_but_the_verdict_stands() -> None:
    sources = [{**FACET, "_producer": "no uri"} for _ in range(3 * MAX_PROBLEMS)]
    facets: dict[str, Any] = {f"f{number}": facet for number, facet in enumerate(sources)}
    warned = STANDARD.check(event_with("dataset", facets))
    assert warned.ok
    assert [problem.rule for problem in warned.warnings[-2:]] == ["format", "more"]
    assert len(warned.warnings) == MAX_PROBLEMS + 1
    # One error behind all those warnings is still found.
    assert not STANDARD.check(event_with("dataset", {**facets, "zz": {}})).ok
    broken = STANDARD.check(event_with("dataset", dict.fromkeys(facets, 1)))
    assert len(broken.errors) == MAX_PROBLEMS + 1
    assert broken.errors[-1].rule == "more"


def test_keys_that_look_like_numbers_are_found() -> None:
    for key in ("1", "01", "+1", "0", "00", "", "-1", "1e5", "99999999999999999999"):
        metrics = {**FACET, "columnMetrics": {key: {"min": "x"}}}
        (problem,) = STANDARD.check(event_with("input", {"dataQualityMetrics": metrics})).errors
        facet = "/inputs/0/inputFacets/dataQualityMetrics"
        assert problem.pointer == f"{facet}/columnMetrics/{key}/min"


@given(
    st.dictionaries(ODD_KEYS | st.sampled_from([key for _, key in FACETS]), ODD_JSON, max_size=5),
    st.sampled_from([str(slot) for slot in Slot]),
)
def test_whatever_a_facet_holds_there_is_a_verdict(facets: dict[str, Any], slot: str) -> None:
    event = event_with(slot, facets)
    for validator in VALIDATORS.values():
        verdict = validator.check(event)
        assert {problem.rule for problem in verdict.errors} <= {
            "required",
            "type",
            "enum",
            "format",
            "more",
        }
        for problem in verdict.errors:
            _ = at_pointer(event, problem.pointer)


def at_pointer(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


@given(ODD_JSON)
def test_whatever_is_sent_there_is_a_verdict(document: Any) -> None:
    for validator in VALIDATORS.values():
        parsed, verdict = validator.parse_and_check(orjson.dumps(document))
        assert parsed == document
        assert verdict.ok or not isinstance(document, dict) or validator is not VALIDATORS["off"]


def test_validation_is_the_same_for_documents_and_bytes() -> None:
    event = run_event(producer="airflow")
    document, verdict = STANDARD.parse_and_check(orjson.dumps(event))
    assert document == event
    assert verdict == STANDARD.check(event)
