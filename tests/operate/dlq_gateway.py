"""What `holdfast dlq` needs of a gateway: an office, a control socket, and a receiver."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from typing import Any, Self

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.exporter import ALL_DELIVERED, Answer, Failure, all_failed
from holdfast.deliver.redrive import VERB, SendUnits, serve_replay
from holdfast.quiver.engine.control import serve
from holdfast.seam.clock import RealClock
from holdfast.signals.event import Event


class Gateway:
    """Runs in this process, with real sockets and files."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.office = DeadLetterQueue.open(data_dir / "dead_letters")
        # What the receiver answers next (200 in the end), and what it got: path, headers, body.
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        # What the destination `marquez` got, and how it fails.
        self.sent: list[bytes] = []
        self.failure: Failure | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http_thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._http_thread.start()
        verbs = {"status": self._status, VERB: self._replay}
        self._control = serve(PurePath(data_dir), verbs, RealClock())

    @property
    def url(self) -> str:
        """Where its receiver listens."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def reject(self, *letters: Letter) -> None:
        """File input that was not accepted."""
        assert self._run(self.office.reject(letters))

    def undelivered(self, *letters: Letter) -> None:
        """File what a destination did not take."""
        self._run(self.office.undelivered(letters))

    def close(self) -> None:
        """Stop as a gateway does."""
        if self._control is not None:
            self._control.close()
        self._http.shutdown()
        self._http.server_close()
        self._http_thread.join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self.office.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        # Nobody listens at the first: whoever asks must take the receiver that the letter names.
        return {"addresses": {"another": ["http://127.0.0.1:9"], "ingest": [self.url]}}

    def _replay(self, request: dict[str, Any]) -> dict[str, Any]:
        sender_to: Callable[[str], SendUnits | None] = {"marquez": self._send}.get
        told: dict[str, Any] = self._run(serve_replay(self.office, request, sender_to))
        return told

    async def _send(self, events: Sequence[Event]) -> Answer:
        if self.failure is not None:
            return all_failed(len(events), self.failure)
        self.sent += [event.payload for event in events]
        return ALL_DELIVERED

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                gateway.posts.append((self.path, dict(self.headers), body))
                status, fields = gateway.answers.pop(0) if gateway.answers else (200, {})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(fields).encode())

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Say nothing."""

        return Handler
