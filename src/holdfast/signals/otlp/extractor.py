"""What is known of stored requests: their times, services, and how many items they have.

Asked for when a segment is sealed, and when somebody asks how far event time has come; never while
a client waits. Protobuf is imported with the first request that is looked at.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.extras import need
from holdfast.quiver.base.arrow import numbers, texts
from holdfast.quiver.base.envelope import ITEM_TIMES, SEARCH_IDS, SEARCH_IDS_TYPE
from holdfast.signals.otlp.kinds import OtlpKind

_TIME = pa.timestamp("us", tz="UTC")
_NS_PER_US = 1000
# Times behind this are as far away as it is, and would not fit.
_FURTHEST_US = 2**62


class _RequestRow(NamedTuple):
    """What is kept of one request."""

    # The earliest time of its items; None if none has one.
    event_us: int | None
    latest_us: int | None
    # All of them; None stands for those that have none.
    times_us: Sequence[int | None]
    items: int
    services: str
    # One behind the other.
    trace_ids: bytes


@dataclass(frozen=True)
class OtlpExtractor:
    """Reads `event_time` (the earliest of its items), `latest_time`, `items` and `services`.

    And `item_times`, by which claims go: equal times once, and one null for all that have none.
    And `search_ids`, the ids of its traces, for the filter.
    """

    kind: OtlpKind

    @property
    def signal(self) -> str:
        """What requests of this kind are called in manifests and statistics."""
        return self.kind.value

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row for each request."""
        # One after the other: memory that the last one had is faster than new memory.
        found = [_read(self.kind, payload.as_py()) for payload in rows.column("payload")]
        return pa.record_batch(
            {
                "event_time": numbers([row.event_us for row in found], _TIME),
                "latest_time": numbers([row.latest_us for row in found], _TIME),
                "items": numbers([row.items for row in found], pa.int64()),
                "services": texts([row.services for row in found]),
                ITEM_TIMES: _lists([row.times_us for row in found]),
                SEARCH_IDS: _id_lists([row.trace_ids for row in found]),
            }
        )


def _read(kind: OtlpKind, payload: bytes) -> _RequestRow:
    from holdfast.signals.otlp import codec
    from holdfast.signals.otlp.problem import NotOtlp

    try:
        found = codec.contents(kind, payload)
    except NotOtlp:
        # Not by our receiver. It costs its own row what would have been found.
        return _RequestRow(None, None, (), 0, "", b"")
    times_us: list[int | None] = [time // _NS_PER_US for time in found.times_ns]
    if found.times_ns and found.times_ns[-1] // _NS_PER_US > _FURTHEST_US:
        times_us = [min(time // _NS_PER_US, _FURTHEST_US) for time in found.times_ns]
    earliest_us, latest_us = (times_us[0], times_us[-1]) if times_us else (None, None)
    return _RequestRow(
        earliest_us,
        latest_us,
        [*times_us, None] if found.untimed else times_us,
        found.items,
        ", ".join(found.services),
        b"".join(found.trace_ids),
    )


def _lists(values: Sequence[Sequence[int | None]]) -> pa.Array:
    ends = numbers([0, *accumulate(map(len, values))], pa.int32())
    return pa.ListArray.from_arrays(ends, numbers([*chain.from_iterable(values)], _TIME))


def _id_lists(values: Sequence[bytes]) -> pa.Array:
    kind = SEARCH_IDS_TYPE.value_type
    ends = [0, *accumulate(len(value) // kind.byte_width for value in values)]
    ids = [None, pa.py_buffer(b"".join(values))]
    flat = pa.Array.from_buffers(kind, ends[-1], ids)
    return pa.ListArray.from_arrays(numbers(ends, pa.int32()), flat)


def item_counter(kind: OtlpKind) -> Callable[[bytes], int]:
    """Return what counts the items of a stored request; 0 where bytes are none."""

    def count(payload: bytes) -> int:
        try:
            from holdfast.signals.otlp import codec
        except ModuleNotFoundError:
            return 0  # then nothing here can have received it
        from holdfast.signals.otlp.problem import NotOtlp

        try:
            return codec.count(kind, payload)
        except NotOtlp:
            return 0

    return count


def document_reader(kind: OtlpKind) -> Callable[..., Any]:
    """Return what makes OTLP's JSON of a stored request; bytes that are none are shown as such."""

    def read(payload: bytes, items_max: int | None = None) -> Any:
        try:
            from holdfast.signals.otlp.json_form import request_document
        except ModuleNotFoundError:
            need("otel")
            raise
        from holdfast.signals.otlp.problem import NotOtlp

        try:
            return request_document(kind, payload, items_max)
        except NotOtlp:
            return {"not_otlp": base64.b64encode(payload).decode()}

    return read
