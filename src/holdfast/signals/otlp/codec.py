"""Requests of OTLP as bytes: checked, counted, taken apart at resource borders.

A request is a list of resources, each with its scopes and their items (spans, data points, log
records). It is stored and sent as the bytes that came. That is enough to join and to split it,
because of how protobuf writes lists: two requests behind each other are one request that has the
resources of both, and a request may be cut between two fields of its first level.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from holdfast.signals.otlp.alike import alike_columns
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import COUNTED_REQUESTS, REQUESTS, RESPONSES, SHORT_REQUESTS
from holdfast.signals.otlp.problem import NotOtlp, TooMuchMemory

SERVICE_NAME = "service.name"
# What is shorter or longer is no id of a trace; an item without one has no bytes there.
TRACE_ID_BYTES = 16
# How many services of a request are named.
SERVICES_MAX = 64
# What protobuf says where memory is bounded and a message would need more.
_NO_MEMORY = "alloc failed"
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_VARINT_BYTES_MAX = 10


class RequestContents(NamedTuple):
    """What is known of a request beside its bytes."""

    # The values of `service.name`, each once, in the order in which they come.
    services: tuple[str, ...]
    # The time of each item, in the order in which they come; 0 where it has none.
    times_ns: array[int]
    # The traces that its items are of, or have examples from, one behind the other.
    trace_ids: bytes

    @property
    def items(self) -> int:
        """How many spans, data points or log records there are."""
        return len(self.times_ns)


def check(kind: OtlpKind, body: bytes) -> int:
    """Return how many items a request has; raises `NotOtlp`. Every byte of it is looked at."""
    try:
        return sum(map(len, item_lists(kind, REQUESTS[kind].FromString(body))))
    except DecodeError as error:
        if _NO_MEMORY in str(error):
            raise TooMuchMemory from error
        raise NotOtlp("this is not a valid protobuf message of the kind") from error


def count(kind: OtlpKind, body: bytes) -> int:
    """Return how many items a request has that was checked; looks at no item."""
    try:
        return sum(map(len, item_lists(kind, COUNTED_REQUESTS[kind].FromString(body))))
    except DecodeError as error:
        raise NotOtlp("this is not a valid protobuf message of the kind") from error


def contents(kind: OtlpKind, body: bytes) -> RequestContents:
    """Return what is known of a request that was checked."""
    try:
        request: Any = SHORT_REQUESTS[kind].FromString(body)
    except DecodeError as error:
        raise NotOtlp("this is not a valid protobuf message of the kind") from error
    services = tuple(dict.fromkeys(_services(kind, request)))[:SERVICES_MAX]
    columns = alike_columns(kind, request) or _by_item(kind, request)
    return RequestContents(services, *columns)


def _by_item(kind: OtlpKind, request: Any) -> tuple[array[int], bytes]:
    """Return the times and the traces of items, whatever they are like."""
    times: list[int] = []
    traces: list[bytes] = []
    for items in item_lists(kind, request):
        if kind is OtlpKind.TRACES:
            times += [span.end_time_unix_nano for span in items]
            traces += [span.trace_id for span in items]
        elif kind is OtlpKind.METRICS:
            times += [point.time_unix_nano for point in items]
            traces += _traces_of_examples(items)
        else:
            times += [log.time_unix_nano or log.observed_time_unix_nano for log in items]
            traces += [log.trace_id for log in items]
    return array("Q", times), b"".join(one for one in traces if len(one) == TRACE_ID_BYTES)


def _traces_of_examples(points: Any) -> list[bytes]:
    # Points of a summary have no examples, and those of one list are of one kind.
    if not points or not hasattr(points[0], "exemplars"):
        return []
    return [example.trace_id for point in points for example in point.exemplars]


def _resources(kind: OtlpKind, request: Any) -> Any:
    if kind is OtlpKind.TRACES:
        return request.resource_spans
    return request.resource_metrics if kind is OtlpKind.METRICS else request.resource_logs


def item_lists(kind: OtlpKind, request: Any) -> Iterator[Any]:
    """Yield the lists that hold the items."""
    for resource in _resources(kind, request):
        if kind is OtlpKind.TRACES:
            for scope in resource.scope_spans:
                yield scope.spans
        elif kind is OtlpKind.LOGS:
            for scope in resource.scope_logs:
                yield scope.log_records
        else:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    # One of its fields at most has any; asking for all that are set is one call.
                    for _, data in metric.ListFields():
                        if (points := getattr(data, "data_points", None)) is not None:
                            yield points


def _services(kind: OtlpKind, request: Any) -> Iterator[str]:
    for resource in _resources(kind, request):
        for attribute in resource.resource.attributes:
            if attribute.key == SERVICE_NAME and attribute.value.string_value:
                yield attribute.value.string_value


# ------------------------------------------------------------------ joining and splitting


def with_resource_attribute(kind: OtlpKind, body: bytes, key: str, value: str) -> bytes:
    """Return a request of which every resource has one more attribute, in place of any such."""
    request: Any = REQUESTS[kind].FromString(body)
    for one in _resources(kind, request):
        attributes = one.resource.attributes
        kept = [attribute for attribute in attributes if attribute.key != key]
        del attributes[:]
        attributes.extend(kept)
        attributes.add(key=key).value.string_value = value
    written: bytes = request.SerializeToString()
    return written


def join(requests: Iterable[bytes]) -> bytes:
    """Return one request with everything that these have."""
    return b"".join(requests)


def split(body: bytes, max_bytes: int) -> list[bytes]:
    """Cut a request at resource borders into requests of at most `max_bytes` each.

    A resource that is larger by itself stays whole. Raises `NotOtlp` if there are no such borders.
    """
    parts, first, end = [], 0, 0
    for field_end in field_ends(body):
        if field_end - first > max_bytes and end > first:
            parts.append(body[first:end])
            first = end
        end = field_end
    parts.append(body[first:end])
    return parts


def field_ends(body: bytes) -> Iterator[int]:
    """Yield where each field of the first level ends."""
    at = 0
    while at < len(body):
        at = _behind_field(body, at, depth=0)
        yield at


# How deeply groups may be nested; readers of protobuf refuse more.
_GROUPS_MAX = 100


def _behind_field(body: bytes, at: int, depth: int) -> int:
    """Return where the field that begins here ends."""
    tag, at = _varint(body, at)
    wire_type = tag & 7
    if wire_type == _BYTES:
        length, at = _varint(body, at)
        at += length
    elif wire_type == _VARINT:
        _, at = _varint(body, at)
    elif wire_type == _FIXED64:
        at += 8
    elif wire_type == _FIXED32:
        at += 4
    elif wire_type == _GROUP and depth < _GROUPS_MAX:
        while _varint(body, at)[0] != tag + 1:
            at = _behind_field(body, at, depth + 1)
        _, at = _varint(body, at)
    else:
        raise NotOtlp("a field of the request has no wire type that protobuf knows")
    if at > len(body):
        raise NotOtlp("the request ends within a field")
    return at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    value = 0
    for index, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004
            return value, at + index + 1
    raise NotOtlp("the request ends within a number")


# ---------------------------------------------------------------------------- answers


def response(kind: OtlpKind, rejected: int = 0, message: str = "") -> bytes:
    """Return the answer to a request, empty where all of it was taken."""
    if not rejected and not message:
        return b""
    return response_message(kind, rejected, message).SerializeToString()


def response_message(kind: OtlpKind, rejected: int, message: str) -> Message:
    """Return the answer to a request of which some items were not taken."""
    partial = {kind.rejected_field: rejected, "error_message": message}
    return RESPONSES[kind](partial_success=partial)


def status(code: int, message: str) -> bytes:
    """Return a google.rpc.Status: what is told of a request that is not taken, over HTTP."""
    text = message.encode("utf-8", "replace")
    return b"\x08%b\x12%b%b" % (as_varint(code), as_varint(len(text)), text)


def as_varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    written = bytearray()
    while number > 0x7F:  # noqa: PLR2004
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
