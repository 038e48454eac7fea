"""A backend for events: an HTTP server in threads of this process."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.patience import PATIENCE_S


class HttpBackend:
    """Keeps what is posted to it, and answers as it is told."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        # The jobs of the events that it took.
        self.jobs: list[str] = []
        # Cleared, requests are not answered until it is set again.
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                backend.asked.set()
                backend.answers.wait(PATIENCE_S)
                status = backend.status_for(event)
                backend.events.append(event)
                backend.headers.append(dict(self.headers))
                backend.paths.append(self.path)
                if status < 300 and "job" in event:
                    backend.jobs.append(event["job"]["name"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def status_for(self, event: dict[str, Any]) -> int:
        """Return the answer to an event."""
        return self.status

    def close(self) -> None:
        """Answer whoever still waits, and end."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
