"""A backend over HTTP that fails at random, whatever it is sent: overloaded, or with a bad replica.

It runs in a thread with an event loop of its own, and is reached through the real exporter. Time
passes as `VirtualTimer` says, so that an hour of pauses between tries costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from tests.deliver.virtual import VirtualTimer

from holdfast.deliver.exporter import Answer, Exporter
from holdfast.deliver.exporter_context import ExporterContext
from holdfast.deliver.exporters.http import Config, make
from holdfast.seam import Seam
from holdfast.signals.event import Event

# What decides whether a request fails: itself, its connection, or the replica that it is led to.
Mode = Literal["request", "connection", "replica"]
MODES: tuple[Mode, ...] = ("request", "connection", "replica")

# Then it closes a connection, as balancers do.
REQUESTS_OF_A_CONNECTION = 25


class FlakyBackend:
    """Answers 500 to a share of what it gets, and always to some events."""

    def __init__(self, mode: Mode, share: float, seed: int, refused: Sequence[bytes] = ()) -> None:
        self.taken: list[bytes] = []
        self.requests = 0
        self.url = ""
        self._mode = mode
        self._share = share
        self._random = random.Random(seed)
        self._refused = frozenset(refused)
        # Of the requests to a balancer with two replicas every other one goes to the bad one.
        self._is_bad_replica = itertools.cycle([True, False])
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve, in a thread, until the block ends."""
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        self._ready.wait()
        try:
            yield
        finally:
            assert self._loop is not None
            assert self._over is not None
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_bad_connection = self._random.random() < self._share
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for left in reversed(range(REQUESTS_OF_A_CONNECTION)):
                payload = await _request(reader)
                self.requests += 1
                fails = payload in self._refused or self._fails(is_bad_connection)
                if not fails:
                    self.taken.append(payload)
                head = "HTTP/1.1 500 Broken" if fails else "HTTP/1.1 200 OK"
                end = "" if left else "\r\nconnection: close"
                writer.write(f"{head}\r\ncontent-length: 0{end}\r\n\r\n".encode())
                await writer.drain()
        writer.close()

    def _fails(self, is_bad_connection: bool) -> bool:
        if self._mode == "connection":
            return is_bad_connection
        is_bad_replica = self._mode == "request" or next(self._is_bad_replica)
        return is_bad_replica and self._random.random() < self._share


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    length = next(int(value) for name, _, value in lines if name == b"content-length")
    return await reader.readexactly(length)


class WatchedExporter:
    """An exporter of which a virtual timer knows when it is at work."""

    def __init__(self, exporter: Exporter, timer: VirtualTimer) -> None:
        self.max_batch_events = exporter.max_batch_events
        self.max_batch_bytes = exporter.max_batch_bytes
        self._exporter = exporter
        self._timer = timer

    async def start(self) -> None:
        await self._exporter.start()

    async def close(self) -> None:
        await self._exporter.close()

    async def send(self, events: Sequence[Event]) -> Answer:
        self._timer.busy += 1
        try:
            return await self._exporter.send(events)
        finally:
            self._timer.busy -= 1


def exporter_to(backend: FlakyBackend, timer: VirtualTimer) -> WatchedExporter:
    """Return the real exporter for a backend."""
    context = ExporterContext(name="backend", seam=Seam(), base_dir=Path())
    return WatchedExporter(make(Config(url=backend.url), context), timer)


def firsts(taken: Sequence[bytes]) -> list[bytes]:
    """Return what was taken, in the order in which it came first."""
    return list(dict.fromkeys(taken))
