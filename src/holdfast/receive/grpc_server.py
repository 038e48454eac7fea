"""A gRPC server of a receiver: its methods on a port, behind the same gate as HTTP requests.

What a refusal over HTTP says by its status is said here by a code (`CODE_OF`). Whatever may go well
later is UNAVAILABLE with the time to wait, as it is 503 there.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import BundleTooLarge, NotAccepted
from holdfast.grpc.calls import Method, ServerCall, StreamMethod
from holdfast.grpc.engine import HeaderList
from holdfast.grpc.health import (
    CHECK_PATH,
    HEALTH_SERVICE,
    WATCH_PATH,
    HealthCheck,
    HealthWatch,
)
from holdfast.grpc.messages import MessageLimits
from holdfast.grpc.server import ServerConnections
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.receive.admission import ANYBODY, Admission, Admitted, TokenClient, Tokens
from holdfast.receive.body import BodyLimits
from holdfast.receive.http_app import RequestCounts
from holdfast.receive.listening import CUT_GRACE_S, ListenerTls, ListeningPort, until_empty
from holdfast.receive.receiver import RareWarnings, ReceiverContext
from holdfast.receive.responses import RETRY_AFTER_MAX_S, RETRY_AFTER_S, Reason, Refused

CODE_OF = {
    Reason.INVALID: StatusCode.INVALID_ARGUMENT,
    Reason.MALFORMED: StatusCode.INVALID_ARGUMENT,
    Reason.UNAUTHORIZED: StatusCode.UNAUTHENTICATED,
    Reason.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    Reason.NOT_FOUND: StatusCode.UNIMPLEMENTED,
    Reason.TOO_LARGE: StatusCode.RESOURCE_EXHAUSTED,
    Reason.ENCODING: StatusCode.UNIMPLEMENTED,
    Reason.BUSY: StatusCode.UNAVAILABLE,
    Reason.TIMEOUT: StatusCode.UNAVAILABLE,
    Reason.RATE: StatusCode.UNAVAILABLE,
    Reason.UNAVAILABLE: StatusCode.UNAVAILABLE,
    Reason.STOPPING: StatusCode.UNAVAILABLE,
}
# What a call is counted as that failed before the gate, or in its frames.
_REASON_OF = {
    StatusCode.INVALID_ARGUMENT: Reason.MALFORMED,
    StatusCode.UNIMPLEMENTED: Reason.NOT_FOUND,
    StatusCode.RESOURCE_EXHAUSTED: Reason.TOO_LARGE,
    StatusCode.DEADLINE_EXCEEDED: Reason.TIMEOUT,
}
# Calls of the health service at once, and what their messages hold.
HEALTH_CALLS_MAX = 1024
HEALTH_BYTES_MAX = 1024 * 1024
_HEALTH = HEALTH_SERVICE.encode()
_ALPN = ("h2",)


class GrpcPlace:
    """What one call holds of the bounds, and who sent it."""

    __slots__ = ("_admitted", "client", "give_back", "hold", "leave", "received")

    def __init__(self, admitted: Admitted, client: TokenClient) -> None:
        self._admitted = admitted
        self.client = client
        self.received = admitted.received
        self.hold = admitted.hold
        self.give_back = admitted.give_back
        self.leave = admitted.leave


def client_of(call: ServerCall) -> TokenClient:
    """Return who sent a call that is under way."""
    assert isinstance(call.place, GrpcPlace), "BUG: a call that is over, or of another gate"
    return call.place.client


class ReceiverGate:
    """Tokens, rates and bounds of a receiver, for its calls."""

    def __init__(
        self,
        context: ReceiverContext,
        counts: RequestCounts,
        tokens: Tokens,
        admission: Admission,
    ) -> None:
        # May be replaced; calls under way are not asked again.
        self.tokens = tokens
        self.is_stopping = False
        self._counts = counts
        self._admission = admission
        self._watchers = Admission(HEALTH_CALLS_MAX, HEALTH_BYTES_MAX)
        self._warnings = RareWarnings(context.name, context.seam.clock)

    def enter(self, path: bytes, headers: HeaderList) -> GrpcPlace:
        """Return the place of a call, or raise `Refused`."""
        if path.startswith(_HEALTH):
            # Those who ask have no token, and may ask for as long as they like: they take no place
            # of others.
            return GrpcPlace(self._watchers.enter(0), ANYBODY)
        self._counts.requests += 1
        if self.is_stopping:
            raise Refused(Reason.STOPPING, "the gateway is stopping", "send it again")
        authorization = next((value for name, value in headers if name == b"authorization"), b"")
        client = self.tokens.client(authorization)
        if client.bucket is not None:
            client.bucket.hold_to_rate()
        return GrpcPlace(self._admission.enter(0), client)

    def failure(self, error: BaseException) -> CallFailed:
        """Count a call that failed, and return what its client is told."""
        if isinstance(error, CallFailed):
            self._counts.rejected[_REASON_OF.get(error.code, Reason.UNAVAILABLE)] += 1
            return error
        if isinstance(error, Refused):
            self._counts.rejected[error.reason] += 1
            return _told(error.reason, f"{error}: {error.hint}", error.retry_after_s)
        if isinstance(error, BundleTooLarge):
            self._counts.rejected[Reason.TOO_LARGE] += 1
            return _told(Reason.TOO_LARGE, str(error), None)
        self._counts.rejected[Reason.UNAVAILABLE] += 1
        if isinstance(error, NotAccepted):
            self._warnings.warn(f"events are not accepted: {error.message}", error)
            return _told(Reason.UNAVAILABLE, str(error), error.retry_after_s)
        # A fault of ours. What was sent may be fine, and its sender keeps it.
        self._warnings.warn("BUG: a call failed", error, with_traceback=True)
        return _told(Reason.UNAVAILABLE, "the gateway failed to handle this call", None)


def _told(reason: Reason, message: str, retry_after_s: float | None) -> CallFailed:
    code = CODE_OF[reason]
    if code is StatusCode.UNAVAILABLE:
        wait_s = RETRY_AFTER_S if retry_after_s is None else retry_after_s
        return CallFailed(code, message, retry_after_s=min(wait_s, RETRY_AFTER_MAX_S))
    return CallFailed(code, message)


class GrpcServer:
    """Serves the methods of one receiver on one address."""

    def __init__(
        self,
        context: ReceiverContext,
        gate: ReceiverGate,
        methods: Mapping[str, Method | StreamMethod],
        listen: str,
        *,
        limits: BodyLimits,
        tls: ListenerTls | None = None,
        settings: GrpcSettings | None = None,
    ) -> None:
        """Do not listen yet."""
        self._settings = settings or GrpcSettings()
        self._base_dir = context.base_dir
        self._port = ListeningPort(
            listen, tls, backlog=self._settings.backlog, reuse_port=context.reuse_port
        )
        self._gate = gate
        services = {path.split("/")[1] for path in methods}
        health = (services, lambda: not self._gate.is_stopping)
        self._connections = ServerConnections(
            {**methods, CHECK_PATH: HealthCheck(*health), WATCH_PATH: HealthWatch(*health)},
            self._gate,
            self._settings,
            MessageLimits(
                limits.max_body_bytes,
                limits.max_expanded_bytes,
                limits.body_timeout_s,
                limits.min_body_bytes_per_s,
            ),
            context.seam,
        )

    @property
    def addresses(self) -> list[str]:
        """Where it is reached, such as `grpc://127.0.0.1:4317`; empty unless it listens."""
        return self._port.addresses

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._connections.open)

    async def start(self) -> None:
        """Listen on all addresses of the host."""
        settings = self._settings
        await self._port.open(
            self._connections.connection,
            "grpc",
            self._base_dir,
            alpn=_ALPN,
            handshake_timeout_s=settings.header_timeout_s,
            sweep=self._connections.expire,
            shortest_timeout_s=min(
                settings.header_timeout_s,
                settings.idle_timeout_s,
                settings.max_age_s,
                settings.drain_timeout_s,
                settings.send_timeout_s,
                self._connections.limits.timeout_s,
            ),
        )

    async def stop(self, drain_s: float) -> None:
        """Take no new calls, finish those under way for at most `drain_s`, then cut the rest."""
        self._gate.is_stopping = True
        self._port.refuse_new()
        self._connections.leave()
        await until_empty(self._is_empty, drain_s)
        self._connections.cut()
        await until_empty(self._is_empty, CUT_GRACE_S)
        await self._port.close()

    def _is_empty(self) -> bool:
        return not (self._connections.open or self._connections.tasks)
