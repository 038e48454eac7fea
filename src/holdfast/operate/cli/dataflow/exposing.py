"""`/metrics` of a driver that runs alone: the names that a gateway has for the one beside it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from holdfast.dataflow.driver.wire import DriverFigures, PipelineFigures
from holdfast.errors import BadConfig
from holdfast.operate.gateway_metrics import render_records
from holdfast.operate.metrics import CONTENT_TYPE
from holdfast.operate.pipeline_metrics import driver_records
from holdfast.receive.listening import parse_address

POLL_S = 0.2


class WatchedPipelines(Protocol):
    """What knows how a pipeline goes."""

    @property
    def figures(self) -> PipelineFigures:
        """How it goes now."""


@contextlib.contextmanager
def exposed(listen: str | None, name: str, watched: WatchedPipelines) -> Iterator[None]:
    """Serve the figures of one pipeline, if an address is given."""
    if listen is None:
        yield
        return
    try:
        host, port = parse_address(listen)
        server = _Server((host, port), name, watched)
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"metrics cannot be served on {listen}: {error}", hint="write host:port; is it free?"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], name: str, watched: WatchedPipelines) -> None:
        self.name = name
        self.watched = watched
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer with the figures."""
        if self.path != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        figures = DriverFigures(True, 1, {self.server.name: self.server.watched.figures})
        body = render_records(driver_records(figures)).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the terminal shows how the pipeline goes."""
