"""The answers over HTTP: what each refusal is called, its status, and what its sender can do.

Clients decide by the status whether they send an event again, so the choice is narrow. 503 with
`Retry-After` is what OpenLineage clients repeat: whatever may go well later is a 503. 204 breaks
the Java client, a redirect turns a POST into a GET, few repeat a 429: none of these is ever given.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:  # a child that checks requests has no quiver, and needs no memory for one
    from holdfast.quiver import Receipt

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
HttpHeaders = tuple[tuple[bytes, bytes], ...]

STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
JSON_TYPE = b"application/json"
# What a sender is asked to wait when nothing better is known, and at most.
RETRY_AFTER_S = 1.0
RETRY_AFTER_MAX_S = 60.0
# An announced length with more digits than this is too large whatever they are.
_LENGTH_DIGITS_MAX = 18


class Reason(StrEnum):
    """Why an event was not accepted: the label of a metric, and part of the answer."""

    INVALID = "invalid"
    MALFORMED = "malformed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD = "method"
    TOO_LARGE = "too_large"
    CONTENT_TYPE = "content_type"
    ENCODING = "encoding"
    HEADER_TOO_LARGE = "header_too_large"
    BUSY = "busy"
    TIMEOUT = "timeout"
    RATE = "rate"
    UNAVAILABLE = "unavailable"
    STOPPING = "stopping"
    DISCONNECTED = "disconnected"


# DISCONNECTED has none: there is nobody to answer. RATE is not 429 and TIMEOUT not 408, as the head
# says: a client that does not repeat it would lose the event.
STATUS_OF = {
    Reason.INVALID: 400,
    Reason.MALFORMED: 400,
    Reason.UNAUTHORIZED: 401,
    Reason.FORBIDDEN: 403,
    Reason.NOT_FOUND: 404,
    Reason.METHOD: 405,
    Reason.TOO_LARGE: 413,
    Reason.CONTENT_TYPE: 415,
    Reason.ENCODING: 415,
    Reason.HEADER_TOO_LARGE: 431,
    Reason.BUSY: 503,
    Reason.TIMEOUT: 503,
    Reason.RATE: 503,
    Reason.UNAVAILABLE: 503,
    Reason.STOPPING: 503,
}


class Response(NamedTuple):
    """One HTTP response, complete."""

    status: int
    body: bytes
    headers: HttpHeaders = ()
    content_type: bytes = JSON_TYPE


# Hears what became of an append; and makes the response to it.
OnStored = Callable[["Receipt | BaseException"], None]
Respond = Callable[["Receipt | BaseException"], Response]


class Refused(Exception):
    """A request is not taken; says why. Raised and caught within one request."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        hint: str,
        *,
        retry_after_s: float | None = None,
        headers: HttpHeaders = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.retry_after_s = retry_after_s
        self.headers = headers

    @property
    def answer(self) -> Response:
        """The answer as JSON."""
        return refusal(
            self.reason,
            self.message,
            self.hint,
            retry_after_s=self.retry_after_s,
            headers=self.headers,
        )


class Disconnected(Exception):
    """The client went away in the middle of its request: nobody to answer."""


def content_length(value: bytes) -> int:
    """Return how long a body is by its header; 0 where that is no number."""
    # Cut to what is too large anyway: a header may hold sixty thousand digits.
    return int(value[: _LENGTH_DIGITS_MAX + 1]) if value.isdigit() else 0


def json_response(status: int, document: object, headers: HttpHeaders = ()) -> Response:
    """Return an answer with a JSON body."""
    return Response(status, orjson.dumps(document), headers)


def refusal(
    reason: Reason,
    message: str,
    hint: str,
    *,
    retry_after_s: float | None = None,
    headers: HttpHeaders = (),
    **more: object,
) -> Response:
    """Return the answer to a request that is not taken."""
    status = STATUS_OF[reason]
    headers = (*headers, *retry_headers(status, retry_after_s))
    fields = {"status": "rejected", "reason": reason, "message": message, "hint": hint, **more}
    return json_response(status, fields, headers)


def retry_headers(status: int, retry_after_s: float | None) -> HttpHeaders:
    """Return what says when to come again, if it is worth it."""
    if status != 503:  # noqa: PLR2004
        return ()
    return ((b"retry-after", b"%d" % whole_seconds(retry_after_s)),)


def wrong_method(allowed: bytes) -> Refused:
    """Return the refusal of a method that a path does not know."""
    return Refused(
        Reason.METHOD,
        "this method is not allowed here",
        f"use {allowed.decode()}",
        headers=((b"allow", allowed),),
    )


def whole_seconds(retry_after_s: float | None) -> int:
    """Return what `Retry-After` can say: seconds, at least one.

    0 would be legal, and clients that obey it would come back in a loop without a pause.
    """
    wait_s = RETRY_AFTER_S if retry_after_s is None else retry_after_s
    return max(1, math.ceil(min(wait_s, RETRY_AFTER_MAX_S)))


async def send_response(send: Send, answer: Response) -> None:
    """Send a whole response."""
    status, body, headers, content_type = answer
    about = ((b"content-type", content_type), (b"content-length", b"%d" % len(body)))
    start = {"type": "http.response.start", "status": status, "headers": [*about, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
