"""Findings: what the checker reports about an event, as errors and warnings people can act on.

The schema is stricter than any level. Here it is decided what a failure means: what is only odd
becomes a warning, what a deleted facet need not have is dropped, and the rest is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from jsonschema_rs import ValidationError

from holdfast.signals.openlineage.facts import DELETABLE, FACETS, PLACES, Slot
from holdfast.signals.openlineage.json_text import large_integer
from holdfast.signals.openlineage.names import read_time
from holdfast.signals.openlineage.problem import Problem, pointer_to
from holdfast.signals.openlineage.schema import FACETS_FIELD, misplaced_keys

# How many errors, and how many warnings, are reported for one event.
MAX_PROBLEMS = 50

Override: TypeAlias = Literal["reject", "warn", "ignore"]
Path: TypeAlias = "list[str | int]"

# Legal, and most often a mistake.
_ODD_RULES = {"misplaced", "large_integer"}
_BASE_FIELDS = {"_producer", "_schemaURL", "_deleted"}
_MISPLACED = {slot: misplaced_keys(slot) for slot in Slot}

_FORMATS = {
    "date-time": (
        "a date-time with a time zone",
        "Send RFC 3339, such as 2026-01-31T12:00:00.000Z.",
    ),
    "uuid": ("a UUID", "Send a UUID with hyphens, such as 0195fdc1-7bc9-7a27-8d92-9a6f1b0f6a41."),
    "uri": ("an absolute URI", "Send a URI with a scheme, such as https://example.com/producer."),
}
_JSON_TYPES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}
_NO_NULL = "Leave the field out instead of sending null."
_ARTICLES = {"object": "an object", "array": "an array", "integer": "an integer"}


@dataclass
class Findings:
    """Errors and warnings of one event, up to a bound; then one that says there are more."""

    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def add(self, severity: Literal["error", "warning"], problem: Problem) -> None:
        """Take one problem."""
        kept = self.errors if severity == "error" else self.warnings
        if len(kept) < MAX_PROBLEMS:
            kept.append(problem)
        elif len(kept) == MAX_PROBLEMS:
            hint = "Mend the ones above first."
            kept.append(Problem("", None, "more", f"there are more {severity}s", hint))

    @property
    def is_full(self) -> bool:
        """Whether nothing more can change the verdict or the errors that are reported."""
        return len(self.errors) > MAX_PROBLEMS

    @property
    def tells_enough_warnings(self) -> bool:
        """Whether only errors are of interest in what comes."""
        return len(self.warnings) > MAX_PROBLEMS


@dataclass(frozen=True)
class Policy:
    """What the level and the user's overrides make of a failure."""

    strict: bool
    overrides: Mapping[tuple[Slot, str], Override]

    # Errors stop at a bound, warnings do not stop errors: an event with a thousand warnings may
    # have an error behind them, and it is refused for that one.
    def judge(
        self,
        document: dict[str, Any],
        failures: Iterable[ValidationError],
        into: Findings,
        first: int = 0,
    ) -> None:
        """Sort failures of one event, or of a piece of it, into errors and warnings.

        `first` is the number that the first dataset of a piece has in the whole event.
        """
        locator = Locator(document)
        for failure in failures:
            if into.is_full:
                break
            path, value = locator.locate(failure.instance_path)
            place = facet_at(path)
            if place is not None and _is_waived(locator, failure, path, place):
                continue
            problem = _problem(failure, _in_whole(path, first), value, place)
            warn = place is not None and self.overrides.get((place.slot, place.key)) == "warn"
            lenient = warn or problem.rule in _ODD_RULES or self._is_loose(failure, value)
            into.add("warning" if lenient else "error", problem)

    def _is_loose(self, failure: ValidationError, value: object) -> bool:
        """Say whether a format is missed without harm: any may be, but a time must be readable."""
        if self.strict or failure.kind.name != "format":
            return False
        if failure.kind.value != "date-time":
            return True
        return isinstance(value, str) and read_time(value) is not None


def _in_whole(path: Path, first: int) -> Path:
    """Return a path in a piece of an event as it is in the whole event."""
    match path:
        case ["inputs" | "outputs" as name, int(number), *rest]:
            return [name, number + first, *rest]
    return path


@dataclass(frozen=True)
class FacetPlace:
    """Which facet a path leads into, and how many steps lead to it."""

    slot: Slot
    key: str
    depth: int

    @property
    def name(self) -> str:
        """The facet as overrides name it."""
        return pointer_to((f"{self.slot}.{self.key}",))[1:]


def facet_at(path: Path) -> FacetPlace | None:
    """Return the facet that a path leads to or into.

    Inputs and outputs have two kinds of facets: those of the dataset, which are true of it
    wherever it is used, and those of this one use of it.
    """
    match path:
        case ["run" | "job" | "dataset" as thing, "facets", str(key), *_]:
            return FacetPlace(Slot(thing), key, 3)
        case ["inputs" | "outputs", int(), "facets", str(key), *_]:
            return FacetPlace(Slot.DATASET, key, 4)
        case ["inputs", int(), "inputFacets", str(key), *_]:
            return FacetPlace(Slot.INPUT, key, 4)
        case ["outputs", int(), "outputFacets", str(key), *_]:
            return FacetPlace(Slot.OUTPUT, key, 4)
    return None


class Locator:
    """Finds what reported paths of one document stand for.

    jsonschema-rs reports keys that look like numbers ("1", "01", "+1") as numbers, and leaves out
    the empty key. Where that makes a path ambiguous it is followed as far as it goes.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        # By the identity of an object: its keys that look like numbers.
        self._numbers: dict[int, dict[str, str]] = {}

    def locate(self, reported: Path) -> tuple[Path, Any]:
        """Return the real path, and what is there."""
        path: Path = []
        value = self._document
        for step in reported:
            while (real := self._step(value, step)) is None and isinstance(value, dict):
                if "" not in value:
                    break
                path.append("")
                value = value[""]
            if real is None:
                break
            path.append(real)
            value = value[real]
        return path, value

    def _step(self, value: Any, step: str | int) -> str | int | None:
        if isinstance(value, list):
            return step if isinstance(step, int) and step < len(value) else None
        if not isinstance(value, dict):
            return None
        if str(step) in value:
            return str(step)
        return self._numbers_of(value).get(str(step)) if isinstance(step, int) else None

    def _numbers_of(self, value: dict[str, Any]) -> dict[str, str]:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = {
                key.lstrip("+0") or "0": key for key in value if key[:1] in ("+", "0")
            }
        return self._numbers[id(value)]


def _is_waived(locator: Locator, failure: ValidationError, path: Path, place: FacetPlace) -> bool:
    """Say whether a failure is one of a deleted facet, of which only the base is checked.

    Waived afterwards and not in the schema: there it would be a condition in every facet, which
    every valid event would pay for.
    """
    if place.slot not in DELETABLE:
        return False
    _, facet = locator.locate(path[: place.depth])
    if not isinstance(facet, dict) or facet.get("_deleted") is not True:
        return False
    below = path[place.depth :]
    named = below[0] if below else getattr(failure.kind, "property", None)
    return named not in _BASE_FIELDS


def _problem(
    failure: ValidationError, path: Path, value: object, place: FacetPlace | None
) -> Problem:
    pointer = pointer_to(path)
    facet = None if place is None else place.name
    kind = failure.kind
    match kind.name:
        case "required" | "dependentRequired":
            return _missing(path, facet, getattr(kind, "property"), place)  # noqa: B009
        case "type":
            return _wrong_type(pointer, facet, getattr(kind, "types"), value)  # noqa: B009
        case "format":
            what, hint = _FORMATS.get(
                kind.value, (f"of the format {kind.value}", "Mend the value.")
            )
            return Problem(pointer, facet, "format", f"must be {what}", hint)
        case "enum":
            options = ", ".join(str(option) for option in kind.value)
            hint = _NO_NULL if value is None else "Values are case-sensitive."
            return Problem(pointer, facet, "enum", f"must be one of {options}", hint)
        case "falseSchema" if (better := _better_place(path, place)) is not None:
            message = "allowed, but not read as the standard has it: wrong place or wrong spelling"
            return Problem(pointer, facet, "misplaced", message, better)
        case "minimum" | "maximum" | "additionalProperties" if _is_standard(place):
            return _out_of_bounds(pointer, facet, failure)
    message = f"breaks the rule `{kind.name}` of its schema"
    hint = "See the facet's schema in facet_dirs."
    return Problem(pointer, facet, kind.name, message, hint)


def _is_standard(place: FacetPlace | None) -> bool:
    return place is not None and (place.slot, place.key) in FACETS


def _out_of_bounds(pointer: str, facet: str | None, failure: ValidationError) -> Problem:
    if failure.kind.name == "additionalProperties":
        message = "has a field that the standard does not allow here"
        hint = "Leave it out, or send it in a facet of your own."
        return Problem(pointer, facet, "additionalProperties", message, hint)
    if failure.kind.value != 1:
        return large_integer(pointer, facet)
    return Problem(pointer, facet, "minimum", "must be at least 1", "Mend the value.")


def _missing(path: Path, facet: str | None, name: str, place: FacetPlace | None) -> Problem:
    hint = f"Add `{name}`."
    if name in ("_producer", "_schemaURL"):
        hint = f"Every facet needs `_producer` and `_schemaURL`; add `{name}`."
    elif place is not None and place.slot in DELETABLE and len(path) == place.depth:
        hint = f'Add `{name}`; to take a facet back, send it with `"_deleted": true`.'
    return Problem(pointer_to(path), facet, "required", f"`{name}` is missing", hint)


def _wrong_type(pointer: str, facet: str | None, types: list[str], value: object) -> Problem:
    expected = " or ".join(_ARTICLES.get(name, f"a {name}") for name in types)
    found = _JSON_TYPES.get(type(value), "something else")
    hint = _NO_NULL if value is None else f"Send {expected}."
    return Problem(pointer, facet, "type", f"must be {expected}, not {found}", hint)


def _better_place(path: Path, place: FacetPlace | None) -> str | None:
    """Return a hint if a path leads to something that is legal there, but meant for elsewhere."""
    if place is not None:
        return _MISPLACED[place.slot].get(place.key) if len(path) == place.depth else None
    for slot in (Slot.INPUT, Slot.OUTPUT):
        if path and path[-1] == FACETS_FIELD[slot]:
            return f"They belong in {PLACES[slot]}."
    return None
