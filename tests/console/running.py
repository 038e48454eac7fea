"""A gateway with its console, in a thread of this process: real sockets, real files."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import yaml
from tests.patience import PATIENCE_S

from holdfast.console.access import TOKEN_FILE
from holdfast.dataflow.driver.wire import DriverFigures
from holdfast.graph.loader import load
from holdfast.graph.runtime import Gateway
from holdfast.operate.monitoring import observed
from holdfast.operate.up import GatewayWatch
from holdfast.quiver.engine.control import serve
from holdfast.seam.clock import RealClock


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        """Return it as data."""
        return json.loads(self.body)


class WatchedDriver(GatewayWatch):
    """A gateway beside which a driver reports."""

    def __init__(self, gateway: Gateway, figures: DriverFigures | None) -> None:
        super().__init__(gateway)
        self._reported = figures

    @property
    def driver_figures(self) -> DriverFigures | None:
        """What it reported."""
        return self._reported


class RunningConsole:
    """Runs the gateway of a graph; what is asked of it comes from the test's own thread."""

    def __init__(self, folder: Path, nodes: dict[str, Any], **settings: Any) -> None:
        self.file = folder / "gateway.yaml"
        self.data_dir = folder / "data"
        whole = {"data_dir": "data", "admin": {"listen": "127.0.0.1:0"}, **settings, "nodes": nodes}
        self.file.write_text(yaml.safe_dump(whole, sort_keys=False))
        self.gateway = Gateway(load(self.file).graph)
        # What the driver of the pipelines reports; it is not run here.
        self.driver: DriverFigures | None = None
        self._held = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.wait(self._held.aclose())
        self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _start(self) -> None:
        watch = WatchedDriver(self.gateway, self.driver)
        port = await self._held.enter_async_context(observed(load(self.file), watch))
        await self.gateway.start()
        self._held.push_async_callback(self.gateway.stop, 0.0)
        found = port.console({})
        self.address, self.token = found["address"], found["token"]
        self.port = int(self.address.rpartition(":")[2])
        verbs = {**watch.verbs(), "console": port.console}
        control = serve(PurePath(self.data_dir), verbs, RealClock())
        assert control is not None
        self._held.callback(control.close)

    # ------------------------------------------------------------------- asking

    def get(self, path: str, *, token: str | None = None, **headers: str) -> Answer:
        """Ask for a page."""
        return self.request("GET", path, token=token, **headers)

    def post(self, path: str, *, token: str | None = None, **fields: Any) -> Answer:
        """Send a form."""
        body = urlencode(fields)
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.request("POST", path, token=token, body=body, **kind)

    def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: str | None = None,
        **headers: str,
    ) -> Answer:
        """Send one request; `Host` may be another one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    def send(self, *bodies: bytes) -> list[int]:
        """Post events to the receiver `lineage`; return the statuses."""
        (address,) = self.gateway.addresses["lineage"]
        port = int(address.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        statuses = []
        try:
            for body in bodies:
                connection.request("POST", "/api/v1/lineage", body)
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
        finally:
            connection.close()
        return statuses

    @property
    def token_file(self) -> Path:
        """Where the token lies."""
        return self.data_dir / TOKEN_FILE


def receiver(to: str) -> dict[str, Any]:
    """Return a receiver that leads to one node."""
    listen = {"listen": "127.0.0.1:0"}
    return {"kind": "receiver", "type": "openlineage", "config": listen, "to": [to]}
