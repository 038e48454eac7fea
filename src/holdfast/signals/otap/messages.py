"""The messages of OTAP's service, declared here: no package on PyPI brings them.

They are in a pool of their own, so that a program which has upstream's generated files too can
import both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from holdfast.signals.otap.problem import BatchCode
from holdfast.signals.otlp.kinds import OtlpKind

_PACKAGE = "opentelemetry.proto.experimental.arrow.v1"
GRPC_PATHS: Mapping[OtlpKind, str] = {
    OtlpKind.TRACES: f"/{_PACKAGE}.ArrowTracesService/ArrowTraces",
    OtlpKind.METRICS: f"/{_PACKAGE}.ArrowMetricsService/ArrowMetrics",
    OtlpKind.LOGS: f"/{_PACKAGE}.ArrowLogsService/ArrowLogs",
}

_Field = descriptor_pb2.FieldDescriptorProto
# Message: its fields with their numbers and types. The two enumerations are plain numbers here
# (which is the same on the wire), so that one that is new is kept.
_MESSAGES: Mapping[str, Mapping[str, tuple[int, Any]]] = {
    "ArrowPayload": {
        "schema_id": (1, _Field.TYPE_STRING),
        "type": (2, _Field.TYPE_INT32),
        "record": (3, _Field.TYPE_BYTES),
    },
    "BatchArrowRecords": {
        "batch_id": (1, _Field.TYPE_INT64),
        "arrow_payloads": (2, f".{_PACKAGE}.ArrowPayload"),
        "headers": (3, _Field.TYPE_BYTES),
    },
    "BatchStatus": {
        "batch_id": (1, _Field.TYPE_INT64),
        "status_code": (2, _Field.TYPE_INT32),
        "status_message": (3, _Field.TYPE_STRING),
    },
}
# What a status may say in words; the rest is cut.
STATUS_MESSAGE_CHARACTERS_MAX = 1024


def _classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(
        name="holdfast/otap.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, kind
                field.label = _Field.LABEL_REPEATED
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _classes()
ArrowPayload: Any = _CLASSES["ArrowPayload"]
BatchArrowRecords: Any = _CLASSES["BatchArrowRecords"]
BatchStatus: Any = _CLASSES["BatchStatus"]


def status(batch_id: int, code: BatchCode = BatchCode.OK, message: str = "") -> bytes:
    """Return what a sender is told of a batch."""
    text = message[:STATUS_MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace").decode()
    written: bytes = BatchStatus(
        batch_id=batch_id, status_code=code.value, status_message=text
    ).SerializeToString()
    return written
