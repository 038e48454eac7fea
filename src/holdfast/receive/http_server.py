"""An HTTP server for one ASGI app, started and stopped within a running loop."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path

from holdfast.receive.connection import BoundedConnection
from holdfast.receive.fast_path import FastPath
from holdfast.receive.listening import CUT_GRACE_S, ListenerTls, ListeningPort, until_empty
from holdfast.receive.responses import AsgiApp, Receive, Scope, Send
from holdfast.receive.server_state import ConnectionCounts, ConnectionSettings, ServerState


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
        limits = limits or ConnectionSettings()
        self._base_dir = base_dir or Path()
        self._port = ListeningPort(listen, tls, backlog=limits.backlog, reuse_port=reuse_port)
        self._state = ServerState(self._app, limits, fast_path)

    @property
    def requests(self) -> int:
        """Requests answered since the start."""
        return self._state.requests

    @property
    def addresses(self) -> list[str]:
        """Where it is reached, such as `http://127.0.0.1:5000`; empty unless it listens."""
        return self._port.addresses

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._state.connections)

    @property
    def counts(self) -> ConnectionCounts:
        """What became of connections that were not served."""
        return self._state.counts

    async def start(self) -> None:
        """Listen on all addresses of the host."""
        self._refresh_date()
        limits = self._state.settings
        await self._port.open(
            lambda: BoundedConnection(self._state),
            "http",
            self._base_dir,
            handshake_timeout_s=limits.header_timeout_s,
            sweep=self._expire,
            shortest_timeout_s=min(
                limits.header_timeout_s,
                limits.keep_alive_s,
                limits.send_timeout_s,
                limits.unread_timeout_s,
            ),
        )

    async def stop(self, drain_s: float) -> None:
        """Take no new connections, finish requests for at most `drain_s`, then cut the rest."""
        self._port.refuse_new()
        for connection in list(self._state.connections):
            connection.shutdown()
        await until_empty(self._is_empty, drain_s)
        for connection in [*self._state.connections, *self._state.counts.refused]:
            connection.transport.abort()
        # Apps learn that their client is gone; only one that does not care is cancelled.
        await until_empty(self._is_empty, CUT_GRACE_S)
        for request in list(self._state.under_way):
            request.cancel()
        await until_empty(self._is_empty, CUT_GRACE_S)
        await self._port.close()

    def _is_empty(self) -> bool:
        state = self._state
        return not (state.connections or state.under_way or state.counts.refused)

    def _expire(self, now_s: float) -> None:
        """Close the connections of clients that are too slow; keep the date right."""
        self._refresh_date()
        for connection in list(self._state.connections):
            connection.expire(now_s)

    def _refresh_date(self) -> None:
        self._state.headers = ((b"date", formatdate(usegmt=True).encode()),)


class _Routes:
    """Apps by exact path, and one for everything else."""

    def __init__(self, app: AsgiApp, routes: Mapping[str, AsgiApp]) -> None:
        self._app = app
        self._routes = dict(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._routes.get(scope.get("path", ""), self._app)
        await app(scope, receive, send)
