"""A lineage backend that does as it is told: a process that writes down each event, then answers.

Run as `python backend.py PORT JOURNAL MOOD`. The file MOOD is read at every request; without it all
is well. It holds JSON, `{"status": 503, "retry_after": 1, "hang": false, "jobs": {"bad": 422}}`:
what every event is answered with, and what events of certain jobs are. One line of the journal per
event, written before the answer and with one system call: `STATUS SHA256 JOB EVENT_TYPE`, with
status 0 for an event that is never answered. Only the standard library, so that it starts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from typing import Any

HANGS = 0


class Backend(asyncio.Protocol):
    """One connection; requests one after another."""

    def __init__(self, journal_fd: int, mood: str) -> None:
        self._journal_fd = journal_fd
        self._mood = mood
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (body := self._take_request()) is not None:
            self._answer(body)

    def _take_request(self) -> bytes | None:
        head, separator, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not separator:
            return None
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(rest) < length:
            return None
        self._received = bytearray(rest[length:])
        return rest[:length]

    def _answer(self, body: bytes) -> None:
        event = json.loads(body)
        mood = read_mood(self._mood)
        job = event["job"]["name"]
        status = mood.get("jobs", {}).get(job, mood.get("status", 200))
        if mood.get("hang"):
            status = HANGS
        digest = hashlib.sha256(body).hexdigest()
        line = f"{status} {digest} {job} {event.get('eventType', '-')}\n"
        os.write(self._journal_fd, line.encode())
        if status != HANGS:
            wait = f"Retry-After: {mood['retry_after']}\r\n" if "retry_after" in mood else ""
            answer = f"HTTP/1.1 {status} Mood\r\n{wait}Content-Length: 2\r\n\r\n{{}}"
            self._transport.write(answer.encode())


def read_mood(path: str) -> dict[str, Any]:
    """Return what to do."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        mood: dict[str, Any] = json.load(file)
        return mood
    return {}


async def serve(port: int, journal: str, mood: str) -> None:
    """Serve until killed."""
    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Backend(fd, mood), "127.0.0.1", port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
