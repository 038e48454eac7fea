"""The backend of a proof: a process of its own that writes down every event before it answers.

Run as `python -m holdfast.prove.backend PORT JOURNAL [run]`. It takes single events, and batches as
JSON arrays of events. One line of its journal per event, `R <nanoseconds> <name>`, with one system
call per request; kill -9 does not take back what was written. A name of `?` is content nobody sent;
with `run`, events are named by their run, whoever made them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator

from holdfast.prove.lineage import name_of, run_name_of

UNKNOWN = "?"
EventName = Callable[[bytes], str | None]
_HEAD_BYTES_MAX = 64 * 1024


class Backend(asyncio.Protocol):
    """One connection. HTTP as far as an exporter speaks it: POST with a Content-Length."""

    def __init__(self, journal_fd: int, name: EventName = name_of) -> None:
        self._journal_fd = journal_fd
        self._name = name
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (body := self._take_request()) is not None:
            names = list(_names(body, self._name))
            now_ns = time.monotonic_ns()
            lines = "".join(f"R {now_ns} {name}\n" for name in names)
            os.write(self._journal_fd, lines.encode())
            self._transport.write(_answer(len(names)))

    def _take_request(self) -> bytes | None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            assert len(self._received) < _HEAD_BYTES_MAX, "no end of the head"
            return None
        head = bytes(self._received[:end]).lower()
        start = head.index(b"content-length:") + len(b"content-length:")
        length = int(head[start:].split(b"\r\n", 1)[0])
        if len(self._received) < end + 4 + length:
            return None
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        return body


def _names(body: bytes, name: EventName) -> Iterator[str]:
    """Yield the names of the events in a request."""
    if not body.startswith(b"["):
        yield name(body) or UNKNOWN
        return
    # The bytes of each event are wanted as they came: its own decoder finds where one ends.
    text, decoder = body.decode(), json.JSONDecoder()
    place = 1
    while text[place:].strip() not in ("", "]"):
        _, end = decoder.raw_decode(text, place)
        yield name(text[place:end].encode()) or UNKNOWN
        place = end + (text[end] == ",")


def _answer(events: int) -> bytes:
    summary = {"received": events, "successful": events, "failed": 0}
    body = json.dumps({"status": "success", "summary": summary, "failed_events": []}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def serve(port: int, journal: str, name: EventName) -> None:
    """Serve until killed."""
    journal_fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Backend(journal_fd, name), "127.0.0.1", port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    names: EventName = run_name_of if "run" in sys.argv[3:] else name_of
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], names))
