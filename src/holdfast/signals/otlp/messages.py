"""The messages of OTLP: as its files declare them, with little but the times, and without items.

A request is checked with the first: every byte of it is looked at, and what is refused is what any
reader of protobuf refuses. Once it is stored, only the time and the trace of each item, and the
service, are asked for. A reader that knows no other fields steps over them, which takes a quarter
of the time; so the second set is cut out of the first. Whoever only counts items need not look into
them at all: in the third set each is some bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from holdfast.signals.otlp.kinds import OtlpKind

REQUESTS: Mapping[OtlpKind, type[Message]] = {
    OtlpKind.TRACES: trace_service_pb2.ExportTraceServiceRequest,
    OtlpKind.METRICS: metrics_service_pb2.ExportMetricsServiceRequest,
    OtlpKind.LOGS: logs_service_pb2.ExportLogsServiceRequest,
}
RESPONSES: Mapping[OtlpKind, type[Message]] = {
    OtlpKind.TRACES: trace_service_pb2.ExportTraceServiceResponse,
    OtlpKind.METRICS: metrics_service_pb2.ExportMetricsServiceResponse,
    OtlpKind.LOGS: logs_service_pb2.ExportLogsServiceResponse,
}

# In the order of their imports.
PROTO_FILES = (
    common_pb2,
    resource_pb2,
    trace_pb2,
    metrics_pb2,
    logs_pb2,
    trace_service_pb2,
    metrics_service_pb2,
    logs_service_pb2,
)
# Message: the fields that its short form keeps. Messages that are not named are left out.
_KEPT = {
    "ExportTraceServiceRequest": {"resource_spans"},
    "ResourceSpans": {"resource", "scope_spans"},
    "ScopeSpans": {"spans"},
    "Span": {"trace_id", "end_time_unix_nano"},
    "ExportMetricsServiceRequest": {"resource_metrics"},
    "ResourceMetrics": {"resource", "scope_metrics"},
    "ScopeMetrics": {"metrics"},
    "Metric": {"gauge", "sum", "histogram", "exponential_histogram", "summary"},
    "Gauge": {"data_points"},
    "Sum": {"data_points"},
    "Histogram": {"data_points"},
    "ExponentialHistogram": {"data_points"},
    "Summary": {"data_points"},
    "NumberDataPoint": {"time_unix_nano", "exemplars"},
    "HistogramDataPoint": {"time_unix_nano", "exemplars"},
    "ExponentialHistogramDataPoint": {"time_unix_nano", "exemplars"},
    "SummaryDataPoint": {"time_unix_nano"},
    "Exemplar": {"trace_id"},
    "ExportLogsServiceRequest": {"resource_logs"},
    "ResourceLogs": {"resource", "scope_logs"},
    "ScopeLogs": {"log_records"},
    "LogRecord": {"time_unix_nano", "observed_time_unix_nano", "trace_id"},
    "Resource": {"attributes"},
    "KeyValue": {"key", "value"},
    "AnyValue": {"string_value"},
}


# Of these the items are bytes where they are only counted.
_ITEMS = {"Span", "LogRecord", *(name for name in _KEPT if name.endswith("DataPoint"))}


def _short_requests(*, counted: bool) -> dict[OtlpKind, type[Message]]:
    """Return the requests with the fields that are kept, made from the descriptors in memory.

    In a pool of its own, since the names are those of the full messages. What is left out is no
    unknown field that would be kept: these messages are only ever read, and thrown away.
    """
    pool = descriptor_pool.DescriptorPool()
    for module in PROTO_FILES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in list(file.message_type):
            kept = _KEPT.get(message.name)
            if kept is None:
                file.message_type.remove(message)
                continue
            for field in list(message.field):
                if field.name not in kept or (counted and field.name == "resource"):
                    message.field.remove(field)
                elif counted and field.type_name.rpartition(".")[2] in _ITEMS:
                    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
            del message.nested_type[:], message.enum_type[:], message.reserved_range[:]
            _drop_empty_oneofs(message)
        del file.service[:], file.enum_type[:]
        pool.Add(file)
    return {
        kind: message_factory.GetMessageClass(pool.FindMessageTypeByName(full.DESCRIPTOR.full_name))
        for kind, full in REQUESTS.items()
    }


def _drop_empty_oneofs(message: descriptor_pb2.DescriptorProto) -> None:
    """Keep the `oneof` of a metric, so that of two kinds of data the same one counts as in full."""
    if not any(field.HasField("oneof_index") for field in message.field):
        del message.oneof_decl[:]


SHORT_REQUESTS: Mapping[OtlpKind, type[Message]] = _short_requests(counted=False)
COUNTED_REQUESTS: Mapping[OtlpKind, type[Message]] = _short_requests(counted=True)
