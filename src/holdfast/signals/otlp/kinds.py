"""The three signals of OTLP: how each is named, stored, and sent.

Nothing of protobuf is imported here: a gateway without telemetry knows that there are such slots,
and needs no more.
"""

from __future__ import annotations

from enum import StrEnum


class OtlpKind(StrEnum):
    """What a request carries."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"

    @property
    def slot(self) -> str:
        """Where its requests are stored, each one row, as protobuf."""
        return f"otlp_{self.value}"

    @property
    def http_path(self) -> str:
        """Where it is posted to."""
        return f"/v1/{self.value}"

    @property
    def grpc_path(self) -> str:
        """The path of its `Export` call."""
        return _GRPC_PATHS[self]

    @property
    def json_field(self) -> str:
        """What a request in JSON has its resources in."""
        return _JSON_FIELDS[self]

    @property
    def items(self) -> str:
        """What people call its items."""
        return _ITEMS[self]

    @property
    def rejected_field(self) -> str:
        """The field of a partial success that counts what was not taken."""
        return _REJECTED_FIELDS[self]


_GRPC_PATHS = {
    OtlpKind.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    OtlpKind.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    OtlpKind.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_ITEMS = {
    OtlpKind.TRACES: "spans",
    OtlpKind.METRICS: "data points",
    OtlpKind.LOGS: "log records",
}
_REJECTED_FIELDS = {
    OtlpKind.TRACES: "rejected_spans",
    OtlpKind.METRICS: "rejected_data_points",
    OtlpKind.LOGS: "rejected_log_records",
}
_JSON_FIELDS = {
    OtlpKind.TRACES: "resourceSpans",
    OtlpKind.METRICS: "resourceMetrics",
    OtlpKind.LOGS: "resourceLogs",
}
KIND_OF_SLOT = {kind.slot: kind for kind in OtlpKind}
