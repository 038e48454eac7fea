"""Telemetry through real processes: what was answered arrives, also where the middle is killed.

Senders are `grpcio`, and the unmodified SDKs for Python and for JavaScript (`make setup-js`). The
one in the middle sends to a second Holdfast and to a plain OTLP server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Counter as OtelCounter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.gateway.javascript import JavaScriptSender, needs_javascript
from tests.gateway.telemetry import (
    Killer,
    OtlpSink,
    Sending,
    TelemetryGateway,
    check_arrived,
    otlp_exporter,
    otlp_request,
)
from tests.patience import PATIENCE_S

from holdfast.signals.otlp.kinds import OtlpKind

KILLS = 3


class Chain(NamedTuple):
    """A gateway that is killed, what it sends to, and what arrived there."""

    middle: TelemetryGateway
    # Behind the second gateway, and beside it.
    sinks: tuple[OtlpSink, OtlpSink]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with ExitStack() as running:
        behind, beside = OtlpSink(), OtlpSink()
        for sink in (behind, beside):
            running.callback(sink.stop)
        second = TelemetryGateway(tmp_path / "second", {"last": otlp_exporter(behind.port)})
        plain = otlp_exporter(beside.port)
        # What waited over a restart goes backwards to this one: each request once all the same.
        plain["delivery"]["after_outage"] = "newest_first"
        exporters = {
            "second": otlp_exporter(second.grpc_port, compression="zstd"),
            "plain": plain,
        }
        middle = TelemetryGateway(tmp_path / "middle", exporters)
        for gateway in (second, middle):
            running.callback(gateway.kill)
            gateway.start()
        yield Chain(middle, (behind, beside))


def send_while_killed(chain: Chain, send_one_of_each: Callable[[], list[Sending]]) -> None:
    """Send until the gateway was killed so often and something was answered after that."""
    sent: list[Sending] = []
    killer = Killer(chain.middle, sent, KILLS)
    killer.start()
    while killer.is_alive():
        sent += send_one_of_each()
    killer.join()
    sent += send_one_of_each()
    for sink in chain.sinks:
        check_arrived(sink.arrivals, sent, KILLS, chain.middle.log)
    chain.middle.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_answered_arrives_though_the_middle_is_killed(chain: Chain) -> None:
    numbers = itertools.count(1)
    with grpc.insecure_channel(f"127.0.0.1:{chain.middle.grpc_port}") as channel:

        def send(kind: OtlpKind) -> Sending:
            ids = tuple(f"{next(numbers):016x}" for _ in range(5))
            export: Any = channel.unary_unary(kind.grpc_path)
            while True:
                try:
                    export(otlp_request(kind, ids), timeout=PATIENCE_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    # Anything else would make an SDK drop what it has.
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                else:
                    return Sending(kind, ids, answered=True)

        send_while_killed(chain, lambda: [send(kind) for kind in OtlpKind])


# ------------------------------------------------------------------------- the Python SDK


class Noting:
    """An exporter of the SDK, and what it said of each export; all else is its own."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.results: list[bool] = []

    def export(self, *given: Any, **options: Any) -> Any:
        result = self._exporter.export(*given, **options)
        self.results.append(result.name == "SUCCESS")
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)


def python_exporters(gateway: TelemetryGateway, transport: str) -> tuple[Any, Any, Any]:
    delta: dict[type, AggregationTemporality] = {OtelCounter: AggregationTemporality.DELTA}
    common: dict[str, Any] = {"timeout": PATIENCE_S}
    if transport == "grpc":
        common |= {"endpoint": f"127.0.0.1:{gateway.grpc_port}", "insecure": True}
        common["compression"] = grpc.Compression.Gzip
        metrics = GrpcMetrics(**common, preferred_temporality=delta)
        return GrpcSpans(**common), metrics, GrpcLogs(**common)
    url = f"http://127.0.0.1:{gateway.http_port}/v1"
    common["compression"] = HttpCompression.Gzip
    return (
        HttpSpans(**common, endpoint=f"{url}/traces"),
        HttpMetrics(**common, endpoint=f"{url}/metrics", preferred_temporality=delta),
        HttpLogs(**common, endpoint=f"{url}/logs"),
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_what_the_python_sdk_sends_arrives_though_the_middle_is_killed(
    chain: Chain, transport: str
) -> None:
    spans, metrics, logs = map(Noting, python_exporters(chain.middle, transport))
    numbers = itertools.count(1)
    tracing = TracerProvider(shutdown_on_exit=False)
    tracing.add_span_processor(SimpleSpanProcessor(spans))  # type: ignore[arg-type]
    reader = PeriodicExportingMetricReader(
        metrics,  # type: ignore[arg-type]
        export_interval_millis=float("inf"),
        export_timeout_millis=PATIENCE_S * 1000,
    )
    metering = MeterProvider([reader], shutdown_on_exit=False)
    counter = metering.get_meter("tests").create_counter("work")
    logging_in = LoggerProvider(shutdown_on_exit=False)
    logging_in.add_log_record_processor(SimpleLogRecordProcessor(logs))  # type: ignore[arg-type]
    logger = logging_in.get_logger("tests")

    def send_one_of_each() -> list[Sending]:
        number = str(next(numbers))
        span = tracing.get_tracer("tests").start_span("work")
        span.end()
        counter.add(1, {"id": number})
        metering.force_flush(PATIENCE_S * 1000)
        logger.emit(LogRecord(body="worked", attributes={"id": number}))
        span_id = f"{span.get_span_context().span_id:016x}"
        return [
            Sending(OtlpKind.TRACES, (span_id,), spans.results[-1]),
            Sending(OtlpKind.METRICS, (number,), metrics.results[-1]),
            Sending(OtlpKind.LOGS, (number,), logs.results[-1]),
        ]

    try:
        send_while_killed(chain, send_one_of_each)
    finally:
        for provider in (tracing, metering, logging_in):
            provider.shutdown()


# --------------------------------------------------------------------- the JavaScript SDK


@needs_javascript
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_javascript_sdk_sends_arrives_though_the_middle_is_killed(chain: Chain) -> None:
    with JavaScriptSender(f"http://127.0.0.1:{chain.middle.http_port}") as sender:
        send_while_killed(chain, sender.send_one_of_each)
