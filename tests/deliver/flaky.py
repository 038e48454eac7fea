"""A backend over HTTP that fails at random, whatever it is sent: overloaded, or with a bad replica.

It runs in a thread with an event loop of its own, and is reached through the real exporter.
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

from tests.deliver.stage import Stage
from tests.deliver.tuned import tuned_settings
from tests.patience import PATIENCE_S, until_async

from holdfast.deliver.exporter import ExporterContext
from holdfast.deliver.exporters.http import Config, make
from holdfast.deliver.sending import LoopTimer
from holdfast.deliver.settings import DeliverySettings
from holdfast.seam import Seam

# What decides whether a request fails: itself, its connection, or the replica that it is led to.
Mode = Literal["request", "connection", "replica"]
MODES: tuple[Mode, ...] = ("request", "connection", "replica")

# Of real time, for the long ones on a busy machine.
LONG_S = 1700.0

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
        # Closed also if the loop ends first: what is left open is a warning in a later test.
        with (
            contextlib.closing(writer),
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        ):
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


def deliver_all(stage: Stage, backend: FlakyBackend, settings: DeliverySettings) -> None:
    """Deliver everything through the real exporter, with pauses that are over at once."""
    given = settings.model_dump(exclude_unset=True)
    settings = tuned_settings(**given, retry_max_s=1e-5, breaker_failures=1000)
    context = ExporterContext(name="backend", seam=Seam(), base_dir=Path(), data_dir=Path())

    async def main() -> None:
        exporter = make(Config(url=backend.url), context)
        destination = stage.make(settings, exporter=exporter)
        destination.timer = LoopTimer()
        task = asyncio.create_task(destination.run())
        await until_async(lambda: stage.pending() == 0, patience_s=LONG_S)
        await destination.stop(PATIENCE_S)
        await task

    with backend.serving():
        asyncio.run(main())
    stage.check()
