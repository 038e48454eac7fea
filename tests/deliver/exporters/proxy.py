"""A real forward proxy: absolute addresses for http, CONNECT for https, basic authentication."""

from __future__ import annotations

import base64
import contextlib
import selectors
import socket
from urllib.parse import urlsplit

from tests.deliver.exporters.backend import Backend, Connection, Request, Step, head


def forward_proxy(credentials: str | None = None) -> Backend:
    """Return a proxy that asks for `user:password` if told so; not started yet."""
    return Backend(steps=[_step(credentials)])


def refusing_proxy(status: int) -> Backend:
    """Return a proxy that answers every request by itself."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(head(status, {"Content-Length": "0"}))
        return False

    return Backend(steps=[step])


def _step(credentials: str | None) -> Step:
    def step(connection: Connection, request: Request) -> bool:
        if credentials is not None:
            wanted = "Basic " + base64.b64encode(credentials.encode()).decode()
            if request.headers.get("proxy-authorization") != wanted:
                headers = {"Proxy-Authenticate": "Basic", "Content-Length": "0"}
                connection.send(head(407, headers))
                return False
        if request.method == "CONNECT":
            return _tunnel(connection, request)
        return _forward(connection, request)

    return step


def _tunnel(connection: Connection, request: Request) -> bool:
    host, _, port = request.target.rpartition(":")
    with socket.create_connection((host, int(port))) as upstream:
        connection.send(head(200, {}))
        _pump(connection.socket, upstream)
    return False


def _forward(connection: Connection, request: Request) -> bool:
    parts = urlsplit(request.target)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    with socket.create_connection((parts.hostname or "", parts.port or 80)) as upstream:
        passed_on = {
            name: value for name, value in request.headers.items() if not name.startswith("proxy-")
        }
        lines = [f"{request.method} {path} HTTP/1.1"]
        lines += [
            f"{name}: {value}" for name, value in (passed_on | {"connection": "close"}).items()
        ]
        upstream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + request.raw_body)
        while data := upstream.recv(65536):
            connection.send(data)
    return True


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until one side ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                with contextlib.suppress(OSError):
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if data:
                        key.data.sendall(data)
                        continue
                return
