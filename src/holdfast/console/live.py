"""LiveFigures to open pages, as server-sent events.

A page opens `/live` and gets a message per `LIVE_S`: all texts, states and bars by key
(figures.py). Only what changed since the last one is sent, so an idle gateway costs an open page
a few bytes. A browser that is gone, or stops reading, is noticed by the server below; one page
more than `STREAMS_MAX` is answered 503, and shows what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping

from holdfast.console.access import SECURITY_HEADERS
from holdfast.console.figures import LiveFigures
from holdfast.console.watch import LIVE_S
from holdfast.errors import HoldfastError
from holdfast.receive.responses import Receive, Send

STREAMS_MAX = 16
# After how long a browser tries again when the gateway was restarted.
RETRY_MS = 2000


class LiveStreams:
    """Serves the streams of all open pages."""

    def __init__(self, look: Callable[[], Awaitable[LiveFigures]]) -> None:
        self._look = look
        self._closing = asyncio.Event()
        self.open = 0

    def close(self) -> None:
        """End all streams."""
        self._closing.set()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more."""
        return self.open >= STREAMS_MAX

    async def serve(self, receive: Receive, send: Send) -> None:
        """Send figures until the page is closed, or the gateway stops."""
        self.open += 1
        leaving = asyncio.create_task(_until_gone(receive))
        closing = asyncio.create_task(self._closing.wait())
        try:
            headers = [
                (b"content-type", b"text/event-stream"),
                (b"cache-control", b"no-store"),
                *SECURITY_HEADERS,
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _say(send, f"retry: {RETRY_MS}\n\n")
            sent = LiveFigures({}, {}, {})
            while not (leaving.done() or closing.done()):
                with contextlib.suppress(HoldfastError):
                    now = await self._look()
                    await _say(send, f"data: {_changes(sent, now)}\n\n")
                    sent = now
                await asyncio.wait(
                    [leaving, closing], timeout=LIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.open -= 1
            leaving.cancel()
            closing.cancel()


def _changes(sent: LiveFigures, now: LiveFigures) -> str:
    """Return what is different, as JSON."""
    changes = {
        "texts": _different(sent.texts, now.texts),
        "states": _different(sent.states, now.states),
        "parts": _different(sent.parts, now.parts),
    }
    return json.dumps({name: found for name, found in changes.items() if found})


def _different(
    old: Mapping[str, str] | Mapping[str, float], new: Mapping[str, str] | Mapping[str, float]
) -> dict[str, str | float]:
    return {key: value for key, value in new.items() if old.get(key) != value}


async def _say(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
