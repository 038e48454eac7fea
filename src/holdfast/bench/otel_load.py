"""The two ends of a collector that is measured: a client process, and two backends that do little.

    python -m holdfast.bench.otel_load
    python -m holdfast.bench.otel_load PORT [FILE]

The client reads loads, one JSON object in each line, and answers each with a line of what it
measured. A load has so many senders, each waiting for its answer, over gRPC (grpcio) or HTTP. Every
request is another one: the trace of its first span is named by a number and by when it was sent.

A backend is a plain grpcio servicer that parses every request and forgets it. With a file it notes
of each what its name says, and when it came.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent import futures
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.bench.figures import percentile
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_ATTRIBUTES = 8
_SERVER_THREADS = 8
_OK = 200
_MARK = b"0123456789abcdef"
_NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

# The trace of a request's first span: its number, and when it was sent (ns).
TRACE = struct.Struct(">QQ")
# What a backend notes: the same, and when it came.
ARRIVAL = struct.Struct(">QQQ")
# What a client notes of a request that was answered.
NUMBER = struct.Struct(">Q")

SendRequest = Callable[[bytes], Awaitable[None]]
Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class OtelLoad:
    """What the process has to send."""

    to: Literal["grpc", "http"]
    port: int
    seconds: float
    senders: int
    # In each request.
    spans: int
    # None: each sends its next request when the last one was answered.
    rate_per_s: float | None = None
    # Where the numbers of requests are written that were answered. The load ends when its server
    # is gone.
    journal: str | None = None

    def line(self) -> str:
        """Return what the client is told."""
        return json.dumps(asdict(self)) + "\n"


def client_command() -> list[str]:
    """Return the command line of the client."""
    return [sys.executable, "-m", "holdfast.bench.otel_load"]


def backend_command(port: int, notes: str | None = None) -> list[str]:
    """Return the command line of a backend."""
    command = [*client_command(), str(port)]
    return command if notes is None else [*command, notes]


def request_of(spans: int) -> bytes:
    """Return a request with spans as a web service makes them, about 350 bytes each."""
    request: Any = REQUESTS[OtlpKind.TRACES]()
    resource = request.resource_spans.add()
    service = resource.resource.attributes.add(key="service.name")
    service.value.string_value = "checkout"
    scope = resource.scope_spans.add()
    began_ns = time.time_ns()
    for number in range(spans):
        span = scope.spans.add(
            trace_id=number.to_bytes(16, "big") if number else _MARK,
            span_id=number.to_bytes(8, "big"),
            name="GET /api/orders/{id}",
            start_time_unix_nano=began_ns,
            end_time_unix_nano=began_ns + number,
        )
        for index in range(_ATTRIBUTES):
            attribute = span.attributes.add(key=f"http.request.attribute_{index}")
            attribute.value.string_value = f"value-{number % 10}"
    body: bytes = request.SerializeToString()
    return body


class _Requests:
    """Makes requests that differ in their number."""

    def __init__(self, spans: int) -> None:
        self._before, found, self._behind = request_of(spans).partition(_MARK)
        assert found, "BUG: a request without its mark"
        self._next = 0

    def new(self) -> tuple[int, bytes]:
        number, self._next = self._next, self._next + 1
        mark = TRACE.pack(number, time.time_ns())
        return number, b"".join((self._before, mark, self._behind))


async def _run_all() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        measured = await _run(OtelLoad(**json.loads(line)))
        sys.stdout.write(json.dumps(measured) + "\n")
        sys.stdout.flush()


async def _run(load: OtelLoad) -> dict[str, float]:
    requests = _Requests(load.spans)
    send, close = await (_grpc(load.port) if load.to == "grpc" else _http(load.port))
    journal = None
    if load.journal is not None:
        journal = os.open(load.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    latencies_s: list[float] = []
    pause_s = load.senders / load.rate_per_s if load.rate_per_s else 0.0
    await send(requests.new()[1])  # connections are made outside of the measurement
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    ends_s = began_s + load.seconds

    async def sender(place: int) -> None:
        """Send one request after another; with a rate, the senders are spread over one pause."""
        next_s = began_s + pause_s * place / load.senders
        while (now_s := time.perf_counter()) < ends_s:
            if pause_s:
                await asyncio.sleep(max(0.0, next_s - now_s))
                next_s += pause_s
            number, body = requests.new()
            sent_s = time.perf_counter()
            try:
                await send(body)
            except Exception:
                if journal is None:
                    raise
                return
            latencies_s.append(time.perf_counter() - sent_s)
            if journal is not None:
                os.write(journal, NUMBER.pack(number))

    await asyncio.gather(*(sender(place) for place in range(load.senders)))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    await close()
    latencies_s.sort()
    return {
        "requests": len(latencies_s),
        "wall_s": wall_s,
        "client_cpu_s": cpu_s,
        "p50_ms": percentile(latencies_s, 50) * 1e3 if latencies_s else 0.0,
        "p99_ms": percentile(latencies_s, 99) * 1e3 if latencies_s else 0.0,
    }


async def _grpc(port: int) -> tuple[SendRequest, Close]:
    import grpc.aio

    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_NO_LIMIT)
    method: Any = channel.unary_unary(OtlpKind.TRACES.grpc_path)

    async def send(body: bytes) -> None:
        await method(body)

    async def close() -> None:
        await channel.close()

    return send, close


async def _http(port: int) -> tuple[SendRequest, Close]:
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    url = f"http://127.0.0.1:{port}{OtlpKind.TRACES.http_path}"
    headers = {"Content-Type": "application/x-protobuf"}

    async def send(body: bytes) -> None:
        async with session.post(url, data=body, headers=headers) as response:
            assert response.status == _OK, f"BUG: answered {response.status}"
            await response.read()

    return send, session.close


def _serve(port: int, path: str | None) -> None:
    """Parse, note if there is a place for it, and forget."""
    import grpc

    notes = None
    if path is not None:
        notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    class ForgettingServicer(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(self.take)

        def take(self, body: bytes, _: Any) -> bytes:
            request: Any = REQUESTS[OtlpKind.TRACES].FromString(body)
            if notes is not None:
                came_ns = time.time_ns()
                names = [one.scope_spans[0].spans[0].trace_id for one in request.resource_spans]
                os.write(notes, b"".join(ARRIVAL.pack(*TRACE.unpack(n), came_ns) for n in names))
            return b""

    threads = futures.ThreadPoolExecutor(_SERVER_THREADS)
    server = grpc.server(threads, [ForgettingServicer()], options=_NO_LIMIT)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)  # noqa: PLR2004
    else:
        asyncio.run(_run_all())
