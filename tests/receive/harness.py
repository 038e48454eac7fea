"""What the tests of the receiver share: events, an app without a socket, a receiver on one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from tests.patience import PATIENCE_S

from holdfast import Quiver
from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import DeadLetterQueue, DeadLettersSettings
from holdfast.receive.http_app import HttpApp
from holdfast.receive.openlineage import Config, OpenLineageReceiver
from holdfast.receive.receiver import ReceiverContext
from holdfast.seam import Seam
from holdfast.signals.event import events_of

PATH = "/api/v1/lineage"
JSON = {"content-type": "application/json"}
RUN_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"


def event(number: int = 0, namespace: str = "jobs", **more: Any) -> dict[str, Any]:
    """Return a valid run event."""
    return {
        "eventType": "START",
        "eventTime": "2026-01-02T03:04:05.678Z",
        "producer": "https://example.org/producer",
        "schemaURL": RUN_SCHEMA,
        "run": {"runId": f"00000000-0000-4000-8000-{number:012d}"},
        "job": {"namespace": namespace, "name": f"job-{number}"},
        **more,
    }


def event_bytes(number: int = 0, namespace: str = "jobs", **more: Any) -> bytes:
    return json.dumps(event(number, namespace, **more)).encode()


class Place:
    """A quiver and dead letters in a folder."""

    def __init__(
        self,
        folder: Path,
        letters: DeadLettersSettings | None = None,
        seam: Seam | None = None,
    ) -> None:
        self.folder = folder
        self.quiver = Quiver.open(folder / "quiver", seam=seam)
        self.dead_letters = DeadLetterQueue.open(folder / "letters", letters)

    def context(self, seam: Seam | None = None) -> ReceiverContext:
        return ReceiverContext("in", self.quiver, self.dead_letters, seam or Seam(), self.folder)

    def app(self, config: Config | None = None, seam: Seam | None = None) -> HttpApp:
        return OpenLineageReceiver(config or Config(), self.context(seam)).app

    def stored(self) -> list[bytes]:
        """Return the payloads of the quiver, in order."""
        return [payload for bundle in self.bundles() for payload in bundle]

    def bundles(self) -> list[list[bytes]]:
        """Return the payloads of the quiver, bundle by bundle."""
        return [[one.payload for one in events] for events in _bundles(self.quiver)]

    def slots(self) -> list[str]:
        """Return the slots of the stored events, in order."""
        return [one.slot for events in _bundles(self.quiver) for one in events]

    def stored_headers(self) -> list[Mapping[str, str]]:
        return [one.headers for events in _bundles(self.quiver) for one in events]

    def letters(self) -> list[Letter]:
        found = _bundles(self.dead_letters.rejected)
        return [Letter.from_event(one) for events in found for one in events]

    def close(self) -> None:
        self.quiver.close()
        self.dead_letters.close()


def _bundles(quiver: Quiver) -> Iterator[list[Any]]:
    for seq in range(quiver.statistics().next_seq):
        bundle = quiver.bundle(seq)
        if bundle is not None:
            yield events_of(bundle, quiver.quiver_id)


@dataclass
class Reply:
    """What an app answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Exchange:
    """One request to an app without a socket; remembers what was read and sent."""

    method: str = "POST"
    path: str = PATH
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    chunks: Sequence[bytes] = (b"",)
    # What comes behind the last chunk: the end of the body, or of the client.
    disconnects: bool = False
    read_chunks: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, app: Callable[..., Any]) -> Reply | None:
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in self.headers.items()],
        }
        await app(scope, self._receive, self._send)
        if not self.sent:
            return None
        start, *rest = self.sent
        headers = {k.decode(): v.decode() for k, v in start["headers"]}
        return Reply(start["status"], headers, b"".join(m.get("body", b"") for m in rest))

    async def _receive(self) -> dict[str, Any]:
        if self.read_chunks >= len(self.chunks):
            return {"type": "http.disconnect"}
        chunk = self.chunks[self.read_chunks]
        self.read_chunks += 1
        more = self.disconnects or self.read_chunks < len(self.chunks)
        return {"type": "http.request", "body": chunk, "more_body": more}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def call(
    app: Callable[..., Any],
    body: bytes | Iterable[bytes] = b"",
    path: str = PATH,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> Reply:
    """Send one request to an app without a socket, and return its answer."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    exchange = Exchange(method, path, JSON if headers is None else headers, chunks)

    async def run() -> Reply | None:
        try:
            return await exchange.run(app)
        finally:
            if isinstance(app, HttpApp):
                await app.close()

    reply = asyncio.run(run())
    assert reply is not None
    return reply


class Running:
    """A receiver on a real socket, in a loop and a thread of its own."""

    def __init__(self, config: Config, place: Place, seam: Seam | None = None) -> None:
        self.place = place
        self.receiver = OpenLineageReceiver(config, place.context(seam))
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        try:
            self.run(self.receiver.start())
        except BaseException:
            self._end_loop()
            raise

    def stop(self, drain_s: float = 5.0) -> None:
        self.run(self.receiver.stop(drain_s))
        self._end_loop()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return self.receiver.addresses[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


@contextlib.contextmanager
def running(
    folder: Path, config: Config | None = None, seam: Seam | None = None
) -> Iterator[Running]:
    """Run a receiver on a free port of the loopback."""
    place = Place(folder)
    server = Running(config or Config(listen="127.0.0.1:0"), place, seam)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        place.close()


def request_bytes(
    body: bytes = b"", path: str = PATH, method: str = "POST", **headers: str
) -> bytes:
    """Return a request as it stands on the wire."""
    fields = {
        "host": "gateway",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value != "-")
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def read_reply(connection: socket.socket, buffer: bytearray | None = None) -> Reply:
    """Read one response; what came behind it stays in `buffer`."""
    data = bytearray() if buffer is None else buffer
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise EOFError(bytes(data))
        data += piece
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    length = int(headers.get("content-length", "0"))  # 100 Continue has none
    while len(rest) < length:
        piece = connection.recv(65536)
        if not piece:
            raise EOFError(rest)
        rest += piece
    data[:] = rest[length:]
    return Reply(int(status_line.split()[1]), headers, rest[:length])


def send_until_refused(connection: socket.socket, piece: bytes, pause_s: float = 0.0) -> OSError:
    """Send the same again and again until that fails: a broken pipe, a reset, or a full buffer."""
    try:
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)
    except OSError as error:
        return error


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side has closed; what it still says is forgotten."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def reply_while_stopping(server: Running, client: socket.socket) -> Reply:
    """Stop the receiver, and return what a client is answered that waits meanwhile."""
    with ThreadPoolExecutor(1) as beside:
        stopping = beside.submit(server.run, server.receiver.stop(5.0))
        reply = read_reply(client)
        client.close()
        stopping.result(PATIENCE_S)
    return reply
