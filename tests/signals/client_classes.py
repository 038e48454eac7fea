"""What the installed openlineage-python knows of events: an oracle that shares nothing with ours.

The client's classes are generated from the specification's schema files. Read as data they say
which facets there are, which fields those have, of which types, and which of them are required. The
client's own validators say what it takes for a time, a UUID or a URI.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

import attr
from openlineage.client import generated
from openlineage.client.generated import base

SLOTS = {
    base.RunFacet: "run",
    base.JobFacet: "job",
    base.DatasetFacet: "dataset",
    base.InputDatasetFacet: "input",
    base.OutputDatasetFacet: "output",
}
SUFFIXES = ("InputDatasetFacet", "OutputDatasetFacet", "DatasetFacet", "RunFacet", "JobFacet")

# Keys that do not follow from the name of the class.
IRREGULAR_KEYS = {
    "DatasetVersionDatasetFacet": "version",
    "DatasourceDatasetFacet": "dataSource",
    "InputSubsetInputDatasetFacet": "subset",
    "OutputSubsetOutputDatasetFacet": "subset",
    "ProcessingEngineRunFacet": "processing_engine",
    "SQLJobFacet": "sql",
}

# What the client's classes do not say: an event is no job event if it has a run, and no dataset
# event if it has a run and a job. The specification's root says so with `not`.
EVENTS: dict[type, tuple[str, ...]] = {
    base.RunEvent: (),
    base.JobEvent: ("run",),
    base.DatasetEvent: ("run", "job"),
}


def facet_classes() -> dict[tuple[str, str], type]:
    """Return the class of every standard facet, by slot and key."""
    found = {}
    for module_info in pkgutil.iter_modules(generated.__path__):
        module = importlib.import_module(f"{generated.__name__}.{module_info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ != base.__name__:
                slot = next((SLOTS[each] for each in cls.__mro__ if each in SLOTS), None)
                if slot is not None:
                    found[slot, key_of(cls.__name__)] = cls
    return found


def key_of(name: str) -> str:
    if name in IRREGULAR_KEYS:
        return IRREGULAR_KEYS[name]
    suffix = next(suffix for suffix in SUFFIXES if name.endswith(suffix))
    stem = name.removesuffix(suffix)
    return stem[0].lower() + stem[1:]


def version_of(cls: type) -> str:
    """Return the version of the facet, from the address of its schema."""
    address: str = getattr(cls, "_get_schema")()  # noqa: B009
    return address.partition("/facets/")[2].partition("/")[0]


@cache
def fields_of(cls: type) -> list[tuple[attr.Attribute[Any], Any]]:
    """Return the fields of a class with their types."""
    # The generated modules import some names for type checkers only.
    names = {**vars(typing), **vars(base), **vars(importlib.import_module(cls.__module__))}
    hints = typing.get_type_hints(cls, names)
    return [(field, hints[field.name]) for field in attr.fields(cls)]


def is_required(field: attr.Attribute[Any]) -> bool:
    """Say whether a field must be in the JSON: it has no default, or one that is always sent."""
    return field.default is attr.NOTHING or isinstance(field.default, str)


def constant_of(field: attr.Attribute[Any]) -> str | None:
    """Return the only value a field may have: the default that marks a case of a union."""
    is_marker = isinstance(field.default, str) and field.init and field.default != ""
    return field.default if is_marker else None


def format_of(field: attr.Attribute[Any]) -> str | None:
    """Return which format the client's own validator of a field looks for."""
    used = getattr(field.validator, "__code__", None)
    formats = {"isoparse": "date-time", "UUID": "uuid", "urlparse": "uri"}
    found = [formats[name] for name in used.co_names if name in formats] if used else []
    return found[0] if found else None


def members(annotation: Any) -> list[Any]:
    """Return the types of a union, None left out: an optional field is absent, never null."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [each for each in get_args(annotation) if each is not type(None)]
        return [member for each in inner for member in members(each)]
    return [annotation]


class Oracle:
    """Decides whether the client's classes could have made a document."""

    def __init__(self, *, formats: bool) -> None:
        # Without formats only times are checked: a time is read by everybody, an id or address
        # is only passed on.
        self._formats = {"date-time", "uuid", "uri"} if formats else {"date-time"}
        self._facets = facet_classes()

    def accepts(self, event: dict[str, Any]) -> bool:
        """Say whether an event is exactly one of the three, as the specification's root asks."""
        fitting = [
            cls
            for cls, excluded in EVENTS.items()
            if not (excluded and all(name in event for name in excluded)) and self._fits(event, cls)
        ]
        return len(fitting) == 1

    def _fits(self, value: Any, annotation: Any) -> bool:
        options = members(annotation)
        if len(options) > 1:
            return any(self._fits(value, option) for option in options)
        (option,) = options
        if option is Any:
            return True
        origin = get_origin(option)
        if origin is Literal:
            return value in get_args(option)
        if origin is list:
            (inner,) = get_args(option)
            return isinstance(value, list) and all(self._fits(item, inner) for item in value)
        if origin is dict:
            return isinstance(value, dict) and self._fits_dict(value, get_args(option)[1])
        if attr.has(option):
            return isinstance(value, dict) and self._fits_class(value, option)
        if isinstance(option, type) and issubclass(option, Enum):
            return value in [member.value for member in option]
        return _is_plain(value, option)

    def _fits_dict(self, value: dict[str, Any], inner: Any) -> bool:
        return all(self._fits(item, inner) for item in value.values())

    def _fits_class(self, value: dict[str, Any], cls: type) -> bool:
        slots = _facet_fields(cls)
        for field, annotation in fields_of(cls):
            if field.name not in value:
                if is_required(field):
                    return False
                continue
            item = value[field.name]
            if field.name in slots:
                if not self._fits_facets(item, slots[field.name]):
                    return False
            elif not self._fits_field(value, field, annotation, item):
                return False
        return True

    def _fits_field(
        self, value: dict[str, Any], field: attr.Attribute[Any], annotation: Any, item: Any
    ) -> bool:
        constant = constant_of(field)
        if not self._fits(item, annotation) or (constant is not None and item != constant):
            return False
        if field.validator is None:
            return True
        what = format_of(field)
        if what is not None and what not in self._formats:
            return True
        try:
            field.validator(_Stub(value), field, item)
        except ValueError:
            return False
        return True

    def _fits_facets(self, facets: Any, slot_base: type) -> bool:
        slot = SLOTS[slot_base]
        return isinstance(facets, dict) and all(
            self._fits(facet, self._facets.get((slot, key), slot_base))
            for key, facet in facets.items()
        )


class _Stub:
    """Stands in for the instance that a validator looks at; what is absent is None."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return self._value.get(name)


def _facet_fields(cls: type) -> dict[str, type]:
    """Return the fields of an event's part that hold facets by key, with the base of their slot."""
    if cls.__module__ != base.__name__:
        return {}  # `parent` repeats facets of others, of which only the base is known
    found = {}
    for field, annotation in fields_of(cls):
        for member in members(annotation):
            if get_origin(member) is dict and get_args(member)[1] in SLOTS:
                found[field.name] = get_args(member)[1]
    return found


def _is_plain(value: Any, option: Any) -> bool:
    if option is bool or isinstance(value, bool):
        return option is bool and isinstance(value, bool)
    allowed: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float)}
    return isinstance(value, allowed[option])


# Sample documents, with every field.

TIME, UUID, URI = (
    "2026-01-31T12:00:00.000Z",
    "0195fdc1-7bc9-7a27-8d92-9a6f1b0f6a41",
    "https://example.com/a",
)
_PLAIN_SAMPLES = {str: "text", int: 7, float: 1.5, bool: False}
_ANY_NAME = "a/b~c"
# How often a class may stand inside itself in a sample.
_NESTED = 2


def samples(annotation: Any, outer: tuple[type, ...] = ()) -> Iterator[Any]:
    """Yield documents of a type with every field, one for every case of its unions."""
    for option in members(annotation):
        origin = get_origin(option)
        assert not isinstance(option, ForwardRef)
        if option is Any:
            yield "anything"
        elif origin is Literal:
            yield from get_args(option)
        elif origin is list:
            yield list(samples(get_args(option)[0], outer))
        elif origin is dict:
            yield from ({_ANY_NAME: item} for item in samples(get_args(option)[1], outer))
        elif attr.has(option):
            yield from class_samples(option, outer)
        elif issubclass(option, Enum):
            yield next(iter(option)).value
        else:
            yield _PLAIN_SAMPLES[option]


def class_samples(cls: type, outer: tuple[type, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield documents of a class; the fields that have several cases take turns."""
    if outer.count(cls) == _NESTED:
        return
    choices: dict[str, list[Any]] = {}
    for field, annotation in fields_of(cls):
        by_format = {"date-time": TIME, "uuid": UUID, "uri": URI}
        what, constant = format_of(field), constant_of(field)
        if what is not None:
            choices[field.name] = [by_format[what]]
        elif constant is not None:
            choices[field.name] = [constant]
        else:
            choices[field.name] = list(samples(annotation, (*outer, cls)))
    if any(not options for options in choices.values()):
        return
    for turn in range(max(len(options) for options in choices.values())):
        yield {name: options[turn % len(options)] for name, options in choices.items()}
