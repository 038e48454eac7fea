"""Names: what an event is about, read from a parsed document of any shape without ever raising.

Time, run and job also become columns beside the payload: the envelope of the stored event.

What is not there, or not of its type, counts as absent: with validation off an event may be
anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa

from holdfast.quiver.base.arrow import numbers, texts
from holdfast.signals.openlineage.facts import FACETS, EventKind
from holdfast.signals.openlineage.json_text import has_equal_keys

_STANDARD_KEYS = frozenset(key for _, key in FACETS)
_RUN, _JOB, _DATASET = EventKind.RUN, EventKind.JOB, EventKind.DATASET

# Where events are in a bundle.
SLOT = "openlineage"
OrderBy = Literal["root_job", "job", "run"]


def kind_of(document: object) -> EventKind | None:
    """Return what an event is by its shape, as the specification's `oneOf` would decide."""
    if not isinstance(document, dict):
        return None
    if "run" in document:
        return _DATASET if "job" not in document and "dataset" in document else _RUN
    if "job" in document:
        return _JOB
    return _DATASET if "dataset" in document else None


def run_id(document: object) -> str | None:
    """Return the id of the run."""
    return _text(_at(document, "run"), "runId")


def job_namespace(document: object) -> str | None:
    """Return the namespace of the job."""
    return _text(_at(document, "job"), "namespace")


def namespaces(document: object) -> set[str]:
    """Return the namespaces of the job and of all datasets that an event speaks for.

    What its facets refer to is `referred_namespaces`.
    """
    return {
        namespace
        for thing in _things(document)
        if (namespace := _text(thing, "namespace")) is not None
    }


def _things(document: object) -> Iterator[object]:
    yield _at(document, "job")
    yield _at(document, "dataset")
    for field in ("inputs", "outputs"):
        datasets = _at(document, field)
        if isinstance(datasets, list):
            yield from datasets


def referred_namespaces(document: object) -> set[str]:
    """Return all namespaces in the standard facets of an event, wherever they stand in them.

    Those of parents and their roots, dependencies, symlinks, column lineage, and of what newer
    versions of these facets add. In a custom facet `namespace` may mean anything, and is left out.
    """
    found: set[str] = set()
    things = [_at(document, "run"), *_things(document)]
    waiting = [
        facet
        for thing in things
        for field in ("facets", "inputFacets", "outputFacets")
        if isinstance(facets := _at(thing, field), dict)
        for key, facet in facets.items()
        if key in _STANDARD_KEYS
    ]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if (namespace := _text(value, "namespace")) is not None:
                found.add(namespace)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return found


class Names(NamedTuple):
    """What a token is held against."""

    # Of the job and its datasets; and what the facets refer to.
    namespaces: Collection[str]
    referred_namespaces: Collection[str]
    # Whether a key stands twice in one object, so that another reader may read other names.
    has_equal_keys: bool


def names_of(raw: bytes, document: object) -> Names:
    """Return the names in an event, as it came and as it is read."""
    return Names(
        sorted(namespaces(document)),
        sorted(referred_namespaces(document)),
        has_equal_keys(raw, document),
    )


def kafka_key(document: object) -> str:
    """Return the message key that the OpenLineage clients give this event; "" if it has no names.

    Runs have the job at the root of their chain, so that a run, its children and all runs of the
    same job stay in order.
    """
    kind = kind_of(document)
    if kind is _RUN:
        return _named("run", _chain_job(document) or _at(document, "job"))
    return _named(kind, _at(document, kind)) if kind is not None else ""


def order_key(document: object, by: OrderBy) -> str:
    """Return a key such that events of equal keys must stay in order.

    By `run`, events without a run are kept in order by their job. Events of datasets have the
    dataset's name, whatever is asked for.
    """
    if by == "run" and (run := run_id(document)) is not None:
        return f"run:{run}"
    job = (_chain_job(document) if by == "root_job" else None) or _at(document, "job")
    return _named("job", job) or _named("dataset", _at(document, "dataset"))


def job_name(document: object) -> str | None:
    """Return `namespace/name` of the job."""
    return _named("", _at(document, "job"))[1:] or None


def event_time(document: object) -> datetime | None:
    """Return when the event happened, in UTC."""
    text = _text(document, "eventTime")
    return None if text is None else read_time(text)


# 23:59:60 is a valid time, and so is the zone that Java writes behind an offset.
_LEAP_SECOND = re.compile(r"(?<=:\d\d):60")
_ZONE_NAME = re.compile(r"\[[A-Za-z0-9_+\-/]+\]$")
_DATE_CHARS = len("2026-01-31")


def read_time(text: str) -> datetime | None:
    """Read an ISO 8601 date and time; one without a time zone is taken as UTC."""
    whole, leaped = text.strip().upper(), 0
    if "[" in whole:
        whole = _ZONE_NAME.sub("", whole)
    if ":60" in whole:
        whole, leaped = _LEAP_SECOND.subn(":59", whole)
    if len(whole) <= _DATE_CHARS:
        return None
    try:
        time = datetime.fromisoformat(whole)
        if leaped:
            time += timedelta(seconds=leaped)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _chain_job(document: object) -> object:
    """Return the job at the root of a run's chain, else its parent, if that has a full name."""
    parent = _at(_at(_at(document, "run"), "facets"), "parent")
    job = _at(_at(parent, "root") or parent, "job")
    return job if _text(job, "namespace") and _text(job, "name") else None


def _at(thing: object, field: str) -> Any:
    return thing.get(field) if isinstance(thing, dict) else None


def _text(thing: object, field: str) -> str | None:
    value = _at(thing, field)
    return value if isinstance(value, str) else None


def _named(prefix: str, thing: object) -> str:
    """Return `prefix:namespace/name`, or "" if one of them is missing."""
    namespace, name = _text(thing, "namespace"), _text(thing, "name")
    return f"{prefix}:{namespace}/{name}" if namespace is not None and name is not None else ""


_FIELDS = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("run_id", pa.string()),
        pa.field("job", pa.string()),
    ]
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class OpenLineageExtractor:
    """Reads `event_time`, `run_id` and `job` (`namespace/name`); null where there is none."""

    # As it stands in manifests and statistics.
    signal = "openlineage"

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row for each payload; one that cannot be read costs only its own row."""
        found = list(_read(rows.column("payload")))
        times, runs, jobs = zip(*found, strict=True) if found else ((), (), ())
        columns = [numbers(times, _FIELDS.field("event_time").type), texts(runs), texts(jobs)]
        return pa.record_batch(columns, schema=_FIELDS)


def _read(payloads: pa.Array) -> Iterator[tuple[int | None, str | None, str | None]]:
    for payload in _values(payloads):
        try:
            document = orjson.loads(payload)
        except orjson.JSONDecodeError:
            yield None, None, None
        else:
            yield _micros(event_time(document)), run_id(document), job_name(document)


def _micros(time: datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def _values(column: pa.Array) -> Iterator[memoryview]:
    """Yield the values of a binary column in place, nothing for a null."""
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    _, offsets, values = column.buffers()
    if values is None:
        offsets, values = pa.py_buffer(bytes(4 * (len(column) + 1))), pa.py_buffer(b"")
    view = memoryview(values)
    ends = memoryview(offsets).cast("B").cast("i")[column.offset : column.offset + len(column) + 1]
    for start, end in pairwise(ends):
        yield view[start:end]
