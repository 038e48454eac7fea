"""The admin port: `/healthz`, `/readyz` and `/metrics`.

/healthz    200 while the process answers at all: restart it if it does not
/readyz     200 while senders should be sent here; 503 with the reasons during a replay, while
            events are refused, and while it stops
/metrics    every figure, as Prometheus' text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.operate.gateway_metrics import render_records
from holdfast.operate.metrics import CONTENT_TYPE, Sample
from holdfast.receive.responses import Receive, Response, Scope, Send, json_response, send_response

OK = 200
NOT_FOUND = 404
NOT_ALLOWED = 405
UNAVAILABLE = 503


class WatchedGateway(Protocol):
    """What the port tells of: one gateway, or several workers."""

    async def not_ready(self) -> Sequence[str]:
        """Return why senders should not be sent here; empty if they should."""

    async def records(self) -> Sequence[Sample]:
        """Return every figure."""


class AdminApp:
    """The ASGI app of the port."""

    def __init__(self, watched: WatchedGateway) -> None:
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            answer = json_response(NOT_ALLOWED, {"error": "use GET"}, ((b"allow", b"GET, HEAD"),))
            await send_response(send, answer)
            return
        if scope["path"] == "/metrics":
            await self._metrics(send)
            return
        await send_response(send, await self._answer(scope["path"]))

    async def _answer(self, path: str) -> Response:
        if path == "/healthz":
            return json_response(OK, {"status": "ok"})
        if path == "/readyz":
            reasons = list(await self._watched.not_ready())
            status = UNAVAILABLE if reasons else OK
            return json_response(status, {"ready": not reasons, "reasons": reasons})
        known = ["/healthz", "/readyz", "/metrics"]
        return json_response(NOT_FOUND, {"error": "there is nothing here", "known": known})

    async def _metrics(self, send: Send) -> None:
        body = render_records(await self._watched.records()).encode()
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": OK, "headers": headers})
        await send({"type": "http.response.body", "body": body})
