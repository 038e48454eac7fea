"""A sender that runs: one quiver's, with its threads and the addresses of its data nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import BadInput, StorageFailed
from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.quiver.quiver import Quiver
from holdfast.remote.settings import ClientSettings
from holdfast.replica.flight import FlightTransport
from holdfast.seam import Seam


@dataclass(frozen=True)
class NodeCalls:
    """How data nodes are called, whichever it is."""

    scheme: str
    client: ClientSettings
    probe_timeout_s: float

    def connect(self, address: str) -> FlightTransport:
        """Return the way to the data node at an address."""
        return FlightTransport(
            f"{self.scheme}://{address}",
            self.client,
            put_patience_s=self.client.timeout,
            health_timeout_s=self.probe_timeout_s,
        )


class HandoffRunner:
    """The sender of one quiver. `name` is that of the exporter in the graph file."""

    def __init__(
        self,
        name: str,
        core_id: int,
        quiver: Quiver,
        seam: Seam,
        settings: HandoffSettings,
        calls: NodeCalls,
    ) -> None:
        self.name = name
        self.core_id = core_id
        self.handoff = Handoff(quiver, seam, settings)
        self.calls = calls
        self._addresses: dict[str, str] = {}
        self._changing = threading.Lock()
        self._driver = HandoffDriver(self.handoff, seam.clock, self.connect)
        self._is_running = False

    def configure(self, addresses: Mapping[str, str]) -> None:
        """Take over names and addresses; from the first time on data is kept for every name."""
        with self._changing:
            moved = [n for n, old in self._addresses.items() if addresses.get(n, old) != old]
            self._addresses = dict(addresses)
            try:
                self.handoff.configure(self._addresses)
            except OSError as error:
                raise StorageFailed(
                    f"who the data nodes are cannot be written: {error.strerror}",
                    hint="check the disk",
                    path=str(self.handoff.quiver.directory),
                ) from error
            for name in moved:
                self._driver.reconnect(name)
            if self._is_running:
                self._driver.refresh()

    def start(self) -> None:
        """Begin to send."""
        with self._changing:
            self._is_running = True
            self._driver.refresh()

    def connect(self, node: str) -> FlightTransport:
        """Return a new connection to a data node; the caller closes it."""
        address = self._addresses.get(node)
        if address is None:
            raise BadInput(
                f"no address is known for data node {node!r}",
                hint=f"configured are {', '.join(self._addresses) or 'none'}",
            )
        return self.calls.connect(address)

    def close(self, grace_s: float) -> None:
        """Begin nothing any more, and wait so long for what is under way; what waits, waits."""
        self._driver.close(grace_s)
