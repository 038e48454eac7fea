"""Reads requests with protobuf's reader in plain Python, in a process of its own.

Which reader protobuf uses is decided when it is imported. So the oracle of these tests is a child,
`python plain_reader.py`: each request comes as a line `KIND SIZE` and its bytes; each is answered
with a line of JSON, null if it is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

_END_GROUP = 4


class Reading(NamedTuple):
    """What a request holds, item by item, and as its services."""

    times_ns: list[int]
    services: list[str]
    # Of items and examples, in hexadecimal digits.
    trace_ids: list[str]


def readings_of(requests: Iterable[tuple[str, bytes]]) -> list[Reading | None]:
    """Return what the plain reader finds in each request; None for one that it refuses."""
    child = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        sender = threading.Thread(target=_send, args=(child.stdin, requests))
        sender.start()
        answers = [json.loads(line) for line in child.stdout]
        sender.join()
    assert child.returncode == 0
    return [None if answer is None else Reading(*answer) for answer in answers]


def _send(target: Any, requests: Iterable[tuple[str, bytes]]) -> None:
    with target:
        for kind, body in requests:
            target.write(b"%s %d\n%s" % (kind.encode(), len(body), body))


def main() -> None:
    """Be the child."""
    from google.protobuf.internal import api_implementation, decoder
    from google.protobuf.message import DecodeError

    assert api_implementation.Type() == "python"
    decoder.ReadTag = _read_tag
    decoder._DecodeUnknownFieldSet = _read_group  # type: ignore[attr-defined]
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    kinds: dict[str, Any] = {
        "traces": trace_service_pb2.ExportTraceServiceRequest,
        "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
        "logs": logs_service_pb2.ExportLogsServiceRequest,
    }
    source = sys.stdin.buffer
    while line := source.readline():
        kind, size = line.decode().split()
        body = source.read(int(size))
        try:
            request = kinds[kind].FromString(body)
        except (DecodeError, ValueError, RecursionError):
            answer = None
        else:
            answer = [_times(kind, request), _services(kind, request), _trace_ids(kind, request)]
        sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _read_tag(buffer: memoryview, pos: int) -> tuple[bytes, int]:
    """Read a tag as the encoding is specified; protobuf's own function is more lenient.

    It takes numbers that no field can have, and does not know a field whose number is written with
    more bytes than it needs.
    """
    from google.protobuf.internal import encoder
    from google.protobuf.message import DecodeError

    tag = 0
    for index, byte in enumerate(buffer[pos : pos + 5]):
        tag |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if tag >= 2**32 or tag < 8 or tag & 7 > 5:
                break
            return encoder.TagBytes(tag >> 3, tag & 7), pos + index + 1
    raise DecodeError("not a tag")


def _read_group(
    buffer: memoryview, pos: int, end_pos: int, current_depth: int = 0
) -> tuple[Any, int]:
    """Read an unknown group to its end, which must be there.

    Protobuf's own function looks only whether the last byte could be that end: the last one of a
    number within the group will do.
    """
    from google.protobuf.internal import containers, decoder
    from google.protobuf.message import DecodeError

    while pos < end_pos:
        tag_bytes, pos = _read_tag(buffer, pos)
        tag, _ = decoder._DecodeVarint(tag_bytes, 0)  # type: ignore[attr-defined]
        if tag & 7 == _END_GROUP:
            return containers.UnknownFieldSet(), pos
        _, pos = decoder._DecodeUnknownField(  # type: ignore[attr-defined]
            buffer, pos, end_pos, tag >> 3, tag & 7, current_depth
        )
    raise DecodeError("a group without an end")


def _items(kind: str, request: Any) -> list[Any]:
    if kind == "traces":
        return [
            span
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    if kind == "logs":
        return [
            log
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for log in scope.log_records
        ]
    return [
        point
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.WhichOneof("data") is not None
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    ]


def _times(kind: str, request: Any) -> list[int]:
    items = _items(kind, request)
    if kind == "traces":
        return [span.end_time_unix_nano for span in items]
    if kind == "logs":
        return [log.time_unix_nano or log.observed_time_unix_nano for log in items]
    return [point.time_unix_nano for point in items]


def _trace_ids(kind: str, request: Any) -> list[str]:
    items = _items(kind, request)
    if kind == "metrics":
        items = [example for point in items for example in getattr(point, "exemplars", ())]
    return [item.trace_id.hex() for item in items]


def _services(kind: str, request: Any) -> list[str]:
    resources = getattr(
        request, {"traces": "resource_spans", "logs": "resource_logs"}.get(kind, "resource_metrics")
    )
    return [
        attribute.value.string_value
        for one in resources
        for attribute in one.resource.attributes
        if attribute.key == "service.name" and attribute.value.string_value
    ]


if __name__ == "__main__":
    main()
