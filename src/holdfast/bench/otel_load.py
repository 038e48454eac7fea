"""The two ends of a collector that is measured: a client process, and a peer that only parses.

    python -m holdfast.bench.otel_load LOAD
    python -m holdfast.bench.otel_load PORT

The client has so many senders, each waiting for its answer, over gRPC (grpcio) or HTTP; it prints
what it measured as JSON. The peer is a plain grpcio servicer: it parses every request, and forgets
it. What a gateway costs more than that is what durability, admission and counting cost.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent import futures
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_ATTRIBUTES = 8
_SERVER_THREADS = 8
_OK = 200

SendRequest = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class OtelLoad:
    """What the process has to send."""

    to: Literal["grpc", "http"]
    port: int
    seconds: float
    senders: int
    # In each request.
    spans: int

    def command(self) -> list[str]:
        """Return the command line that runs this load."""
        return [sys.executable, "-m", "holdfast.bench.otel_load", json.dumps(asdict(self))]


def peer_command(port: int) -> list[str]:
    """Return the command line of the peer."""
    return [sys.executable, "-m", "holdfast.bench.otel_load", str(port)]


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
            trace_id=number.to_bytes(16, "big"),
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


async def _run(load: OtelLoad) -> dict[str, float]:
    body = request_of(load.spans)
    send, close = await (_grpc(load.port) if load.to == "grpc" else _http(load.port))
    await send(body)  # connections are made outside of the measurement
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    ends_s = began_s + load.seconds
    sent = 0

    async def sender() -> None:
        nonlocal sent
        while time.perf_counter() < ends_s:
            await send(body)
            sent += 1

    await asyncio.gather(*(sender() for _ in range(load.senders)))
    measured = {
        "requests": sent,
        "wall_s": time.perf_counter() - began_s,
        "client_cpu_s": time.process_time() - began_cpu_s,
    }
    await close()
    return measured


async def _grpc(port: int) -> tuple[SendRequest, Callable[[], Awaitable[None]]]:
    import grpc.aio

    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    method: Any = channel.unary_unary(OtlpKind.TRACES.grpc_path)

    async def send(body: bytes) -> None:
        await method(body)

    async def close() -> None:
        await channel.close()

    return send, close


async def _http(port: int) -> tuple[SendRequest, Callable[[], Awaitable[None]]]:
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    url = f"http://127.0.0.1:{port}{OtlpKind.TRACES.http_path}"
    headers = {"Content-Type": "application/x-protobuf"}

    async def send(body: bytes) -> None:
        async with session.post(url, data=body, headers=headers) as response:
            assert response.status == _OK, f"BUG: answered {response.status}"
            await response.read()

    return send, session.close


def _serve(port: int) -> None:
    """Parse and forget."""
    import grpc

    class ForgettingServicer(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(self.take)

        def take(self, body: bytes, _: Any) -> bytes:
            REQUESTS[OtlpKind.TRACES].FromString(body)
            return b""

    server = grpc.server(futures.ThreadPoolExecutor(_SERVER_THREADS), [ForgettingServicer()])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        _serve(int(sys.argv[1]))
    else:
        found = asyncio.run(_run(OtelLoad(**json.loads(sys.argv[1]))))
        sys.stdout.write(json.dumps(found))
