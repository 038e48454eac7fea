"""OTLP over gRPC, and the unmodified Python SDK over both transports."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.patience import PATIENCE_S
from tests.receive.harness import Place, Running
from tests.signals.otlp.telemetry import request

from holdfast.errors import Overloaded
from holdfast.receive.openlineage import Config as OpenLineageConfig
from holdfast.receive.otlp import Config, OtlpReceiver
from holdfast.receive.receiver import ItemCounts
from holdfast.settings import Secret
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import KIND_OF_SLOT, OtlpKind

TRACES = request(OtlpKind.TRACES, random.Random(1))


class RunningOtlp(Running):
    """The receiver on real sockets."""

    receiver: OtlpReceiver  # type: ignore[assignment]

    def __init__(self, place: Place, **settings: Any) -> None:
        super().__init__(OpenLineageConfig(), place)
        ports = {"listening_addr": "127.0.0.1:0", "http_listening_addr": "127.0.0.1:0"}
        self.receiver = OtlpReceiver(Config(**{**ports, **settings}), place.context())

    @property
    def target(self) -> str:
        """Where gRPC listens."""
        return self.receiver.addresses[0].removeprefix("grpc://")


@contextmanager
def running(place: Place, **settings: Any) -> Iterator[RunningOtlp]:
    server = RunningOtlp(place, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def export(
    target: str, body: bytes, kind: OtlpKind = OtlpKind.TRACES, **metadata: str
) -> tuple[str, bytes]:
    """Call `Export` with grpcio; return the name of the status, and the answer."""
    with grpc.insecure_channel(target) as channel:
        method: Any = channel.unary_unary(kind.grpc_path)
        sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        try:
            answer: bytes = method(body, timeout=PATIENCE_S, metadata=sent)
        except grpc.RpcError as error:
            return error.code().name, b""
        return "OK", answer


def test_calls_are_stored_as_they_came_and_refused_as_the_table_says(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {kind: request(kind, random.Random(2)) for kind in OtlpKind}
    with running(
        place,
        keep_headers=["x-tenant"],
        limits={"max_body_size": 100_000, "max_expanded_size": 100_000},
    ) as server:
        for kind, body in bodies.items():
            assert export(server.target, body, kind, x_tenant="t-1") == ("OK", b"")
        assert export(server.target, b"") == ("OK", b"")
        assert export(server.target, TRACES[:-1])[0] == "INVALID_ARGUMENT"
        assert export(server.target, bytes(100_001))[0] == "RESOURCE_EXHAUSTED"
        assert place.stored() == list(bodies.values())
        assert place.slots() == [kind.slot for kind in OtlpKind]
        assert place.stored_headers() == [{"x-tenant": "t-1"}] * 3
        assert [letter.payload for letter in place.letters()] == [TRACES[:-1]]
        counted = server.receiver.statistics()
        assert counted.items["logs"] == ItemCounts(
            codec.check(OtlpKind.LOGS, bodies[OtlpKind.LOGS])
        )
        assert counted.rejected == {"invalid": 1, "too_large": 1}

        def full(*_: object, **__: object) -> bool:
            raise Overloaded("the disk is slow", hint="wait", retry_after_s=7)

        monkeypatch.setattr(server.receiver.intake, "offer", full)
        assert export(server.target, TRACES)[0] == "UNAVAILABLE"


def test_tokens_are_asked_for(place: Place) -> None:
    with running(place, tokens=[{"name": "shop", "token": Secret("x" * 20)}]) as server:
        assert export(server.target, TRACES)[0] == "UNAUTHENTICATED"
        assert export(server.target, TRACES, authorization=f"Bearer {'x' * 20}")[0] == "OK"
        assert place.stored_headers() == [{"client": "shop"}]


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ({}, ["listening_addr", "http_listening_addr"]),
        ({"listening_addr": "127.0.0.1:0"}, ["listening_addr"]),
        ({"http_listening_addr": "127.0.0.1:0"}, ["http_listening_addr"]),
    ],
)
def test_a_port_that_is_not_named_opens_only_if_neither_is(
    given: dict[str, Any], opened: list[str]
) -> None:
    assert list(Config(**given).listening) == opened


# ------------------------------------------------------------------------- the Python SDK


def exporters(server: RunningOtlp, transport: str, *, packs: bool) -> tuple[Any, Any, Any]:
    if transport == "grpc":
        options: dict[str, Any] = {
            "endpoint": server.target,
            "insecure": True,
            "timeout": PATIENCE_S,
        }
        if packs:
            options["compression"] = grpc.Compression.Gzip
        return GrpcSpans(**options), GrpcMetrics(**options), GrpcLogs(**options)
    url = server.receiver.addresses[1]
    packing = HttpCompression.Gzip if packs else HttpCompression.NoCompression
    return (
        HttpSpans(endpoint=f"{url}/v1/traces", compression=packing, timeout=PATIENCE_S),
        HttpMetrics(endpoint=f"{url}/v1/metrics", compression=packing, timeout=PATIENCE_S),
        HttpLogs(endpoint=f"{url}/v1/logs", compression=packing, timeout=PATIENCE_S),
    )


def send_one_of_each(spans: Any, metrics: Any, logs: Any) -> None:
    """Send a span, a metric and a log record as an application would."""
    resource = Resource.create({"service.name": "checkout"})
    tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    with tracing.get_tracer("tests").start_as_current_span("pay") as span:
        span.set_attribute("amount", 7)
    tracing.shutdown()
    reader = PeriodicExportingMetricReader(
        metrics, export_interval_millis=float("inf"), export_timeout_millis=PATIENCE_S * 1000
    )
    metering = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    metering.get_meter("tests").create_counter("payments").add(2)
    metering.force_flush(PATIENCE_S * 1000)
    metering.shutdown()
    logging_in = LoggerProvider(resource=resource, shutdown_on_exit=False)
    logging_in.add_log_record_processor(SimpleLogRecordProcessor(logs))
    logger = logging.getLogger("tests.checkout")
    handler = LoggingHandler(logger_provider=logging_in)
    logger.addHandler(handler)
    try:
        logger.warning("paid %d", 7)
    finally:
        logger.removeHandler(handler)
    logging_in.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("packs", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_python_sdk_sends_all_signals(place: Place, transport: str, packs: bool) -> None:
    with running(place) as server:
        send_one_of_each(*exporters(server, transport, packs=packs))
        items = server.receiver.statistics().items
    assert {name: counts.accepted for name, counts in items.items()} == {
        "traces": 1,
        "metrics": 1,
        "logs": 1,
    }
    texts = {
        slot: str(request_document(KIND_OF_SLOT[slot], body))
        for slot, body in zip(place.slots(), place.stored(), strict=True)
    }
    assert "'pay'" in texts["otlp_traces"]
    assert "'payments'" in texts["otlp_metrics"]
    assert "paid 7" in texts["otlp_logs"]
    assert all("'checkout'" in text for text in texts.values())
