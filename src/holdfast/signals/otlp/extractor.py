"""What is known of stored requests: their times, services, and how many items they have.

Asked for when a segment is sealed, and when somebody asks how far event time has come; never while
a client waits. Protobuf is imported with the first request that is looked at.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from holdfast.extras import need
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.arrow import constant, numbers, texts
from holdfast.quiver.base.envelope import ITEM_TIMES, SEARCH_IDS, SEARCH_IDS_TYPE
from holdfast.signals.otlp.kinds import OtlpKind

if TYPE_CHECKING:
    from holdfast.signals.otlp.codec import RequestContents

_TIME = pa.timestamp("us", tz="UTC")
_NS_PER_US = 1000
# Times behind this are as far away as it is, and would not fit.
_FURTHEST_US = 2**62


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
        timed = _times_of([one.times_ns for one in found])
        return pa.record_batch(
            {
                "event_time": numbers([one.us[0] if one.us else None for one in timed], _TIME),
                "latest_time": numbers([one.us[-1] if one.us else None for one in timed], _TIME),
                "items": numbers([one.items for one in found], pa.int64()),
                "services": texts([", ".join(one.services) for one in found]),
                ITEM_TIMES: _lists(
                    [[*one.us, None] if one.some_untimed else one.us for one in timed]
                ),
                SEARCH_IDS: _id_lists([one.trace_ids for one in found]),
            }
        )


def _read(kind: OtlpKind, payload: bytes) -> RequestContents:
    from holdfast.signals.otlp import codec
    from holdfast.signals.otlp.problem import NotOtlp

    try:
        return codec.contents(kind, payload)
    except NotOtlp:
        # Not by our receiver. It costs its own row what would have been found.
        return codec.RequestContents((), array("Q"), b"")


class _RequestTimes(NamedTuple):
    """When the items of one request were."""

    # Each once, ascending.
    us: list[int]
    # Whether some have no time.
    some_untimed: bool


def _times_of(requests: Sequence[array[int]]) -> list[_RequestTimes]:
    """Return when the items of each request were, given in ns, or as 0 where they have no time."""
    ns = array("Q", b"".join(requests))
    given = pa.Array.from_buffers(pa.uint64(), len(ns), [None, pa.py_buffer(ns)])
    us = pc.divide(given, constant(_NS_PER_US, pa.uint64()))
    us = pc.min_element_wise(us, constant(_FURTHEST_US, pa.uint64()))
    all_us = memoryview(us.buffers()[1]).cast("B").cast("Q")
    found = []
    for first, behind in pairwise(accumulate(map(len, requests), initial=0)):
        times = sorted(set(all_us[first:behind]))
        some_untimed = times[:1] == [0] and 0 in ns[first:behind]
        # Others may be of the first microsecond.
        if some_untimed and not any(0 < one < _NS_PER_US for one in ns[first:behind]):
            del times[0]
        found.append(_RequestTimes(times, some_untimed))
    return found


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
