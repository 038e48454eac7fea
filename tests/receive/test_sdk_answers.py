"""Which answers make unmodified SDKs send again, and which make them drop what they have.

The table that the answers of the OTLP receiver are chosen by, seen: first with a server that gives
each of its rows, then with what Holdfast itself answers.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc import exporter as grpc_exporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.gateway.javascript import JavaScriptSender, needs_javascript
from tests.patience import PATIENCE_S
from tests.receive.harness import Place
from tests.receive.test_otlp_grpc import RunningOtlp, running

from holdfast.errors import Overloaded
from holdfast.settings import Secret

Code = grpc.StatusCode
REPEATED = (
    Code.UNAVAILABLE,
    # The specification has clients repeat it only with a RetryInfo; this one always does.
    Code.RESOURCE_EXHAUSTED,
    Code.CANCELLED,
    Code.DEADLINE_EXCEEDED,
    Code.ABORTED,
    Code.OUT_OF_RANGE,
    Code.DATA_LOSS,
)
REPEATED_HTTP = (429, 502, 503, 504)
DROPPED_HTTP = (400, 401, 403, 404, 408, 413, 415, 500, 501)


class Outcome(NamedTuple):
    """What the SDK did: how often it sent, and whether it says that it has delivered."""

    attempts: int
    delivered: bool


SENT_AGAIN, DROPPED = Outcome(2, True), Outcome(1, False)


def one_span() -> ReadableSpan:
    kept = InMemorySpanExporter()
    tracing = TracerProvider(shutdown_on_exit=False)
    tracing.add_span_processor(SimpleSpanProcessor(kept))
    tracing.get_tracer("tests").start_span("pay").end()
    tracing.shutdown()
    (span,) = kept.get_finished_spans()
    return span


def delivered(exporter: GrpcSpans | HttpSpans) -> bool:
    """Let it export a span; return whether it succeeded."""
    try:
        return exporter.export([one_span()]) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


def outcomes(
    rows: Iterable[str],
    make: Callable[[str], GrpcSpans | HttpSpans],
    seen: Counter[str],
) -> dict[str, Outcome]:
    """Let an exporter of its own meet each row, all at once: an SDK pauses for a second."""
    names = list(rows)
    with futures.ThreadPoolExecutor(len(names)) as pool:
        ends = list(pool.map(lambda name: delivered(make(name)), names))
    return {name: Outcome(seen[name], end) for name, end in zip(names, ends, strict=True)}


class GrpcRows(grpc.GenericRpcHandler):
    """Answers the first call of a row with its code, and the next one well."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.take)

    def take(self, body: bytes, call: grpc.ServicerContext) -> bytes:
        metadata: Any = call.invocation_metadata()
        row = dict(metadata)["x-row"]
        with self._lock:
            self.seen[row] += 1
            first = self.seen[row] == 1
        if first:
            call.abort(getattr(Code, row), "not this time")
        return b""


def test_every_code_of_grpc_makes_the_sdk_repeat_or_drop() -> None:
    codes = [code for code in Code if code is not Code.OK]
    rows = GrpcRows()
    server = grpc.server(futures.ThreadPoolExecutor(len(codes)), [rows])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def exporter(row: str) -> GrpcSpans:
        return GrpcSpans(
            endpoint=f"127.0.0.1:{port}",
            insecure=True,
            timeout=PATIENCE_S,
            headers=(("x-row", row),),
        )

    try:
        found = outcomes((code.name for code in codes), exporter, rows.seen)
    finally:
        server.stop(None).wait()
    assert found == {code.name: SENT_AGAIN if code in REPEATED else DROPPED for code in codes}


class HttpRows:
    """Answers the first request to a path with the status in it, and the next one well."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        lock = threading.Lock()
        rows = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self._read_body()
                with lock:
                    rows.seen[self.path] += 1
                    first = rows.seen[self.path] == 1
                self.send_response(int(self.path.split("/")[1]) if first else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def _read_body(self) -> None:
                """JavaScript's SDK does not say how long it is."""
                if (length := self.headers["content-length"]) is not None:
                    self.rfile.read(int(length))
                    return
                while (size := int(self.rfile.readline(), 16)) > 0:
                    self.rfile.read(size + len(b"\r\n"))
                self.rfile.readline()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def http_rows() -> Iterator[HttpRows]:
    rows = HttpRows()
    yield rows
    rows.close()


def test_every_status_of_http_makes_the_sdk_repeat_or_drop(http_rows: HttpRows) -> None:
    found = outcomes(
        (f"/{status}" for status in (*REPEATED_HTTP, *DROPPED_HTTP)),
        lambda row: HttpSpans(endpoint=f"{http_rows.url}{row}", timeout=PATIENCE_S),
        http_rows.seen,
    )
    assert found == {
        **{f"/{status}": SENT_AGAIN for status in REPEATED_HTTP},
        **{f"/{status}": DROPPED for status in DROPPED_HTTP},
    }


@needs_javascript
@pytest.mark.slow
def test_every_status_of_http_makes_the_javascript_sdk_repeat_or_drop(http_rows: HttpRows) -> None:
    def outcome(status: int) -> set[Outcome]:
        """Return what became of each signal: the same, that is."""
        with JavaScriptSender(f"{http_rows.url}/{status}") as sender:
            return {
                Outcome(http_rows.seen[f"/{status}{one.kind.http_path}"], one.answered)
                for one in sender.send_one_of_each()
            }

    statuses = (*REPEATED_HTTP, *DROPPED_HTTP)
    with futures.ThreadPoolExecutor(4) as pool:
        found = dict(zip(statuses, pool.map(outcome, statuses), strict=True))
    assert found == {
        **{status: {SENT_AGAIN} for status in REPEATED_HTTP},
        **{status: {DROPPED} for status in DROPPED_HTTP},
    }


# ----------------------------------------------------------------------- what Holdfast says


def exporter_of(server: RunningOtlp, transport: str) -> GrpcSpans | HttpSpans:
    if transport == "grpc":
        return GrpcSpans(endpoint=server.target, insecure=True, timeout=PATIENCE_S)
    url = f"{server.receiver.addresses[1]}/v1/traces"
    return HttpSpans(endpoint=url, timeout=PATIENCE_S)


@pytest.mark.parametrize(("transport", "wait"), [("grpc", "0.05"), ("http", "1.00")])
def test_an_sdk_that_is_told_to_wait_waits_so_long_and_sends_again(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    transport: str,
    wait: str,
) -> None:
    with running(place) as server:
        intake = server.receiver.intake
        take = intake.take

        async def busy_once(*_: Any, **__: Any) -> int:
            monkeypatch.setattr(intake, "take", take)
            raise Overloaded("the disk is slow", hint="wait", retry_after_s=0.05)

        # As without room: the short way takes nothing, the long one says why.
        monkeypatch.setattr(intake, "offer", lambda *_: False)
        monkeypatch.setattr(intake, "take", busy_once)
        # The SDK says each warning once in twenty seconds: another test may have had it.
        monkeypatch.setattr(grpc_exporter.logger, "filters", [])
        with caplog.at_level(logging.WARNING):
            assert delivered(exporter_of(server, transport))
        assert len(place.stored()) == 1
    assert f"retrying in {wait}s" in caplog.text


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_an_sdk_without_a_token_does_not_knock_again(place: Place, transport: str) -> None:
    with running(place, tokens=[{"name": "shop", "token": Secret("x" * 20)}]) as server:
        assert not delivered(exporter_of(server, transport))
        assert server.receiver.statistics().rejected == {"unauthorized": 1}
        assert place.stored() == []
