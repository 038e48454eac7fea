"""A backend on a raw socket that answers whatever a test wants, also what no HTTP library would.

Each request is read whole and kept. What happens then is up to a step: a function that is given the
connection and the request, and returns whether the connection stays open. Steps that hang wait for
the end of the test, never for a time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

LINGER_S = 30.0
TLS_HANDSHAKE = b"\x16"


class NotHttp(Exception):
    """Somebody speaks TLS to a port that does not."""


@dataclass(frozen=True)
class Request:
    """A request as it came in; header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    raw_body: bytes

    @property
    def body(self) -> bytes:
        if self.headers.get("content-encoding") == "gzip":
            return gzip.decompress(self.raw_body)
        return self.raw_body


@dataclass
class Connection:
    """One connection as a step sees it."""

    socket: socket.socket
    backend: Backend

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hang(self) -> None:
        """Do nothing until the test is over."""
        self.backend.stopping.wait(LINGER_S)


Step = Callable[[Connection, Request], bool]


def head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def answer(status: int, body: bytes = b"", **headers: str) -> Step:
    """Answer as a decent server does."""

    def step(connection: Connection, request: Request) -> bool:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.send(head(status, {"Content-Length": str(len(body))} | named) + body)
        return True

    return step


def raw(data: bytes) -> Step:
    """Send bytes that need not be HTTP, and close."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(data)
        return False

    return step


def hang_before_headers(connection: Connection, request: Request) -> bool:
    connection.hang()
    return False


def hang_after_headers(status: int, sent: bytes = b"") -> Step:
    """Promise a body and do not send all of it."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(head(status, {"Content-Length": "1000"}) + sent)
        connection.hang()
        return False

    return step


def close_at_once(connection: Connection, request: Request) -> bool:
    return False


def close_mid_body(status: int, sent: bytes = b"{") -> Step:
    """Promise a body and close before its end."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(head(status, {"Content-Length": "1000"}) + sent)
        return False

    return step


def endless_body(status: int) -> Step:
    """Send a body for as long as somebody reads it."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(head(status, {"Transfer-Encoding": "chunked"}))
        while not connection.backend.stopping.is_set():
            connection.send(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
            connection.backend.sent_endlessly_bytes += 0x4000
        return False

    return step


def endless_headers(connection: Connection, request: Request) -> bool:
    connection.send(b"HTTP/1.1 200 OK\r\n")
    while not connection.backend.stopping.is_set():
        connection.send(b"X-More: " + b"x" * 1000 + b"\r\n")
    return False


def slow_drip(status: int) -> Step:
    """Send the body byte by byte: never silent for long, and never done."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(head(status, {"Content-Length": "1000000"}))
        while not connection.backend.stopping.wait(0.02):
            connection.send(b" ")
        return False

    return step


@dataclass
class Backend:
    """A server in threads of this process. `steps` are used up in turn; the last one stays."""

    steps: list[Step] = field(default_factory=lambda: [answer(201)])
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    accepted: int = 0
    open_connections: int = 0
    most_connections: int = 0
    sent_endlessly_bytes: int = 0

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._lock:
            for connected in self._sockets:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connected,))
            with self._lock:
                self.accepted += 1
                self._sockets.add(connected)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        with self._lock:
            self.open_connections += 1
            self.most_connections = max(self.most_connections, self.open_connections)
        try:
            with contextlib.suppress(OSError, EOFError), self._wrapped(connected) as wrapped:
                reader = wrapped.makefile("rb")
                with reader:
                    stays = True
                    while stays:
                        try:
                            request = read_request(reader)
                        except NotHttp:
                            wrapped.sendall(head(400, {"Connection": "close"}))
                            break
                        stays = self._next_step(request)(Connection(wrapped, self), request)
                        stays = stays and request.headers.get("connection") != "close"
        finally:
            with self._lock:
                self.open_connections -= 1
                self._sockets.discard(connected)
            connected.close()

    @contextlib.contextmanager
    def _wrapped(self, connected: socket.socket) -> Iterator[socket.socket]:
        if self.tls is None:
            yield connected
            return
        wrapped = self.tls.wrap_socket(connected, server_side=True)
        with self._lock:
            self._sockets.discard(connected)
            self._sockets.add(wrapped)
        try:
            yield wrapped
        finally:
            with self._lock:
                self._sockets.discard(wrapped)
            wrapped.close()

    def _next_step(self, request: Request) -> Step:
        with self._lock:
            self.requests.append(request)
            return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


def read_request(reader: io.BufferedReader) -> Request:
    """Read one request; EOFError if there is none, NotHttp if it is something else."""
    if reader.peek(1)[:1] == TLS_HANDSHAKE:
        raise NotHttp
    first = reader.readline()
    if not first:
        raise EOFError
    method, target, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := reader.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)
