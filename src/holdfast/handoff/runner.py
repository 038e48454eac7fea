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
        try:
            self.handoff = Handoff(quiver, seam, settings)
        except OSError as error:
            raise _disk_failed("read", quiver, error) from error
        self.calls = calls
        self._addresses: dict[str, str | None] = {}
        self._changing = threading.Lock()
        self._driver = HandoffDriver(self.handoff, seam.clock, self.connect)
        self._is_configured = self._is_running = self._is_closed = False

    def configure(self, addresses: Mapping[str, str | None]) -> None:
        """Take over names and addresses; from the first time on data is kept for every name.

        What is said again changes nothing: a node that was forgotten meanwhile stays forgotten.
        """
        with self._changing:
            is_same = self._is_configured and addresses == self._addresses
            if self._is_closed or is_same:
                return
            # If it fails half-way, also what was there before has to be said again.
            self._is_configured = False
            try:
                self.handoff.configure(addresses)
            except OSError as error:
                raise _disk_failed("written", self.handoff.quiver, error) from error
            moved = [n for n, old in self._addresses.items() if addresses.get(n, old) != old]
            self._addresses, self._is_configured = dict(addresses), True
            for name in moved:
                self._driver.reconnect(name)
            if self._is_running:
                self._driver.refresh()

    def start(self) -> None:
        """Begin to send."""
        with self._changing:
            self._is_running = True
            self._driver.refresh()

    def reconnect(self) -> None:
        """Connect to all data nodes again: certificates may have changed."""
        for name in list(self._addresses):
            self._driver.reconnect(name)

    def connect(self, node: str) -> FlightTransport:
        """Return a new connection to a data node; the caller closes it."""
        address = self._addresses.get(node)
        if address is None:
            configured = ", ".join(self._addresses) or "none"
            raise BadInput(
                f"nobody knows where data node {node!r} is now",
                hint=f"configured are {configured}; does DNS still list it?",
            )
        return self.calls.connect(address)

    def close(self, grace_s: float) -> None:
        """Begin nothing any more, and wait so long for what is under way; what waits, waits."""
        with self._changing:
            self._is_closed = True
        self._driver.close(grace_s)


def _disk_failed(verb: str, quiver: Quiver, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"who the data nodes are cannot be {verb}: {error.strerror}",
        hint="check the disk",
        path=str(quiver.directory),
    )
