"""Validation: is this an OpenLineage event, and if not, why not.

    off        any JSON object
    core       the specification without the standard facets: every facet has what all facets have
    standard   with all standard facets; formats are lenient (a naive time, a producer without URI)
    strict     with all standard facets and formats, as the specification has it

A valid event costs one parse and one call of the compiled schema. Only one that
fails it is looked at again, to say what is an error and what a warning.

The checker says at once whether an event is valid, but lists every failure before the first can be
seen, at some 15 µs and 3 kB each. A large event in which everything is wrong would stop the event
loop for a minute and fill the memory. So a large one is explained piece by piece, until enough is
told: the event without its datasets and facets, then these, some at a time. A piece that is still
large (one giant facet) is judged by its first failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jsonschema_rs
import orjson
from pydantic import Field

from holdfast.settings import Settings
from holdfast.signals.openlineage.facet_files import FacetFiles, read_facet_files
from holdfast.signals.openlineage.facts import FACETS, EventKind, Slot
from holdfast.signals.openlineage.findings import MAX_PROBLEMS, Findings, Override, Policy
from holdfast.signals.openlineage.json_text import (
    MAX_VALUES,
    may_have_oddities,
    oddities,
    too_deep,
    too_many_values,
    unreadable,
    values_in,
)
from holdfast.signals.openlineage.names import kind_of
from holdfast.signals.openlineage.problem import Problem
from holdfast.signals.openlineage.schema import (
    Schema,
    base_facet,
    event_schema,
    facet_schema,
    misplaced_keys,
)

# A piece of this size cannot have more failures than are listed in a moment.
PIECE_BYTES_MAX = 64 * 1024
PIECE_PARTS = 50

_DATASETS = ("inputs", "outputs")
# What a piece is put into, so that it can be checked with the schema of a whole event: as little
# as possible, and nothing that fails.
_SOUND_THINGS: dict[str, dict[str, Any]] = {
    "run": {"runId": "00000000-0000-0000-0000-000000000000"},
    "job": {"namespace": "n", "name": "n"},
    "dataset": {"namespace": "n", "name": "n"},
}
_SOUND_EVENT = {
    "eventTime": "2026-01-01T00:00:00Z",
    "producer": "https://example.com/",
    "schemaURL": "https://example.com/",
}
# By kind of event: what it must have.
_THINGS = {"run": ("run", "job"), "job": ("job",), "dataset": ("dataset",)}


class JsonPiece(NamedTuple):
    """A part of an event, in its place; everything around it is sound."""

    document: dict[str, Any]
    # The number of its first dataset in the whole event.
    first: int = 0

    @property
    def is_small(self) -> bool:
        """Whether all its failures may be listed."""
        try:
            return len(orjson.dumps(self.document)) <= PIECE_BYTES_MAX
        except TypeError:  # nested too deep, or not from a parser
            return False


def pieces_of(document: dict[str, Any], kind: str) -> Iterator[JsonPiece]:
    """Yield the parts of an event of a kind; a small one is a single piece.

    Lazily: whoever has heard enough stops, and the rest is never put together.
    """
    whole = JsonPiece(document)
    if whole.is_small:
        yield whole
        return
    rest, sound = dict(document), {name: _SOUND_THINGS[name] for name in _THINGS[kind]}
    around = {**_SOUND_EVENT, **sound}
    parts: list[Iterator[JsonPiece]] = []
    for name in sound:
        thing = document.get(name)
        if isinstance(thing, dict) and isinstance(thing.get("facets"), dict):
            rest[name] = {**thing, "facets": {}}
            parts.append(_facets(around, name, thing["facets"]))
    for name in _DATASETS:
        if isinstance(document.get(name), list):
            rest[name] = []
            parts.append(_datasets(around, name, document[name]))
    yield from itertools.chain([JsonPiece(rest)], *parts)


def _facets(around: dict[str, Any], name: str, facets: dict[str, Any]) -> Iterator[JsonPiece]:
    """Yield facets fifty at a time, or one by one where fifty are too large to be listed."""
    rest = iter(facets.items())
    while some := dict(itertools.islice(rest, PIECE_PARTS)):
        piece = JsonPiece({**around, name: {**around[name], "facets": some}})
        if piece.is_small:
            yield piece
            continue
        for key, facet in some.items():
            yield JsonPiece({**around, name: {**around[name], "facets": {key: facet}}})


def _datasets(around: dict[str, Any], name: str, datasets: list[Any]) -> Iterator[JsonPiece]:
    for first in range(0, len(datasets), PIECE_PARTS):
        some = datasets[first : first + PIECE_PARTS]
        piece = JsonPiece({**around, name: some}, first)
        if piece.is_small:
            yield piece
            continue
        for place, dataset in enumerate(some):
            yield JsonPiece({**around, name: [dataset]}, first + place)


def failures_of(
    checker: jsonschema_rs.Validator, piece: JsonPiece, *, only_first: bool
) -> Iterable[jsonschema_rs.ValidationError]:
    """Return the failures of a piece, or only the first one.

    `iter_errors` finds all of them before it yields any; `validate` stops at the first, so that a
    giant facet in which everything is wrong does not hold the event loop.
    """
    if not only_first and piece.is_small:
        return checker.iter_errors(piece.document)
    try:
        checker.validate(piece.document)
    except jsonschema_rs.ValidationError as failure:
        return [failure]
    return []


__all__ = ["EventKind", "ValidationSettings", "Validator", "Verdict"]

Level = Literal["off", "core", "standard", "strict"]

_EVENT_NAMES = {
    EventKind.RUN: "RunEvent",
    EventKind.JOB: "JobEvent",
    EventKind.DATASET: "DatasetEvent",
}
_JOB = EventKind.JOB
# How the schemaURL of another kind ends.
_OTHERS = {
    kind: tuple(f"/{name}" for other, name in _EVENT_NAMES.items() if other is not kind)
    for kind in EventKind
}


class ValidationSettings(Settings):
    """How closely OpenLineage events are checked."""

    level: Level = "standard"
    """How much is checked: `off` (any JSON object), `core` (without the standard facets),
    `standard` (with them; formats are lenient) or `strict` (the whole specification, formats
    included)."""

    facets: dict[str, Override] = Field(default_factory=dict)
    """What to do about single facets, by key (`sql`) or by place and key (`job.sql`, places are
    run, job, dataset, input, output): `reject` checks it at level `core` too, `warn` makes its
    errors warnings, `ignore` does not look at it."""

    facet_dirs: list[str] = Field(default_factory=list)
    """Folders with JSON Schema files of your own facets; relative ones start at the graph file."""


@dataclass(frozen=True)
class Verdict:
    """What was found about one event. With warnings only it is good."""

    kind: EventKind | None
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the event is accepted."""
        return not self.errors


_FAULTLESS: Mapping[EventKind | None, Verdict] = {
    kind: Verdict(kind) for kind in (None, *EventKind)
}


class Validator:
    """Checks events. Compiling takes some milliseconds; make one and keep it."""

    # What the user should know of the facet schemas and overrides, said once, at start.
    notices: tuple[str, ...]

    def __init__(
        self, settings: ValidationSettings | None = None, base_dir: Path | None = None
    ) -> None:
        settings = settings or ValidationSettings()
        folders = [(base_dir or Path()) / folder for folder in settings.facet_dirs]
        files = read_facet_files(folders)
        facets = _Facets(settings, files)
        self.notices = (*files.notices, *facets.notices)
        self._policy = Policy(settings.level == "strict", facets.overrides)
        self._compiled: dict[EventKind | None, jsonschema_rs.Validator] = {}
        if settings.level != "off":
            self._compiled = {kind: facets.compile(kind) for kind in EventKind}

    def check(self, document: object) -> Verdict:
        """Check a parsed event. How deep it is nested shows only when it is parsed."""
        kind = kind_of(document)
        compiled = self._compiled.get(kind)
        if compiled is None or kind is None or not isinstance(document, dict):
            return self._check_shape(document, kind)
        if kind is _JOB and "dataset" in document:
            return self._check_both(document)
        # The way of nearly every event: one call, and a verdict that is not even made.
        if compiled.is_valid(document) and not document["schemaURL"].endswith(_OTHERS[kind]):
            return _FAULTLESS[kind]
        return self._explain(document, kind)

    def parse_and_check(self, raw: bytes, *, thorough: bool = False) -> tuple[object, Verdict]:
        """Parse an event and check it; the document is None if it cannot be read.

        A key that stands twice is found by the comma that is missing when the document is written
        again. Large integers outside the standard facets are looked for only by a thorough check.
        """
        # Counted before it is parsed: `[[],[],…` becomes objects of twenty times its size, and
        # parsing cannot be stopped half-way.
        if len(raw) > MAX_VALUES and values_in(raw) > MAX_VALUES:
            return None, Verdict(None, (too_many_values(),))
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            return None, Verdict(None, (unreadable(raw, error),))
        try:
            written = orjson.dumps(document)
        except TypeError:  # what came from a parser has no other reason
            return None, Verdict(None, (too_deep(),))
        verdict = self.check(document)
        if thorough or may_have_oddities(raw, written):
            verdict = _with_oddities(verdict, raw)
        return document, verdict

    def _check_shape(self, document: object, kind: EventKind | None) -> Verdict:
        """Judge what no schema is asked about: level off, and what is no event at all."""
        if not isinstance(document, dict):
            message = "an event must be a JSON object"
            hint = "Send one event; arrays of events go to the batch endpoint."
            return Verdict(None, (Problem("", None, "type", message, hint),))
        if not self._compiled or kind is not None:
            return _FAULTLESS[kind]
        message = "`run`, `job` and `dataset` are all missing"
        hint = "A run event has `run` and `job`, a job event `job`, a dataset event `dataset`."
        return Verdict(None, (Problem("", None, "shape", message, hint),))

    def _check_both(self, document: dict[str, Any]) -> Verdict:
        """Check an event with a job and a dataset but no run: it must be exactly one of the two."""
        as_job = self._explain(document, EventKind.JOB)
        as_dataset = self._explain(document, EventKind.DATASET)
        if as_job.ok and as_dataset.ok:
            message = "a job and a dataset, but no run: both a job event and a dataset event"
            hint = "Send two events, or add the `run`."
            return Verdict(None, (Problem("", None, "shape", message, hint),))
        return as_dataset if as_dataset.ok else as_job

    def _explain(self, document: dict[str, Any], kind: EventKind) -> Verdict:
        """List what is wrong with an event, piece by piece, until enough is told."""
        findings = Findings()
        for piece in pieces_of(document, kind):
            if findings.is_full:
                break
            failures = failures_of(
                self._compiled[kind], piece, only_first=findings.tells_enough_warnings
            )
            self._policy.judge(piece.document, failures, findings, piece.first)
        if _url_disagrees(document, kind):
            findings.add("warning", _disagreement(kind))
        return Verdict(kind, tuple(findings.errors), tuple(findings.warnings))


class _Facets:
    """Which facets are looked into, from the table, the user's files and the overrides.

    What is ignored, and what a level does not check, is left out of the compiled schema, so that
    it costs nothing when events come. Only `warn` is decided afterwards, from what failed.
    """

    def __init__(self, settings: ValidationSettings, files: FacetFiles) -> None:
        self._files = files
        self._level = settings.level
        self.overrides: dict[tuple[Slot, str], Override] = {}
        self.notices: list[str] = []
        known = {key for _, key in (*FACETS, *files.references)}
        named = [(*_places_of(name), override) for name, override in settings.facets.items()]
        # Those for all places first, so that those for one place win.
        for slots, key, override in sorted(named, key=lambda each: -len(each[0])):
            self.overrides.update({(slot, key): override for slot in slots})
            if key not in known:
                self.notices.append(
                    f"facets: `{key}` is neither a standard facet nor in facet_dirs"
                )

    def compile(self, kind: EventKind) -> jsonschema_rs.Validator:
        """Compile the schema of a kind of event."""
        schema = event_schema(
            kind, {slot: self._schemas(slot) for slot in Slot}, lint=self._level != "core"
        )
        return jsonschema_rs.validator_for(
            schema,
            registry=self._files.registry(),
            validate_formats=True,
            offline=True,
            mask="[…]",  # no event's content in any message, not even in one we do not use
        )

    def _schemas(self, slot: Slot) -> dict[str, Schema]:
        own: dict[str, Schema] = {
            key: facet_schema(slot, facet.fields)
            for (place, key), facet in FACETS.items()
            if place is slot
        }
        users: dict[str, Schema] = {
            key: {"$ref": uri}
            for (place, key), uri in self._files.references.items()
            if place is slot
        }
        known = {**users, **own}
        overrides = {key: each for (place, key), each in self.overrides.items() if place is slot}
        if self._level == "core":
            known = {key: schema for key, schema in known.items() if overrides.get(key) == "reject"}
        else:
            known = {**dict.fromkeys(misplaced_keys(slot), _also_base(slot)), **known}
        ignored = [key for key, override in overrides.items() if override == "ignore"]
        return {**known, **dict.fromkeys(ignored, True)}


def _also_base(slot: Slot) -> Schema:
    """Return a schema that nothing fulfils, and that reports what is wrong with a custom facet."""
    return {"allOf": [base_facet(slot), False]}


def _places_of(name: str) -> tuple[list[Slot], str]:
    """Return where an override holds; a key may have dots of its own (`spark.logicalPlan`)."""
    place, _, key = name.partition(".")
    return ([Slot(place)], key) if key and place in set(Slot) else (list(Slot), name)


def _url_disagrees(document: dict[str, Any], kind: EventKind) -> bool:
    url = document.get("schemaURL")
    return isinstance(url, str) and url.endswith(_OTHERS[kind])


def _disagreement(kind: EventKind) -> Problem:
    message = f"names another kind of event; by its fields this is a {_EVENT_NAMES[kind]}"
    hint = "Some backends believe the schemaURL and not the fields; make them agree."
    return Problem("/schemaURL", None, "schema_url", message, hint)


def _with_oddities(verdict: Verdict, raw: bytes) -> Verdict:
    """Add what shows in the text alone: a parser has dropped one of two equal keys, and has made a
    float of an integer beyond 64 bits.
    """
    known = {problem.pointer for problem in verdict.warnings if problem.rule == "large_integer"}
    found = (odd for odd in oddities(raw) if odd.pointer not in known)
    return replace(verdict, warnings=(*verdict.warnings, *itertools.islice(found, MAX_PROBLEMS)))
