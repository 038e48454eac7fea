"""Requests of OTLP, changed item by item.

A request is read, some of its items are dropped or changed, and it is written again. Fields that
this version of OTLP does not know stay where they were, in every message that stays. A request is
taken in slices, cut at the borders of resources: protobuf does not let others run while it reads
one, and a slice in which nothing was changed keeps its very bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from holdfast.signals.otlp.codec import item_lists, split
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

# What is read at once, some milliseconds; a single resource may be larger.
SLICE_BYTES = 1024 * 1024


class ScopeOfItems(NamedTuple):
    """Where items stand: what they are said to come from, and the messages that hold them."""

    resource: Any
    scope: Any
    # `ScopeSpans`, `ScopeLogs` or `ScopeMetrics`.
    holder: Any


# Changes a request in place; returns whether it did.
RequestChange = Callable[[Any], bool]


def changed(payload: bytes, kind: OtlpKind, change: RequestChange) -> bytes | None:
    """Return a request with its slices changed; None if nothing was. Raises `NotOtlp`."""
    parts, is_any_changed = [], False
    for part in split(payload, SLICE_BYTES):
        try:
            request = REQUESTS[kind].FromString(part)
        except DecodeError as error:
            raise NotOtlp("this is not a valid protobuf message of the kind") from error
        if change(request):
            is_any_changed = True
            parts.append(request.SerializeToString())
        else:
            parts.append(part)
    return b"".join(parts) if is_any_changed else None


def scopes(kind: OtlpKind, request: Any) -> Iterator[ScopeOfItems]:
    """Yield every scope of a request."""
    for container, holder in holders(kind, request):
        yield ScopeOfItems(container.resource, holder.scope, holder)


def holders(kind: OtlpKind, request: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what holds the items of a scope, with what holds that; also of counted requests."""
    if kind is OtlpKind.TRACES:
        for spans in request.resource_spans:
            for scope in spans.scope_spans:
                yield spans, scope
    elif kind is OtlpKind.LOGS:
        for logs in request.resource_logs:
            for scope in logs.scope_logs:
                yield logs, scope
    else:
        for metrics in request.resource_metrics:
            for scope in metrics.scope_metrics:
                yield metrics, scope


def lists_of_scope(kind: OtlpKind, holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the lists of items of a scope, each with its metric; None where there is none."""
    if kind is OtlpKind.TRACES:
        yield None, holder.spans
    elif kind is OtlpKind.LOGS:
        yield None, holder.log_records
    else:
        for metric in holder.metrics:
            for _, data in metric.ListFields():
                if (points := getattr(data, "data_points", None)) is not None:
                    yield metric, points


def drop_from(items: Any, is_dropped: Callable[[Any], bool]) -> int:
    """Take items out of a list, and return how many; the others stay in their order."""
    flags: list[bool] = []

    def flag(item: Any) -> bool:
        flags.append(is_dropped(item))
        return flags[-1]

    # One pass however many go. Deleting one by one moves the rest of the list each time, which for
    # a request of 100,000 spans takes seconds.
    items.sort(key=flag)
    dropped = sum(flags)
    if dropped:
        del items[len(items) - dropped :]
    return dropped


def prune(kind: OtlpKind, request: Any) -> None:
    """Take out the metrics, scopes and resources that hold no items any more."""
    if not any(map(len, item_lists(kind, request))):
        request.Clear()
    elif kind is OtlpKind.TRACES:
        for resource in request.resource_spans:
            drop_from(resource.scope_spans, lambda one: not one.spans)
        drop_from(request.resource_spans, lambda one: not one.scope_spans)
    elif kind is OtlpKind.LOGS:
        for resource in request.resource_logs:
            drop_from(resource.scope_logs, lambda one: not one.log_records)
        drop_from(request.resource_logs, lambda one: not one.scope_logs)
    else:
        for resource in request.resource_metrics:
            for holder in resource.scope_metrics:
                drop_from(holder.metrics, _has_no_points)
            drop_from(resource.scope_metrics, lambda one: not one.metrics)
        drop_from(request.resource_metrics, lambda one: not one.scope_metrics)


def _has_no_points(metric: Any) -> bool:
    return not any(getattr(data, "data_points", None) for _, data in metric.ListFields())


def text_of(value: Any) -> str | None:
    """Return what an attribute's value is as text; None for lists, maps, bytes and nothing."""
    which = value.WhichOneof("value")
    if which == "string_value":
        text: str = value.string_value
        return text
    if which == "bool_value":
        return "true" if value.bool_value else "false"
    if which in ("int_value", "double_value"):
        return str(getattr(value, which))
    return None
