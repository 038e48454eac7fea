"""Requests in pieces of at most 256 kB, which are what a reader of protobuf is given at once.

Whoever reads protobuf holds the interpreter's lock meanwhile, and a gateway answers clients in the
same process: a piece takes two milliseconds, a request of 64 MB half a second. Small requests share
a call, because each costs a tenth of a millisecond by itself; large ones are cut at the borders of
resources, and within a resource between two items, which takes its resource, its scope and its
metric along. Only an item that is larger by itself stays whole.

Flat tables are made of several pieces together (`table.py`), in many short steps, not in one call.

Cutting needs no look into the items: in the messages by which requests are counted they are bytes,
which are read a hundred times faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from holdfast.signals.otlp.codec import split
from holdfast.signals.otlp.items import lists_of_scope
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import COUNTED_REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

CALL_BYTES_MAX = 256 * 1024
# What stands before a message, at most, where none is larger than 256 MB.
_FRAMING_BYTES = 5
# The lists that lead from a request to its items, or to its metrics.
LEVELS = {
    OtlpKind.TRACES: ("resource_spans", "scope_spans", "spans"),
    OtlpKind.LOGS: ("resource_logs", "scope_logs", "log_records"),
    OtlpKind.METRICS: ("resource_metrics", "scope_metrics", "metrics"),
}


def pieces_of(kind: OtlpKind, request: bytes, max_bytes: int = CALL_BYTES_MAX) -> Iterator[bytes]:
    """Yield requests that together hold the items of one, in their order; raises `NotOtlp`."""
    if len(request) <= max_bytes:
        yield request
        return
    for part in split(request, max_bytes):
        if len(part) <= max_bytes:
            yield part
        else:
            yield from _cut(kind, part, max_bytes)


class _RepeatedHead(NamedTuple):
    """What is repeated with each piece: a resource, a scope or a metric without what it holds."""

    message: Any
    size_bytes: int


# Items that stand behind each other in one scope and metric; None where items have no metric.
_ItemList = tuple[_RepeatedHead, _RepeatedHead | None, list[bytes]]


def _cut(kind: OtlpKind, part: bytes, max_bytes: int) -> Iterator[bytes]:
    try:
        request: Any = COUNTED_REQUESTS[kind].FromString(part)
    except DecodeError as error:
        raise NotOtlp("this is not a valid protobuf message of the kind") from error
    resources, scopes, _ = LEVELS[kind]
    for resource in getattr(request, resources):
        lists: list[_ItemList] = []
        for scope in getattr(resource, scopes):
            taken = _taken(kind, scope)
            head = _head(scope)
            lists += [(head, metric, items) for metric, items in taken]
        getattr(resource, scopes).clear()
        yield from _packed(kind, _head(resource), lists, max_bytes)


def _taken(kind: OtlpKind, scope: Any) -> list[tuple[_RepeatedHead | None, list[bytes]]]:
    """Take the items out of a scope, list by list."""
    taken = []
    for metric, items in lists_of_scope(kind, scope):
        some = list(items)
        items.clear()
        taken.append((None if metric is None else _head(metric), some))
    if kind is OtlpKind.METRICS:
        scope.metrics.clear()
    return taken


def _head(message: Any) -> _RepeatedHead:
    copied = type(message)()
    copied.CopyFrom(message)
    return _RepeatedHead(copied, copied.ByteSize() + _FRAMING_BYTES)


def _packed(
    kind: OtlpKind, resource: _RepeatedHead, lists: Sequence[_ItemList], max_bytes: int
) -> Iterator[bytes]:
    """Yield pieces of one resource, each with as many items as fit."""
    piece = _Piece(kind, resource)
    for scope, metric, items in lists:
        heads_bytes = resource.size_bytes + scope.size_bytes
        heads_bytes += 0 if metric is None else metric.size_bytes
        # At most half of a piece is what it repeats: all are twice the request together, no more.
        room_bytes = max(max_bytes, 2 * heads_bytes)
        target = piece.begin(scope, metric)
        for item in items:
            item_bytes = len(item) + _FRAMING_BYTES
            if piece.size_bytes + item_bytes > room_bytes and piece.items:
                yield piece.written()
                piece = _Piece(kind, resource)
                target = piece.begin(scope, metric)
            target.append(item)
            piece.items += 1
            piece.size_bytes += item_bytes
    if piece.items:
        yield piece.written()


class _Piece:
    """A part of a request that is being made."""

    def __init__(self, kind: OtlpKind, resource: _RepeatedHead) -> None:
        self._request: Any = COUNTED_REQUESTS[kind]()
        resources, self._scopes, self._holder = LEVELS[kind]
        self._resource = getattr(self._request, resources).add()
        self._resource.CopyFrom(resource.message)
        self._scope: Any = None
        self._head: _RepeatedHead | None = None
        self.size_bytes = resource.size_bytes
        self.items = 0

    def begin(self, scope: _RepeatedHead, metric: _RepeatedHead | None) -> Any:
        """Go on with another list; returns where its items belong."""
        if self._head is not scope:
            self._head, self._scope = scope, getattr(self._resource, self._scopes).add()
            self._scope.CopyFrom(scope.message)
            self.size_bytes += scope.size_bytes
        target = getattr(self._scope, self._holder)
        if metric is None:
            return target
        copied = target.add()
        copied.CopyFrom(metric.message)
        self.size_bytes += metric.size_bytes
        return getattr(copied, copied.WhichOneof("data")).data_points

    def written(self) -> bytes:
        """Return it as bytes."""
        written: bytes = self._request.SerializeToString()
        return written
