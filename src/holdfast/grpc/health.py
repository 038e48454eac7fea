"""gRPC's health service: whether a server, or one of its services, takes calls."""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.grpc.calls import ServerCall, ServerStream
from holdfast.grpc.status import CallFailed, StatusCode, fields_of

HEALTH_SERVICE = "/grpc.health.v1.Health/"
CHECK_PATH = f"{HEALTH_SERVICE}Check"
WATCH_PATH = f"{HEALTH_SERVICE}Watch"
_SERVICE_FIELD = 1
_SERVING = b"\x08\x01"
_NOT_SERVING = b"\x08\x02"
_SERVICE_UNKNOWN = b"\x08\x03"


class _HealthServices:
    """The services of a server, and whether they take calls."""

    def __init__(self, services: Collection[str], is_serving: Callable[[], bool]) -> None:
        # The empty name is the server as a whole.
        self._services = {"", *services}
        self._is_serving = is_serving

    def _status(self, body: bytes) -> bytes:
        try:
            name = dict(fields_of(body)).get(_SERVICE_FIELD, b"")
            service = name.decode() if isinstance(name, bytes) else ""
        except ValueError:
            raise CallFailed(
                StatusCode.INVALID_ARGUMENT, "this is not a HealthCheckRequest"
            ) from None
        if service not in self._services:
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_serving() else _NOT_SERVING


class HealthCheck(_HealthServices):
    """The method `Check`."""

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        status = self._status(body)
        if status == _SERVICE_UNKNOWN:
            raise CallFailed(StatusCode.NOT_FOUND, "there is no such service here")
        return status


class HealthWatch(_HealthServices):
    """The method `Watch`: the status now, and when the server leaves.

    A connection that ends by its age is no change: the stream ends, and whoever watches asks again.
    """

    async def converse(self, stream: ServerStream) -> None:
        body = await stream.receive()
        if body is None:
            raise CallFailed(StatusCode.INVALID_ARGUMENT, "the call ended before its message did")
        told = self._status(body)
        await stream.send(told)
        await stream.is_leaving.wait()
        status = self._status(body)
        if status != told:
            await stream.send(status)
