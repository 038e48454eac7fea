"""`trim`: takes facets out of an event that are too large for a destination.

A marker facet beside them says what went and how large it was. It does not take the key of what it
stands for: a `schema` facet without fields would be invalid, and `_deleted` would tell the backend
to forget what it knows.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import Field

from holdfast.processors.document import ANY, Path, changed, document_of, values_at
from holdfast.processors.match import glob
from holdfast.settings import FileSettings, SizeBytes
from holdfast.signals.event import Event

FACETS_MAX = 1000
# Smaller ones are not worth a marker, which may be larger.
SIZE_MIN_BYTES = 1024
# Of a key, in the marker.
NAME_CHARACTERS_MAX = 256

MARKER = "holdfast_trimmed"
PRODUCER = "urn:holdfast:edge:trim"
SCHEMA_URL = "urn:holdfast:facet:trimmed:1"

# Where an event has facets.
FACET_MAPS: tuple[Path, ...] = (
    ("run", "facets"),
    ("job", "facets"),
    ("dataset", "facets"),
    ("inputs", ANY, "facets"),
    ("inputs", ANY, "inputFacets"),
    ("outputs", ANY, "facets"),
    ("outputs", ANY, "outputFacets"),
)

FacetName = Annotated[str, Field(min_length=1, max_length=256)]


class Config(FileSettings):
    """Which facets may be taken out, and from which size on."""

    facets: tuple[FacetName, ...] = Field(min_length=1, max_length=FACETS_MAX)
    """Keys of facets, or globs: `spark.logicalPlan`, `columnLineage`, `spark_*`."""
    max_facet_bytes: SizeBytes = Field(default=64 * 1024, ge=SIZE_MIN_BYTES)
    """A facet that is larger, as compact JSON, goes."""
    when_over_bytes: SizeBytes = 0
    """Only events that are larger than this are looked at."""


class Trim:
    """Replaces large facets by a marker."""

    def __init__(self, config: Config) -> None:
        self._names = glob(config.facets)
        self._max_facet_bytes = config.max_facet_bytes
        # An event that is not larger than the limit hardly holds a facet that is.
        self._looks_over_bytes = max(config.max_facet_bytes, config.when_over_bytes)

    def process(self, event: Event) -> Event | None:
        """Return the event without large facets; the same one if it has none."""
        if len(event.payload) <= self._looks_over_bytes:
            return event
        document = document_of(event)
        if document is None or not any(self._too_large(facets) for facets in _maps(document)):
            return event
        return changed(event, self._trim) or event

    def _trim(self, document: dict[str, Any]) -> None:
        """Take large facets out, and put a marker beside them that says what they were."""
        for facets in _maps(document):
            large = self._too_large(facets)
            for key in large:
                del facets[key]
            if large:
                gone = [{"name": key[:NAME_CHARACTERS_MAX], "bytes": n} for key, n in large.items()]
                facets[MARKER] = {"_producer": PRODUCER, "_schemaURL": SCHEMA_URL, "facets": gone}

    def _too_large(self, facets: dict[str, Any]) -> dict[str, int]:
        """Return the facets that go, with their sizes in bytes."""
        found = {}
        for key, facet in facets.items():
            if key != MARKER and self._names.match(key):
                size_bytes = _size_bytes(facet)
                if size_bytes > self._max_facet_bytes:
                    found[key] = size_bytes
        return found


def _maps(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = (facets for path in FACET_MAPS for facets in values_at(document, path))
    return [facets for facets in found if isinstance(facets, dict)]


def _size_bytes(facet: object) -> int:
    try:
        return len(orjson.dumps(facet))
    except TypeError:
        return 0  # too deep to be written; then the event cannot be changed anyway


def make(config: Config) -> Trim:
    """Return a processor that trims."""
    return Trim(config)
