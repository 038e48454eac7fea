"""A proxy before an S3 server that loses, refuses, repeats or holds back what passes through it."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.patience import PATIENCE_S


class Trouble(StrEnum):
    """What happens to one request."""

    REFUSE = "503, and the server never hears of it"
    DENY = "403, and the server never hears of it"
    LOSE_ANSWER = "the server does it, and the connection breaks before its answer"
    TWICE = "the server gets it twice, and its second answer goes back"
    HANG = "the server does it, and the answer never comes"


class Proxy:
    """Passes requests on to `endpoint`; troubles strike requests of their method, one each."""

    def __init__(self, endpoint: str) -> None:
        self.target = urlsplit(endpoint)
        self.troubles: dict[str, list[Trouble]] = {}
        self.requests: list[str] = []
        self.released = threading.Event()
        self._lock = threading.Lock()

    def strike(self, method: str, *troubles: Trouble) -> None:
        with self._lock:
            self.troubles.setdefault(method, []).extend(troubles)

    def next_trouble(self, method: str) -> Trouble | None:
        with self._lock:
            self.requests.append(method)
            waiting = self.troubles.get(method, [])
            return waiting.pop(0) if waiting else None


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            trouble = proxy.next_trouble(self.command)
            if trouble in (Trouble.REFUSE, Trouble.DENY):
                self.send_response(503 if trouble is Trouble.REFUSE else 403)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status, headers, answer = self._ask(body)
            if trouble is Trouble.TWICE:
                status, headers, answer = self._ask(body)
            if trouble is Trouble.HANG:
                proxy.released.wait(PATIENCE_S)
            if trouble in (Trouble.LOSE_ANSWER, Trouble.HANG):
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            server = http.client.HTTPConnection(proxy.target.netloc, timeout=PATIENCE_S)
            try:
                server.request(self.command, self.path, body, dict(self.headers.items()))
                answer = server.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                server.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    return Handler


@contextlib.contextmanager
def running_proxy(endpoint: str) -> Iterator[tuple[Proxy, str]]:
    """Serve a proxy; yield it and its own endpoint."""
    proxy = Proxy(endpoint)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy, f"http://127.0.0.1:{server.server_port}"
    finally:
        proxy.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
