"""The times and traces of items that are alike, as columns: no Python object for a single item.

To ask protobuf's reader for one field of one item takes a third of a microsecond, which for the two
fields of a thousand spans is more than reading the whole request. But nearly always the items of a
request have the same fields. Written again with these alone, each takes the same number of bytes,
and its fields stand at the same places: a slice with a step is a column.

Nothing is taken for granted. Protobuf reads and writes; whether all items are as expected is seen
from the tags and lengths that it wrote, and where they are not, whoever asks goes item by item.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from holdfast.signals.otlp.kinds import OtlpKind

# The tag of the items of a scope.
_ITEM = 0x12
_ID_BYTES, _TIME_BYTES = 16, 8


class _WrittenField(NamedTuple):
    """A field as it is written: its tag (and its length), then its value."""

    head: bytes
    value_bytes: int


class _Layout(NamedTuple):
    """How items with the same fields are written."""

    size_bytes: int
    # The same in each item: where, and what.
    fixed: Sequence[tuple[int, int]]
    # Where the time begins, and the id of the trace, if they have one.
    time_at: int
    trace_at: int | None


def _layout(
    fields: Sequence[_WrittenField], time: _WrittenField, trace: _WrittenField | None
) -> _Layout:
    at, fixed, places = 2, list[tuple[int, int]](), dict[_WrittenField | None, int]()
    for field in fields:
        fixed += enumerate(field.head, at)
        places[field] = at + len(field.head)
        at += len(field.head) + field.value_bytes
    return _Layout(at, [(0, _ITEM), (1, at - 2), *fixed], places[time], places.get(trace))


_END = _WrittenField(b"\x41", _TIME_BYTES)
_SPAN_TRACE = _WrittenField(b"\x0a\x10", _ID_BYTES)
_TIME = _WrittenField(b"\x09", _TIME_BYTES)
_LOG_TRACE = _WrittenField(b"\x4a\x10", _ID_BYTES)
_OBSERVED = _WrittenField(b"\x59", _TIME_BYTES)
# A time of 0 is not written. Points are few to a metric, so that nothing would be won.
_LAYOUTS: Mapping[OtlpKind, Sequence[_Layout]] = {
    OtlpKind.TRACES: [_layout([_SPAN_TRACE, _END], _END, _SPAN_TRACE)],
    OtlpKind.LOGS: [
        _layout([_TIME, _LOG_TRACE, _OBSERVED], _TIME, _LOG_TRACE),
        _layout([_TIME, _LOG_TRACE], _TIME, _LOG_TRACE),
        _layout([_LOG_TRACE, _OBSERVED], _OBSERVED, _LOG_TRACE),
        _layout([_TIME, _OBSERVED], _TIME, None),
        _layout([_TIME], _TIME, None),
        _layout([_OBSERVED], _OBSERVED, None),
    ],
}


def alike_columns(kind: OtlpKind, request: Any) -> tuple[array[int], bytes] | None:
    """Return the times and the ids of the traces of all items; None if they are not alike.

    Of a request in its short form (messages.py), which is left without what it does not know.
    """
    layouts = _LAYOUTS.get(kind)
    if layouts is None:
        return None
    request.DiscardUnknownFields()
    if kind is OtlpKind.TRACES:
        scopes = [*chain.from_iterable(one.scope_spans for one in request.resource_spans)]
        count = sum(len(scope.spans) for scope in scopes)
    else:
        scopes = [*chain.from_iterable(one.scope_logs for one in request.resource_logs)]
        count = sum(len(scope.log_records) for scope in scopes)
    written = b"".join([scope.SerializePartialToString() for scope in scopes])
    for layout in layouts:
        step = layout.size_bytes
        if len(written) == step * count and all(
            written[at::step].count(byte) == count for at, byte in layout.fixed
        ):
            times = array("Q", _column(written, step, layout.time_at, _TIME_BYTES))
            if layout.trace_at is None:
                return times, b""
            return times, bytes(_column(written, step, layout.trace_at, _ID_BYTES))
    return None


def _column(written: bytes, step: int, first: int, value_bytes: int) -> bytearray:
    """Return the values that stand at one place of each item, one behind the other."""
    column = bytearray(len(written) // step * value_bytes)
    for at in range(value_bytes):
        column[at::value_bytes] = written[first + at :: step]
    return column
