"""An HTTP server: uvicorn's parts on sockets of our own, started and stopped within a running loop.

uvicorn's `Server` is made for a process of its own: it takes over signals, exits when a port is
taken, and wakes ten times a second. Its protocol is what we want of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from holdfast.receive.connection import (
    BoundedConnection,
    ConnectionCounts,
    ConnectionSettings,
    FastPath,
)
from holdfast.receive.listening import (
    ListenerTls,
    RotatingTls,
    bind_sockets,
    parse_address,
    url_of,
)
from holdfast.receive.responses import AsgiApp, Receive, Scope, Send

# How often deadlines are looked at: a fraction of the shortest, within these bounds.
_SWEEP_MIN_S = 0.02
_SWEEP_MAX_S = 1.0
_SWEEPS_PER_TIMEOUT = 4
# How often a stopping server looks whether it is empty.
_STOP_CHECK_S = 0.01
# After the time to drain: for connections that are cut to be gone, and for their apps to end.
_CUT_GRACE_S = 2.0


class HttpServer:
    """Serves one ASGI app on one address, with bounds on everything a client can do."""

    def __init__(
        self,
        app: AsgiApp,
        listen: str,
        tls: ListenerTls | None = None,
        limits: ConnectionSettings | None = None,
        *,
        extra_routes: Mapping[str, AsgiApp] | None = None,
        fast_path: FastPath | None = None,
        base_dir: Path | None = None,
        reuse_port: bool = False,
    ) -> None:
        """Do not listen yet. `extra_routes` are apps for exact paths, asked before `app`.

        `fast_path` is asked before all of them, for the requests that it names.
        """
        self._app = _Routes(app, extra_routes) if extra_routes else app
        self._fast_path = fast_path
        self._listen = parse_address(listen)
        self._tls = tls
        self._rotating: RotatingTls | None = None
        self._limits = limits or ConnectionSettings()
        self._base_dir = base_dir or Path()
        self._reuse_port = reuse_port
        self._state = ServerState()
        self._counts = ConnectionCounts()
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.Task[None] | None = None
        self.addresses: list[str] = []

    @property
    def requests(self) -> int:
        """Requests answered since the start."""
        return self._state.total_requests

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._state.connections)

    @property
    def counts(self) -> ConnectionCounts:
        """What became of connections that were not served."""
        return self._counts

    async def start(self) -> None:
        """Listen on all addresses of the host."""
        loop = asyncio.get_running_loop()
        if self._tls is not None:
            self._rotating = RotatingTls(self._tls, self._base_dir)
        context = self._rotating.context if self._rotating else None
        config = Config(
            cast("type[AsgiApp]", self._app),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        config.load()

        def connection() -> BoundedConnection:
            return BoundedConnection(
                self._limits, self._counts, config, self._state, {}, self._fast_path
            )

        self._refresh_date()
        scheme = "https" if self._tls else "http"
        for listening in await bind_sockets(
            self._listen, backlog=self._limits.backlog, reuse_port=self._reuse_port
        ):
            self._servers.append(
                await loop.create_server(
                    connection,
                    sock=listening,
                    backlog=self._limits.backlog,
                    ssl=context,
                    ssl_handshake_timeout=self._limits.header_timeout_s if context else None,
                )
            )
            self.addresses.append(url_of(listening, scheme))
        self._sweep = asyncio.create_task(self._look_at_deadlines())

    async def stop(self, drain_s: float) -> None:
        """Take no new connections, finish requests for at most `drain_s`, then cut the rest."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._until_empty(drain_s)
        for connection in [*self._state.connections, *self._counts.refused]:
            connection.transport.abort()
        # Apps learn that their client is gone; only one that does not care is cancelled.
        await self._until_empty(_CUT_GRACE_S)
        for task in list(self._state.tasks):
            task.cancel()
        await self._until_empty(_CUT_GRACE_S)
        if self._sweep is not None:
            self._sweep.cancel()
            await asyncio.wait([self._sweep])
        for server in self._servers:
            await server.wait_closed()
        self._servers = []
        self.addresses = []

    async def _until_empty(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self._state.connections or self._state.tasks or self._counts.refused:
            if loop.time() >= deadline_s:
                return
            await asyncio.sleep(_STOP_CHECK_S)

    async def _look_at_deadlines(self) -> None:
        """Close the connections of clients that are too slow; keep date and certificates right."""
        limits = self._limits
        shortest_s = min(
            limits.header_timeout_s,
            limits.keep_alive_s,
            limits.send_timeout_s,
            limits.unread_timeout_s,
        )
        pause_s = min(max(shortest_s / _SWEEPS_PER_TIMEOUT, _SWEEP_MIN_S), _SWEEP_MAX_S)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause_s)
            self._refresh_date()
            if self._rotating is not None:
                self._rotating.refresh()
            now_s = loop.time()
            for connection in list(self._state.connections):
                assert isinstance(connection, BoundedConnection), "BUG: not our protocol"
                connection.expire(now_s)

    def _refresh_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]


class _Routes:
    """Apps by exact path, and one for everything else."""

    def __init__(self, app: AsgiApp, routes: Mapping[str, AsgiApp]) -> None:
        self._app = app
        self._routes = dict(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._routes.get(scope.get("path", ""), self._app)
        await app(scope, receive, send)
