"""The traces of the demo: OpenTelemetry's own SDK at one end, a plain OTLP server at the other.

    python -m holdfast.demo.telemetry client TARGET JOURNAL      gRPC, until SIGTERM
    python -m holdfast.demo.telemetry collector PORT JOURNAL     HTTP, until it is killed

One line per span: `A <span id>` when the SDK calls it exported, `R <span id>` when it has arrived.
What is not exported is tried again until it is, as the SDK's own processors would. Without the SDK
(it is not among Holdfast's dependencies) the client of Holdfast sends the same.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from holdfast.extras import missing_modules
from holdfast.quiver import Balance

RECEIVER, QUIVER, COLLECTOR = "traces", "spans", "collector"
SPANS_PER_REQUEST = 10
# Between two requests: the demo is about lineage as well, and the machine may be small.
PAUSE_S = 0.02
EXPORT_S = 10.0
# How long a gateway may be away before the demo gives up.
PATIENCE_S = 30.0

# Sends so many spans, and returns their ids when they are taken.
Export = Callable[[Sequence[bytes]], bool]


@dataclass(frozen=True)
class SpansReport:
    """What became of the spans."""

    client: str
    accepted: int
    delivered: int
    lost: int
    # In flight at a kill.
    repeated: int
    # In requests.
    account: Balance

    @property
    def ok(self) -> bool:
        """Whether everything accepted arrived, and the ledger agrees."""
        books = self.account.holds and self.account.pending.events == 0
        return books and self.lost == 0 and 0 < self.accepted <= self.delivered


def can_trace() -> bool:
    """Whether what OTLP needs is installed."""
    return not missing_modules("otel")


def nodes(port: int, collector_port: int) -> dict[str, Any]:
    """Return the part of the graph that the spans take; they have a quiver of their own."""
    url = f"http://127.0.0.1:{collector_port}"
    return {
        RECEIVER: {
            "kind": "receiver",
            "type": "otlp",
            "config": {"listening_addr": f"127.0.0.1:{port}"},
            "to": [QUIVER],
        },
        QUIVER: {"kind": "processor", "type": "quiver", "to": [COLLECTOR]},
        COLLECTOR: {
            "kind": "exporter",
            "type": "otlp",
            "config": {"url": url, "protocol": "http"},
            "delivery": {"retry_max": "500ms"},
        },
    }


# --------------------------------------------------------------------------- the client


def _sdk(target: str) -> Export:
    """Return what exports through the SDK; raises ImportError where it is not."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.trace import SpanContext

    exporter = OTLPSpanExporter(endpoint=target, insecure=True, timeout=int(EXPORT_S))
    resource = Resource({"service.name": "checkout"})

    def export(ids: Sequence[bytes]) -> bool:
        trace_id, now_ns = random.getrandbits(127) + 1, time.time_ns()
        spans = [
            ReadableSpan(
                name="pay",
                context=SpanContext(trace_id, int.from_bytes(one, "big"), is_remote=False),
                resource=resource,
                start_time=now_ns - 1_000_000,
                end_time=now_ns,
            )
            for one in ids
        ]
        return exporter.export(spans) is SpanExportResult.SUCCESS

    return export


def _own(target: str) -> Export:
    """Return what exports through Holdfast's own client."""
    from holdfast.grpc.client import GrpcClient, GrpcTarget
    from holdfast.grpc.status import CallFailed
    from holdfast.seam.clock import RealClock
    from holdfast.signals.otlp.kinds import OtlpKind
    from holdfast.signals.otlp.messages import REQUESTS

    host, _, port = target.rpartition(":")

    async def call(body: bytes) -> None:
        where = GrpcTarget(host, int(port), None, EXPORT_S, 65536, "holdfast-demo")
        client = GrpcClient(where, RealClock())
        try:
            await client.call(OtlpKind.TRACES.grpc_path, body, timeout_s=EXPORT_S)
        finally:
            await client.close()

    def export(ids: Sequence[bytes]) -> bool:
        now_ns, trace_id = time.time_ns(), random.randbytes(16)
        spans = [
            {"name": "pay", "trace_id": trace_id, "span_id": one, "end_time_unix_nano": now_ns}
            for one in ids
        ]
        body = REQUESTS[OtlpKind.TRACES](resource_spans=[{"scope_spans": [{"spans": spans}]}])
        try:
            asyncio.run(call(body.SerializeToString()))
        except (CallFailed, OSError):
            return False
        return True

    return export


def send_spans(target: str, journal: str) -> None:
    """Export spans until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    try:
        export, name = _sdk(target), "opentelemetry-sdk"
    except ImportError:
        export, name = _own(target), "holdfast"
    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.write(f"{name}\n")
    sys.stdout.flush()
    parent = os.getppid()
    while not stopping and os.getppid() == parent:
        ids = [random.randbytes(8) for _ in range(SPANS_PER_REQUEST)]
        deadline_s = time.monotonic() + PATIENCE_S
        while not export(ids):
            if time.monotonic() > deadline_s:
                raise TimeoutError("the gateway takes no spans")
            time.sleep(PAUSE_S)
        os.write(fd, b"".join(b"A %b\n" % one.hex().encode() for one in ids))
        time.sleep(PAUSE_S)


# ------------------------------------------------------------------------ the collector


def collect(port: int, journal: str) -> None:
    """Take requests, and write down their spans before they are answered."""
    from holdfast.signals.otlp.codec import item_lists
    from holdfast.signals.otlp.kinds import OtlpKind
    from holdfast.signals.otlp.messages import REQUESTS

    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    class CollectorHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = REQUESTS[OtlpKind.TRACES].FromString(body)
            spans = [span for items in item_lists(OtlpKind.TRACES, request) for span in items]
            os.write(fd, b"".join(b"R %b\n" % span.span_id.hex().encode() for span in spans))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    server = HTTPServer(("127.0.0.1", port), CollectorHandler)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "client":
        send_spans(sys.argv[2], sys.argv[3])
    else:
        collect(int(sys.argv[2]), sys.argv[3])
