"""A sender that runs: one quiver's, with its threads and the addresses of its data nodes.

`Handoff` knows data nodes by name and says nothing of where they are; here the names get addresses,
from a configuration, from DNS, or from an operator. The order is always the same: first the name is
made durable, so that data is kept for it, then its address is known, then threads call it. Undone
half-way, a node is one that was never met, which is an ordinary state.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import BadInput, OwnerGone, StorageFailed
from holdfast.handoff.comparison import AddedNode
from holdfast.handoff.discovery import is_dns_name
from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.handoff.settings import NODES_MAX, node_address
from holdfast.quiver.quiver import Quiver
from holdfast.remote.settings import ClientSettings
from holdfast.seam import Seam

if TYPE_CHECKING:
    from holdfast.replica.flight import FlightTransport


@dataclass(frozen=True)
class NodeCalls:
    """How data nodes are called, whichever it is."""

    scheme: str
    client: ClientSettings
    probe_timeout_s: float

    def connect(self, address: str) -> FlightTransport:
        """Return the way to the data node at an address."""
        # Only now: a gateway without data nodes needs no Flight.
        from holdfast.replica.flight import FlightTransport

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
        Nodes that an operator added are there as well, unless they are named here, too.
        """
        with self._changing:
            named, addresses = addresses, {**self.handoff.membership.added, **addresses}
            is_same = self._is_configured and addresses == self._addresses
            is_same = is_same and not self.handoff.membership.added.keys() & named.keys()
            if self._is_closed or is_same:
                return
            # If it fails half-way, also what was there before has to be said again.
            self._is_configured = False
            try:
                self.handoff.configure(named)
            except OSError as error:
                raise _disk_failed("written", self.handoff.quiver, error) from error
            moved = [n for n, old in self._addresses.items() if addresses.get(n, old) != old]
            self._addresses, self._is_configured = dict(addresses), True
            for name in moved:
                self._driver.reconnect(name)
            if self._is_running:
                self._driver.refresh()

    def add(self, name: str, address: str, *, is_planned: bool = False) -> AddedNode:
        """Keep data for one more data node from now on, durably; if only planned, just look.

        One that does not answer is added all the same, as a configuration may name one that was
        never met. One that answers is refused if it can get nothing under that name.
        """
        _require_new(name, address)
        with self._changing:
            self._require_free(name, address)
            node_id, problem = self._who_is_at(address)
            if node_id is not None:
                self._require_unbound(name, node_id)
            members, quiver = self.handoff.membership, self.handoff.quiver
            if members.added.get(name) == address:
                start_seq = quiver.subscriber(subscriber_of(name)).start_seq
                return AddedNode(address, node_id, problem, False, start_seq)
            if is_planned:
                return AddedNode(address, node_id, problem, True, quiver.end_seq)
            self._take_in(name, address)
            from_seq = members.owners.placements[-1].from_seq
            return AddedNode(address, node_id, problem, True, from_seq)

    def take_in(self, name: str, address: str) -> None:
        """Keep data for a data node that was added to another sender of this gateway."""
        with self._changing:
            self._take_in(name, address)

    def _take_in(self, name: str, address: str) -> None:
        try:
            self.handoff.add(name, address)
        except OSError as error:
            raise _disk_failed("written", self.handoff.quiver, error) from error
        self._addresses[name] = address
        if self._is_running:
            self._driver.refresh()

    def _require_free(self, name: str, address: str) -> None:
        """Refuse a name or an address that is another's; the same again is no mistake."""
        known = self._addresses.get(name)
        if name in self._addresses and self.handoff.membership.added.get(name) != address:
            where = "nobody knows where now" if known is None else f"at {known}"
            raise BadInput(
                f"there is a data node {name!r} already, {where}",
                hint="choose another name; to move it, change the configuration, or forget it",
            )
        for other, taken in self._addresses.items():
            if taken == address and other != name:
                raise BadInput(
                    f"{address} is the data node {other!r}", hint="a data node has one name"
                )
        if name not in self._addresses and len(self._addresses) >= NODES_MAX:
            raise BadInput(
                f"there are {len(self._addresses)} data nodes, and no more than {NODES_MAX} can be",
                hint="forget one of them first",
            )

    def _who_is_at(self, address: str) -> tuple[str | None, str | None]:
        """Return the id of the data node at an address, or why nobody can say now."""
        with contextlib.closing(self.calls.connect(address)) as transport:
            try:
                return transport.health().node_id, None
            except OwnerGone as error:
                return None, error.message

    def _require_unbound(self, name: str, node_id: str) -> None:
        members = self.handoff.membership
        refusal = None if name not in members.bound else members.refusal(name, node_id)
        other = members.name_of(node_id)
        if other not in (None, name):
            refusal = f"the data node there is known as {other!r} ({node_id})"
        if refusal is not None:
            raise BadInput(
                refusal,
                hint="a data node has one name: use that, or start the right one at this address",
            )

    def forget(self, name: str, mode: Literal["drop", "reassign"]) -> int:
        """Remove a data node for good; return how many parts others have to get instead."""
        with self._changing:
            is_added = name in self.handoff.membership.added
            moved = self.handoff.forget(name, mode)
            if is_added:
                # No configuration names it: so nothing is to be compared with one.
                self._addresses.pop(name, None)
            return moved

    def start(self) -> None:
        """Begin to send."""
        with self._changing:
            self._is_running = True
            self._driver.refresh()

    def reconnect(self) -> None:
        """Connect to all data nodes again: certificates may have changed."""
        for name in list(self._addresses):
            self._driver.reconnect(name)

    def address_of(self, node: str) -> str | None:
        """Return where a data node is; None: nobody knows, or it is no longer configured."""
        return self._addresses.get(node)

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


def _require_new(name: str, address: str) -> None:
    """Refuse what cannot be the name or the address of a node that somebody adds."""
    subscriber_of(name)
    if is_dns_name(name):
        raise BadInput(f"{name!r} is how a node of DNS is called", hint="choose another name")
    try:
        node_address(address)
    except ValueError as error:
        raise BadInput(f"{error}"[:200], hint="write host:port, such as 10.0.0.3:8816") from None


def _disk_failed(verb: str, quiver: Quiver, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"who the data nodes are cannot be {verb}: {error.strerror}",
        hint="check the disk",
        path=str(quiver.directory),
    )
