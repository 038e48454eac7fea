"""What a data node answers over HTTP: probes, for orchestrators without Flight, and its figures.

/healthz    200 while the process answers at all: restart it if it does not
/readyz     200 while senders should be sent here; 503 with the reason while it takes nothing
/metrics    its figures, as Prometheus' text
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from holdfast.errors import BadConfig
from holdfast.node.data_node import DataNode
from holdfast.remote.settings import split_address

# A client that connects and says nothing is let go of.
_TIMEOUT_S = 10.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ProbeServer:
    """Answers probes until it is stopped."""

    def __init__(self, node: DataNode, listen: str, metrics: Callable[[], str]) -> None:
        """Listen, and do not answer yet; `metrics` returns the figures."""

        class ProbeAnswers(BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    status, kind, body = HTTPStatus.OK, METRICS_TYPE, metrics().encode()
                else:
                    status, answer = _answer(node, self.path)
                    kind, body = "application/json", json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing: a probe every second is no news."""

        try:
            self._server = ThreadingHTTPServer(split_address(listen), ProbeAnswers)
        except (OSError, ValueError) as error:
            raise BadConfig(
                f"{listen} cannot be listened on: {error}", hint="give --http another address"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="node-probes", daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _answer(node: DataNode, path: str) -> tuple[HTTPStatus, dict[str, object]]:
    if path == "/healthz":
        return HTTPStatus.OK, {"status": "ok", "node_id": node.node_id}
    if path == "/readyz":
        reason = node.refusal()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        return status, {"ready": not reason, "reasons": [reason] if reason else []}
    known = ["/healthz", "/readyz", "/metrics"]
    return HTTPStatus.NOT_FOUND, {"error": "there is nothing here", "known": known}
