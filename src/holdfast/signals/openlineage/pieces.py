"""An event in pieces, so that explaining what is wrong with it has a bound.

The checker says at once whether an event is valid, but lists every failure before the first can be
seen, at some 15 µs and 3 kB each. A large event in which everything is wrong would stop the event
loop for a minute and fill the memory. So a large one is explained piece by piece, until enough is
told: the event without its datasets and facets, then these, some at a time. A piece that is still
large (one giant facet) is judged by its first failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jsonschema_rs
import orjson

# A piece of this size cannot have more failures than are listed in a moment.
PIECE_BYTES_MAX = 64 * 1024
PIECE_PARTS = 50

_DATASETS = ("inputs", "outputs")
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
    """Yield the parts of an event of a kind; a small one is a single piece."""
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
    """Return the failures of a piece, or only the first one."""
    if not only_first and piece.is_small:
        return checker.iter_errors(piece.document)
    try:
        checker.validate(piece.document)
    except jsonschema_rs.ValidationError as failure:
        return [failure]
    return []
