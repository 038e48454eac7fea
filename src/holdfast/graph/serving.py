"""The Flight server of a gateway: its quivers, for the pipelines of its file and for others.

It is there if the file asks for it (`flight:`), or if a pipeline of the file reads one of its
quivers; then only those can, with a token of our own and on a port of loopback. The token lies in
the data directory, readable for the user who runs the gateway: a driver that is started beside it
finds it there, and continues when the gateway is restarted.

A quiver has the name of its node. Quivers of former workers, which are being drained, are served
beside it as `NODE@NUMBER`: a pipeline has to read what is left in them, too.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dataflow.driver.wire import Access
from holdfast.errors import BadConfig
from holdfast.graph.addresses import of_worker
from holdfast.graph.model import Graph
from holdfast.graph.paths import reads_own_quivers
from holdfast.graph.worker_quivers import WorkerQuivers
from holdfast.remote.settings import FlightSettings, FlightToken
from holdfast.seam import Seam
from holdfast.settings import Secret

if TYPE_CHECKING:
    from holdfast.remote.server import ServerStatistics

# What a tool asks the gateway's control socket for, to get its `Access`.
ACCESS_VERB = "flight"
TOKEN_FILE = "flight.token"
_OWN_NAME = "pipelines"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def is_served(graph: Graph) -> bool:
    """Whether a gateway has a Flight server."""
    return graph.settings.flight is not None or reads_own_quivers(graph)


class Serving:
    """The Flight server of one gateway process, until it is closed."""

    def __init__(
        self, graph: Graph, stores: Mapping[str, WorkerQuivers], worker: int, seam: Seam
    ) -> None:
        """Listen; blocks until the serving process is there."""
        # Only now: most gateways serve nobody, and Flight takes 8 MB.
        from holdfast.remote.server import QuiverServer

        settings = graph.settings.flight
        is_own = settings is None
        settings = settings or FlightSettings(listen="127.0.0.1:0")
        self._token: str | None = None
        # Without any token in the file the server is open to this machine on purpose, and a token
        # of ours would lock everyone else out.
        if settings.tokens or is_own:
            self._token = own_token(graph.data_dir)
            own = FlightToken(name=_OWN_NAME, token=Secret(self._token))
            settings = settings.model_copy(update={"tokens": (*settings.tokens, own)})
        self._names = {
            served: (name, core.quiver)
            for name, store in stores.items()
            for core in store.cores
            for served in [name if core is store.main else f"{name}@{core.core_id}"]
        }
        quivers = {served: quiver for served, (_, quiver) in self._names.items()}
        self._server = QuiverServer(
            quivers, of_worker(settings, worker), base_dir=graph.base_dir, seam=seam
        )
        self._server.start()

    @property
    def location(self) -> str:
        """Where it answers, for a client on this machine."""
        scheme, _, address = self._server.location.partition("://")
        host, _, port = address.rpartition(":")
        return f"{scheme}://{_WILDCARDS.get(host.strip('[]'), host)}:{port}"

    @property
    def access(self) -> Access:
        """How pipelines on this machine reach the quivers."""
        addresses: dict[str, tuple[str, ...]] = {}
        for served, (name, _) in self._names.items():
            addresses[name] = (*addresses.get(name, ()), f"{self.location}/{served}")
        return Access(addresses, self._token)

    def statistics(self) -> ServerStatistics:
        """Return a snapshot."""
        return self._server.statistics()

    def close(self) -> None:
        """End all calls, and the serving process; before the quivers are closed."""
        self._server.stop()


def own_token(data_dir: Path) -> str:
    """Return the token of a gateway's own pipelines; made when it is first needed."""
    path = data_dir / TOKEN_FILE
    try:
        if not path.exists():
            data_dir.mkdir(parents=True, exist_ok=True)
            _make_token(path)
        token = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"the token of the pipelines cannot be kept: {error}",
            hint="let the user who runs Holdfast write there",
            path=str(path),
        ) from error
    if not token:
        raise BadConfig("the file is empty", hint="remove it; it is created again", path=str(path))
    return token


def _make_token(path: Path) -> None:
    """Write a new token, whole or not at all; of several workers the first one's stays.

    A link and not a rename: a rename would replace the token of a worker that was first, and that
    one's driver has read it already.
    """
    number, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(os.urandom(32).hex())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.unlink(fresh)
