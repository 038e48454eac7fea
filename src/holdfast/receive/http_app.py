"""What every protocol over HTTP has in common, as an ASGI app: who may send what, and how much.

    path, method, token, rate, headers     refused before anything is read
    body                                   read and unpacked within bounds
    its endpoint                           checks, appends, answers: the protocol's own work
    answer                                 whatever happens; what is not taken is counted by reason

No framework stands between a connection and this: a request is one pass through `__call__`.

Nearly all requests are small, and nothing is wrong with them. An endpoint may take those in one
step (`FastEndpoint`): an `EndpointLane` makes the same checks in the same order, those of the
headers once for all requests that have the same, and hands over what passes all of them. What does
not pass comes again through `__call__`, which says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

from holdfast import self_watch
from holdfast.errors import BundleTooLarge, NotAccepted
from holdfast.quiver import Receipt
from holdfast.receive.admission import Admission, TokenClient, Tokens
from holdfast.receive.body import BodyLimits, encodings_of, read_body
from holdfast.receive.fast_path import HELD_BYTES_MAX
from holdfast.receive.receiver import RareWarnings, ReceiverContext, ReceiverStatistics
from holdfast.receive.responses import (
    Disconnected,
    OnStored,
    Reason,
    Receive,
    Refused,
    Respond,
    Response,
    Scope,
    Send,
    content_length,
    send_response,
    wrong_method,
)

_REFUSED_FROM = 400


@dataclass
class RequestCounts:
    """What became of requests: the app and its endpoints count together."""

    requests: int = 0
    accepted_events: int = 0
    # Events of which processors before the buffer left nothing.
    dropped_before_buffer: int = 0
    accepted_bytes: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class HttpRequest:
    """What the headers of one request say."""

    client: TokenClient
    headers: Sequence[tuple[bytes, bytes]]
    content_type: bytes
    encodings: list[bytes]
    announced_bytes: int
    # How many events are lost to the client if it is refused now.
    events: int = 1


class Endpoint(Protocol):
    """What is posted to a path, and what is done with it."""

    @property
    def is_counted(self) -> bool:
        """Whether what it refuses is counted: the sender of a dry run loses nothing."""

    def check_type(self, content_type: bytes) -> None:
        """Raise `Refused` if such a body cannot be read."""

    async def handle(self, request: HttpRequest, body: bytes) -> Response:
        """Answer a request whose body was read. Raises `Refused`."""


@runtime_checkable
class FastEndpoint(Endpoint, Protocol):
    """One that takes ordinary requests without waiting."""

    def offer(self, request: HttpRequest, body: bytes, on_stored: OnStored) -> bool:
        """Take a request and call `on_stored` later, once; or return False, nothing done."""

    def accepted(self, receipt: Receipt, size_bytes: int) -> Response:
        """Count and answer what was stored."""


# Makes the answer to what is refused, given the content type of the request.
Refuse = Callable[[Refused, bytes], Response]


def refuse_with_json(refused: Refused, _: bytes) -> Response:
    """Return the answer of the gateway's own protocol."""
    return refused.answer


class HttpApp:
    """The endpoints of one receiver. Usable without a socket."""

    def __init__(
        self,
        context: ReceiverContext,
        counts: RequestCounts,
        *,
        endpoints: Mapping[str, Endpoint],
        pages: Mapping[str, Response],
        limits: BodyLimits,
        tokens: Tokens,
        not_found_hint: str,
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self._name = context.name
        self._counts = counts
        # No redirect from the same path with a slash: it would turn a POST into a GET.
        slashed = {path + "/": endpoint for path, endpoint in endpoints.items()}
        self._endpoints = {**endpoints, **slashed}
        self._pages = pages
        # The request targets of `fast_lane`.
        self.fast_targets: Mapping[bytes, FastEndpoint] = {
            path.encode(): endpoint
            for path, endpoint in self._endpoints.items()
            if isinstance(endpoint, FastEndpoint)
        }
        # As large a body as its endpoints take at once.
        self.held_bytes_max = HELD_BYTES_MAX
        self._limits = limits
        # Whatever else the receiver listens to shares these bounds.
        self.admission = Admission(limits.max_requests, limits.max_in_flight_bytes)
        self._tokens = tokens
        self._not_found_hint = not_found_hint
        self._on_close = on_close
        # A protocol that has refusals of its own puts them here.
        self.refuse: Refuse = refuse_with_json
        self._stopping = False
        self._warnings = RareWarnings(context.name, context.seam.clock)

    def refuse_from_now_on(self) -> None:
        """Answer every new request with 503; those under way are finished."""
        self._stopping = True

    async def close(self) -> None:
        """Let go of what the endpoints hold."""
        await self._on_close()

    def use_tokens(self, tokens: Tokens) -> None:
        """Ask for these from now on; requests under way are not asked again."""
        self._tokens = tokens

    def statistics(self) -> ReceiverStatistics:
        """Return a picture of this moment; connections are the server's."""
        counts = self._counts
        return ReceiverStatistics(
            received=counts.accepted_events
            + counts.rejected.total()
            + counts.dropped_before_buffer,
            accepted=counts.accepted_events,
            rejected={str(reason): count for reason, count in counts.rejected.items() if count},
            received_bytes=self.admission.received_bytes,
            accepted_bytes=counts.accepted_bytes,
            requests=counts.requests,
            in_flight_requests=self.admission.in_flight_requests,
            in_flight_bytes=self.admission.in_flight_bytes,
            connections=0,
            dropped_before_buffer=counts.dropped_before_buffer,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _refuse_other(scope, receive, send)
            return
        self._counts.requests += 1
        began_ns = self_watch.begin()
        try:
            answer = await self._answer(scope, receive)
        except Disconnected:
            return
        if began_ns:
            self._tell_of(began_ns, answer.status)
        await send_response(send, answer)

    def _tell_of(self, began_ns: int, status: int) -> None:
        told: dict[str, str | int] = {"receiver": self._name}
        told["http.response.status_code"] = status
        failure = "" if status < _REFUSED_FROM else f"answered {status}"
        self_watch.end(self_watch.OwnSpan("receive", True, began_ns, told, failure))

    # ------------------------------------------------------------- one request

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """Return the answer to a request, whatever happens."""
        try:
            return await self._respond_to(scope, receive)
        except Refused as refused:
            return self.refuse(refused, _content_type(scope["headers"]))

    async def _respond_to(self, scope: Scope, receive: Receive) -> Response:
        """Return the answer to a request that is taken; raises `Refused`."""
        method: str = scope["method"]
        path: str = scope["path"]
        if path not in self._endpoints:
            path = _tidy(path)
        if path in self._pages:
            if method not in ("GET", "HEAD"):
                raise wrong_method(b"GET, HEAD")
            return self._pages[path]
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            if method == "POST":
                self._counts.rejected[Reason.NOT_FOUND] += 1
            raise Refused(Reason.NOT_FOUND, "nothing is here", self._not_found_hint)
        if method != "POST":
            raise wrong_method(b"POST")
        counted = self._counts.rejected if endpoint.is_counted else Counter[str]()
        request: HttpRequest | None = None
        try:
            request = self._examine(scope["headers"], endpoint)
            if request.client.bucket is not None:
                request.client.bucket.hold_to_rate()
            return await self._handle(endpoint, request, receive)
        except Refused as refused:
            counted[refused.reason] += request.events if request else 1
            raise
        except Disconnected:
            counted[Reason.DISCONNECTED] += 1
            raise
        except Exception as error:
            counted[Reason.UNAVAILABLE] += request.events if request else 1
            raise self._unavailable(error) from error

    def _examine(self, headers: Sequence[tuple[bytes, bytes]], endpoint: Endpoint) -> HttpRequest:
        """Read the headers, and refuse what can be refused by them."""
        if self._stopping:
            raise Refused(
                Reason.STOPPING,
                "the gateway is stopping",
                "send it again",
                headers=((b"connection", b"close"),),
            )
        # One walk for all of them: this is done for every request.
        authorization = content_type = content_encoding = b""
        announced_bytes = 0
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-length":
                announced_bytes = content_length(value)
            elif name == b"content-encoding":
                content_encoding = b"%s,%s" % (content_encoding, value)
            elif name == b"authorization":
                authorization = value
        client = self._tokens.client(authorization)
        endpoint.check_type(content_type)
        encodings = encodings_of(content_encoding) if content_encoding else []
        return HttpRequest(client, headers, content_type, encodings, announced_bytes)

    async def _handle(self, endpoint: Endpoint, request: HttpRequest, receive: Receive) -> Response:
        """Hold what the request needs of the bounds until it is answered, whatever happens."""
        admitted = self.admission.enter(min(request.announced_bytes, self._limits.max_body_bytes))
        try:
            # No name for the body here, nor in any call below once it is stored: with one, it would
            # stay in memory beside the bundle that was made of it, until that is on disk.
            return await endpoint.handle(
                request,
                await read_body(
                    receive, request.announced_bytes, request.encodings, self._limits, admitted
                ),
            )
        except BundleTooLarge as error:
            raise Refused(Reason.TOO_LARGE, error.message, error.hint) from error
        finally:
            admitted.leave()

    def _unavailable(self, error: BaseException) -> Refused:
        """Return the refusal of a request that the quiver did not take, or that we failed at."""
        if isinstance(error, NotAccepted):
            self._warnings.warn(f"events are not accepted: {error.message}", error)
            return Refused(
                Reason.UNAVAILABLE, error.message, error.hint, retry_after_s=error.retry_after_s
            )
        # A fault of ours. The event may be fine, and its sender keeps it.
        self._warnings.warn("BUG: a request failed", error, with_traceback=True)
        return Refused(
            Reason.UNAVAILABLE,
            "the gateway failed to handle this request",
            "send it again; the gateway's log says what happened",
        )

    # ---------------------------------------------------------- in one step

    def fast_lane(
        self, target: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> EndpointLane | None:
        """Return where requests with these headers are handed over; None: they are special."""
        endpoint = self.fast_targets[target]
        # The length is what they differ in.
        alike = [one for one in headers if one[0] != b"content-length"]
        try:
            request = self._examine(alike, endpoint)
        except Refused:
            return None
        # A rate is charged once, by the path that answers.
        if request.encodings or request.client.bucket is not None:
            return None
        return EndpointLane(self, endpoint, request, self._tokens)


class EndpointLane:
    """Takes requests that nothing is wrong with, and whose headers were looked at before."""

    def __init__(
        self, app: HttpApp, endpoint: FastEndpoint, request: HttpRequest, tokens: Tokens
    ) -> None:
        self._app = app
        self._endpoint = endpoint
        self._request = request
        self._tokens = tokens

    def accept(self, body: bytes, on_stored: OnStored) -> Respond | None:
        """Take a whole request, and call `on_stored` later, once; None: nothing was done."""
        app = self._app
        began_ns = self_watch.begin()
        size_bytes = len(body)
        # What the headers were examined by may have changed since.
        if app._stopping or app._tokens is not self._tokens:
            return None
        if size_bytes > app._limits.max_body_bytes or not app.admission.has_room(size_bytes):
            return None
        try:
            if not self._endpoint.offer(self._request, body, on_stored):
                return None
        except Exception:
            # A fault of ours, or a quiver that is gone: the long way meets it again, and tells.
            return None
        app.admission.take(size_bytes)
        app._counts.requests += 1
        return partial(self._respond, size_bytes, began_ns)

    def _respond(
        self, size_bytes: int, began_ns: int, outcome: Receipt | BaseException
    ) -> Response:
        """Count and answer a request, once its append has an outcome.

        Called also if the client is gone: what was stored is accepted, whoever hears of it.
        """
        app = self._app
        app.admission.give_back(size_bytes)
        if isinstance(outcome, Receipt):
            answer = self._endpoint.accepted(outcome, size_bytes)
        else:
            app._counts.rejected[Reason.UNAVAILABLE] += 1
            answer = app.refuse(app._unavailable(outcome), self._request.content_type)
        if began_ns:
            app._tell_of(began_ns, answer.status)
        return answer


def _content_type(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return next((value for name, value in headers if name == b"content-type"), b"")


def _tidy(path: str) -> str:
    """Return a path without the slashes too many with which clients put it together."""
    if "//" not in path:
        return path
    return "/" + "/".join(part for part in path.split("/") if part)


async def _refuse_other(scope: Scope, receive: Receive, send: Send) -> None:
    """Let a server start and stop around the app; there are no WebSockets."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
