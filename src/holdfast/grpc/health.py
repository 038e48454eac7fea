"""gRPC's health service: whether a server, or one of its services, takes calls.

Only `Check`. `Watch` is a stream; clients that ask for it take UNIMPLEMENTED for "healthy", as the
protocol of the service says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.grpc.server import ServerCall
from holdfast.grpc.status import CallFailed, StatusCode, fields_of

HEALTH_PATH = "/grpc.health.v1.Health/Check"
_SERVICE_FIELD = 1
_SERVING = b"\x08\x01"
_NOT_SERVING = b"\x08\x02"


class HealthMethod:
    """The method `Check`."""

    def __init__(self, services: Collection[str], is_serving: Callable[[], bool]) -> None:
        # The empty name is the server as a whole.
        self._services = {"", *services}
        self._is_serving = is_serving

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        try:
            name = dict(fields_of(body)).get(_SERVICE_FIELD, b"")
            service = name.decode() if isinstance(name, bytes) else ""
        except ValueError:
            raise CallFailed(
                StatusCode.INVALID_ARGUMENT, "this is not a HealthCheckRequest"
            ) from None
        if service not in self._services:
            raise CallFailed(StatusCode.NOT_FOUND, "there is no such service here")
        return _SERVING if self._is_serving() else _NOT_SERVING
