"""The fast path of small requests: what an app offers, and the head by which one is recognised.

An app says which targets may take it (`FastPath`), and gives a lane for the head of a request: what
the headers say was checked then, so that a request with the same head is handed over by its body
alone.

On one connection the heads of two requests of a client differ in nothing but the length of the
body. Parsing each of them again, header by header, costs more than all else that the event loop
does about a small request. So a connection remembers the bytes of the last head, cut at that
length (`KnownHead`), and compares. They were parsed once, and are taken apart here once more: only
if both found the same headers is it clear where the length stands, and that nothing else depends
on it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

from holdfast.quiver import Receipt
from holdfast.receive.responses import OnStored, Respond

# The most of a body that is held back for the fast path, until the server next looks at deadlines,
# unless the app says otherwise.
HELD_BYTES_MAX = 64 * 1024

_END = b"\r\n\r\n"
# A body on the fast path is shorter than that; a longer number is left to the parser.
_LENGTH_DIGITS_MAX = 12
# A longer head is not remembered: each connection would keep one while it is idle.
KNOWN_HEAD_BYTES_MAX = 4 * 1024


class FastLane(Protocol):
    """Takes requests that differ in nothing but their bodies."""

    def accept(self, body: bytes, on_stored: OnStored) -> Respond | None:
        """Take a whole request, and call `on_stored` later, once; None: nothing was done.

        Returns what makes the response of that outcome; to be called exactly once, also if the
        client has gone away, because it counts.
        """


class FastPath(Protocol):
    """The fast path of an app."""

    @property
    def fast_targets(self) -> Container[bytes]:
        """Request targets (path and query, as sent) of POSTs that may take the fast path."""

    @property
    def held_bytes_max(self) -> int:
        """The largest body that may take it."""

    def fast_lane(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> FastLane | None:
        """Return where requests with these headers are handed over; None: they are special."""


class FastConnection(Protocol):
    """The connection of a request on the fast path."""

    def answer(self, request: FastRequest, outcome: Receipt | BaseException) -> None:
        """Answer a request whose append has an outcome."""


class FastRequest:
    """A request on the fast path, until it is answered."""

    __slots__ = ("_connection", "is_disconnected", "keep_alive", "respond", "response_complete")

    def __init__(self, connection: FastConnection, *, keep_alive: bool) -> None:
        self._connection = connection
        self.is_disconnected = False
        self.keep_alive = keep_alive
        self.response_complete = False
        # None until the app has taken it.
        self.respond: Respond | None = None

    @property
    def response_started(self) -> bool:
        """It is written in one go."""
        return self.response_complete

    def disconnect(self) -> None:
        """The client is gone."""
        self.is_disconnected = True

    def cancel(self) -> None:
        """Its answer comes, and in time; there is nothing to cancel."""

    def stored(self, outcome: Receipt | BaseException) -> None:
        """Let the connection answer; the writer calls this, as there is no task to wait for it."""
        self._connection.answer(self, outcome)


class Announced(NamedTuple):
    """Where in some bytes a body begins, and where it ends once all of it has come."""

    begin: int
    end: int


class KnownHead(NamedTuple):
    """A head, cut at the length of its body, and what it leads to."""

    before: bytes
    after: bytes
    lane: FastLane

    def announced(self, came: bytes) -> Announced | None:
        """Return where the body is, if these bytes begin with such a head."""
        before, after, _ = self
        if not came.startswith(before):
            return None
        length_begin = len(before)
        length_end = came.find(b"\r", length_begin, length_begin + _LENGTH_DIGITS_MAX + 1)
        digits = came[length_begin:length_end]
        if length_end < 0 or not digits.isdigit() or not came.startswith(after, length_end):
            return None
        begin = length_end + len(after)
        return Announced(begin, begin + int(digits))


def head_in(came: bytes) -> bytes:
    """Return the head that these bytes begin with; empty if it is not complete."""
    return came[: came.find(_END) + len(_END)] if _END in came else b""


def known_head(
    came: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], lane: FastLane
) -> KnownHead | None:
    """Remember the head that these bytes begin with; None unless it is plain to read.

    `target` and `headers` are what the parser found in it, with names in lower case.
    """
    head = head_in(came)
    if len(head) > KNOWN_HEAD_BYTES_MAX:
        return None
    first, *lines = head[: -len(_END)].split(b"\r\n")
    parted = [line.partition(b":") for line in lines]
    found = [(name.lower(), value.strip(b" \t")) for name, _, value in parted]
    if first != b"POST %b HTTP/1.1" % target or found != list(headers):
        return None
    names = [name for name, _ in found]
    if names.count(b"content-length") != 1:
        return None
    place = names.index(b"content-length")
    digits = found[place][1]
    if not digits.isdigit() or not lines[place].endswith(digits):
        return None
    before = b"\r\n".join((first, *lines[:place], lines[place][: -len(digits)]))
    after = b"".join([b"\r\n" + line for line in lines[place + 1 :]]) + _END
    return KnownHead(before, after, lane)
