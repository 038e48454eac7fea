"""Receives OTLP and forwards it, without a quiver: what persistence is measured against.

    python -m holdfast.bench.otel_pass PORT BACKEND_PORT

The same transport on both sides as a gateway has, the same check, the same admission. What is
missing is what persistence costs: nothing is stored, and a sender waits for the backend.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from holdfast.grpc.calls import ServerCall
from holdfast.grpc.client import GrpcClient, GrpcTarget
from holdfast.grpc.engine import HeaderList
from holdfast.grpc.messages import MessageLimits
from holdfast.grpc.server import ServerConnections
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.receive.admission import Admission, Admitted
from holdfast.receive.otlp import OtlpLimits
from holdfast.receive.otlp_checks import check_here
from holdfast.seam import Seam
from holdfast.signals.otlp.kinds import OtlpKind

_TIMEOUT_S = 60.0


class _OpenGate:
    """Admits as a receiver without tokens does."""

    def __init__(self, limits: OtlpLimits) -> None:
        self._admission = Admission(limits.max_requests, limits.max_in_flight_bytes)

    def enter(self, path: bytes, headers: HeaderList) -> Admitted:
        return self._admission.enter(0)

    def failure(self, error: BaseException) -> CallFailed:
        return CallFailed(StatusCode.UNAVAILABLE, str(error), retry_after_s=1.0)


class _Forward:
    """Takes the requests of one signal."""

    def __init__(self, kind: OtlpKind, client: GrpcClient) -> None:
        self._kind = kind
        self._client = client

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        check_here(self._kind, body, is_json=False)
        return await self._client.call(self._kind.grpc_path, body, timeout_s=_TIMEOUT_S)


async def serve(port: int, backend_port: int) -> None:
    """Serve until killed."""
    seam, limits = Seam(), OtlpLimits()
    target = GrpcTarget("127.0.0.1", backend_port, None, _TIMEOUT_S, limits.max_body_bytes, "bench")
    client = GrpcClient(target, seam.clock)
    connections = ServerConnections(
        {kind.grpc_path: _Forward(kind, client) for kind in OtlpKind},
        _OpenGate(limits),
        GrpcSettings(),
        MessageLimits(
            limits.max_body_bytes,
            limits.max_expanded_bytes,
            limits.body_timeout_s,
            limits.min_body_bytes_per_s,
        ),
        seam,
    )
    server = await asyncio.get_running_loop().create_server(
        connections.connection, "127.0.0.1", port
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
