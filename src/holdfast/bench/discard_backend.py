"""A backend that takes everything at once and notes when: `time_ns run_id`, a line per event.

Run as `python -m holdfast.bench.discard_backend PORT FILE`. It does as little as it can, so that
what is measured is the gateway.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from typing import cast

_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
_BATCH_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_RUN = re.compile(rb'"runId": "([0-9a-f-]{36})"')


class DiscardBackend(asyncio.Protocol):
    """One connection."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            now_ns = time.monotonic_ns()
            lines = b"".join(b"%d %s\n" % (now_ns, run_id) for run_id in _RUN.findall(body))
            os.write(self._fd, lines)
            self._transport.write(_BATCH_ANSWER if body.startswith(b"[") else _ANSWER)


async def serve(port: int, path: str) -> None:
    """Serve until killed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: DiscardBackend(fd), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
