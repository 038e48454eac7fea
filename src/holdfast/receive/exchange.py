"""One request on the slow path: an ASGI app that reads its body and writes its answer.

The connection feeds what it parsed; the app asks for it and sends messages back, and what comes of
them is framed here: a length that the app gave, chunks where it gave none, nothing for a HEAD. An
app that fails is answered for: 500 if it had not begun, a closed connection if it had, so that
half an answer is never taken for a whole one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import Any

from holdfast.receive.responses import STATUS_LINES, AsgiApp, HttpHeaders, Response, Scope

# A request's body is not read on while the app has so much of it to take.
_UNTAKEN_BYTES_MAX = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Instead of the answer that an app failed to make.
FAILED = Response(500, b"Internal Server Error", content_type=b"text/plain")
# Whatever the status, these have no body, and no length.
_BODILESS = (204, 304)
# In a header they would begin another one.
_FORBIDDEN = re.compile(rb"[\r\n\0]")

log = logging.getLogger("holdfast.receive")


class Flow:
    """Whether a connection is read and written at this moment."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_read_paused = False
        self.is_write_paused = False
        self._writable = asyncio.Event()

    def pause_reading(self) -> None:
        """Read nothing; may be said twice."""
        if not self.is_read_paused:
            self.is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on; may be said twice."""
        if self.is_read_paused:
            self.is_read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Let those who write wait."""
        self.is_write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let those who wait go on."""
        self.is_write_paused = False
        self._writable.set()

    async def until_writable(self) -> None:
        """Wait while the client does not read."""
        if self.is_write_paused:
            await self._writable.wait()


class Exchange:
    """A request and its answer."""

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: Flow,
        headers: HttpHeaders,
        on_complete: Callable[[], None],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        """`headers` stand in every answer; `on_complete` is called when it is written."""
        self.keep_alive = keep_alive
        self.response_started = False
        self.response_complete = False
        self._scope = scope
        self._transport = transport
        self._flow = flow
        self._headers = headers
        self._on_complete = on_complete
        self._expects_continue = expects_continue
        self._is_disconnected = False
        # What came of the body, and the app has not taken.
        self._body = bytearray()
        self._is_more_to_come = True
        self._news = asyncio.Event()
        # What is left of the length that the app gave; None: it gave none.
        self._left_bytes: int | None = None
        self._is_chunked = False

    # ------------------------------------------------------------ the connection

    def feed(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += body
        if len(self._body) > _UNTAKEN_BYTES_MAX:
            self._flow.pause_reading()
        self._news.set()

    def end_body(self) -> None:
        """Take the body as complete."""
        self._is_more_to_come = False
        self._news.set()

    def disconnect(self) -> None:
        """The client is gone."""
        self._is_disconnected = True
        self._news.set()

    async def run(self, app: AsgiApp) -> None:
        """Let the app answer."""
        try:
            await app(self._scope, self._receive, self._send)
            if not (self.response_complete or self._is_disconnected):
                log.error("BUG: %s was not answered", self._scope["path"])
        except Exception:
            log.exception("BUG: %s was not answered", self._scope["path"])
        if not (self.response_complete or self._is_disconnected):
            await self._fail()
        # The connection knows its last request, and may be idle for long.
        self._scope = {}

    async def _fail(self) -> None:
        if self.response_started:
            self._transport.close()
            return
        self.keep_alive = False
        length = b"%d" % len(FAILED.body)
        about = ((b"content-type", FAILED.content_type), (b"content-length", length))
        start = {"type": "http.response.start", "status": FAILED.status, "headers": about}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": FAILED.body})

    # ------------------------------------------------------------------- the app

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._expects_continue and not self._transport.is_closing():
            self._transport.write(_CONTINUE)
        self._expects_continue = False
        if not self._is_disconnected and not self.response_complete:
            self._flow.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._is_disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._is_more_to_come}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if not self._is_disconnected:
            await self._flow.until_writable()
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], tuple(message.get("headers", ())))
        else:
            self._write(message.get("body", b""))
            if not message.get("more_body", False):
                self._end()

    def _start(self, status: int, headers: HttpHeaders) -> None:
        lines = [STATUS_LINES[status]]
        for name, value in (*self._headers, *headers):
            if _FORBIDDEN.search(name) or _FORBIDDEN.search(value):
                raise ValueError(f"a header cannot be {name!r}: {value!r}")
            lower = name.lower()
            if lower == b"content-length":
                self._left_bytes = int(value)
            elif lower == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue
            lines += (name, b": ", value, b"\r\n")
        if self._left_bytes is None and status not in _BODILESS and not self._is_head:
            # Without either, the end of the connection is the end of the answer.
            self._is_chunked = self._scope["http_version"] != "1.0"
            self.keep_alive = self.keep_alive and self._is_chunked
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self.response_started = True
        self._expects_continue = False
        self._transport.write(b"".join(lines))

    @property
    def _is_head(self) -> bool:
        return bool(self._scope["method"] == "HEAD")

    def _write(self, body: bytes) -> None:
        if not body or self._is_head:
            return
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
            if self._left_bytes < 0:
                raise ValueError("an answer is longer than its length")
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)

    def _end(self) -> None:
        if self._left_bytes and not self._is_head:
            raise ValueError("an answer is shorter than its length")
        if self._is_chunked:
            self._transport.write(b"0\r\n\r\n")
        self.response_complete = True
        self._news.set()
        if not self.keep_alive:
            self._transport.close()
        self._on_complete()


def response_bytes(response: Response, headers: HttpHeaders = (), *, closes: bool = True) -> bytes:
    """Return a whole response as it is written."""
    head = _head_bytes(
        response.status, (*headers, *response.headers), response.content_type, closes
    )
    return b"%b%d\r\n\r\n%b" % (head, len(response.body), response.body)


# Nearly all responses of a second differ in nothing but their bodies.
@lru_cache(maxsize=64)
def _head_bytes(status: int, headers: HttpHeaders, content_type: bytes, closes: bool) -> bytes:
    """Return the head of a response, up to the length of its body."""
    parts = [STATUS_LINES[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if closes:
        parts.append(b"connection: close\r\n")
    parts.append(b"content-type: %b\r\ncontent-length: " % content_type)
    return b"".join(parts)
