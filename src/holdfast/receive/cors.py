"""Answers to browsers: which pages may send here, as the Fetch standard has them ask (CORS).

A browser asks with OPTIONS before it posts, and hides the answer from a page that is not named in
it. Nothing is protected by that, and nobody is kept out: it only lets pages in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate

from pydantic import Field

from holdfast.receive.responses import AsgiApp, HttpHeaders, Receive, Scope, Send
from holdfast.settings import DurationS, FileSettings

_VARY = (b"vary", b"origin")
# What OTLP needs, whatever else a page sends.
_ALWAYS_ALLOWED = ("content-type", "content-encoding", "authorization")


class CorsSettings(FileSettings):
    """Which pages may send from a browser."""

    allowed_origins: tuple[str, ...] = Field(min_length=1)
    """Their origins, such as `https://app.example.com`; `*` stands for any characters."""
    allowed_headers: tuple[str, ...] = ()
    """Headers that pages may send beside those of OTLP."""
    max_age_s: DurationS = Field(default=7200.0, ge=0, le=86400)
    """How long a browser need not ask again."""


class CorsApp:
    """An app that browsers may use from other origins."""

    def __init__(self, app: AsgiApp, settings: CorsSettings, kept_headers: Sequence[str]) -> None:
        self._app = app
        self._origins = [re.compile(translate(origin)) for origin in settings.allowed_origins]
        allowed = [*_ALWAYS_ALLOWED, *settings.allowed_headers, *kept_headers]
        self._preflight: HttpHeaders = (
            (b"access-control-allow-methods", b"POST"),
            (b"access-control-allow-headers", ", ".join(allowed).encode()),
            (b"access-control-max-age", b"%d" % settings.max_age_s),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = next((value for name, value in scope.get("headers", ()) if name == b"origin"), b"")
        if not origin:
            await self._app(scope, receive, send)
            return
        # The very origin and never `*`, and `Vary` also where it is not allowed: a cache between us
        # must not give one page the answer to another.
        allow: HttpHeaders = (_VARY,)
        if self._is_allowed(origin):
            allow = (
                _VARY,
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"retry-after"),
            )
        if scope["method"] == "OPTIONS":
            headers = [*allow, *(self._preflight if len(allow) > 1 else ())]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_allowed(message: Scope) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allow]
            await send(message)

        await self._app(scope, receive, send_allowed)

    def _is_allowed(self, origin: bytes) -> bool:
        text = origin.decode("latin-1")
        return any(pattern.match(text) for pattern in self._origins)
