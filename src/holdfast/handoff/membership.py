"""What is known of data nodes across restarts: who they are, and who owns what since when.

A node has a name from the configuration, and data is kept for it from that moment on, whether it
was ever met or not. Who answers under that name first is bound to it for good, by the id that it
keeps in its own folder. Another id at the same address is another node: it gets nothing until an
operator says that it takes the place of the first (`rebind`).

    QUIVER/handoff/MEMBERS     one line of JSON and one line with its checksum

A node that an operator adds while the gateway runs is here with its address, and nowhere else; as
soon as a configuration names it, that says where it is.

The file is replaced as a whole. If it is lost or damaged, names are bound anew at the next contact,
and the present placement counts from the beginning; what nodes have, they say themselves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from xxhash import xxh3_64_hexdigest

from holdfast.errors import BadInput, UnknownFormat
from holdfast.handoff.owners import Owners, Placement
from holdfast.handoff.points import HandoffPoint
from holdfast.quiver.base import names
from holdfast.quiver.ledger.subscriber import check_name
from holdfast.replica.messages import wrong_node
from holdfast.seam.disk import Disk, read_pages, write_file

TEMPORARY = f"{names.MEMBERS}.tmp"
VERSION = 1
# A subscriber's name has at most 64 characters.
SUBSCRIBER_PREFIX = "node."

log = logging.getLogger("holdfast.handoff")


def subscriber_of(name: str) -> str:
    """Return the subscriber that holds what a data node has not got yet."""
    return check_name(SUBSCRIBER_PREFIX + name)


@dataclass(frozen=True)
class NodeBinding:
    """A data node by its name."""

    # None: it was never met.
    node_id: str | None = None
    # Nothing new is placed on it.
    is_draining: bool = False
    # Of one that an operator added while the gateway ran; None: a configuration says where it is.
    address: str | None = None


class Membership:
    """Names, ids and placements, as they are on disk. The caller holds one lock around it."""

    def __init__(self, disk: Disk, root: PurePath) -> None:
        self._disk = disk
        self._folder = root / names.HANDOFF_DIR
        self.bound: dict[str, NodeBinding] = {}
        self.owners = Owners([])
        fields = self._read()
        if fields is not None:
            self.bound = {
                # Files from before nodes could be added at run time have no addresses.
                name: NodeBinding(one["node_id"], one["is_draining"], one.get("address"))
                for name, one in fields["nodes"].items()
            }
            self.owners = Owners([Placement.from_fields(one) for one in fields["placements"]])

    # ------------------------------------------------------------------- asking

    def name_of(self, node_id: str) -> str | None:
        """Return the name that an id is bound to."""
        return next((name for name, one in self.bound.items() if one.node_id == node_id), None)

    @property
    def added(self) -> dict[str, str]:
        """Names to addresses of the nodes that an operator added, and no configuration names."""
        return {name: one.address for name, one in self.bound.items() if one.address is not None}

    def is_unmet(self, name: str) -> bool:
        """Whether nobody has answered under a name yet."""
        return name not in self.bound or self.bound[name].node_id is None

    def refusal(self, name: str, node_id: str) -> str | None:
        """Return why whoever answers under a name gets nothing; None if it is the right one."""
        known = self.bound[name].node_id
        if known is not None and known != node_id:
            return wrong_node(node_id, known)
        other = self.name_of(node_id)
        if other not in (None, name):
            return (
                f"node {node_id} is bound to the name {other!r}: two names lead to one node; "
                "forget the one that is not to stay"
            )
        return None

    # ----------------------------------------------------------------- changing

    def bind(self, name: str, node_id: str) -> None:
        """Bind an id to a name, durably; it must not be refused."""
        if self.bound[name].node_id != node_id:
            self._change({**self.bound, name: replace(self.bound[name], node_id=node_id)})

    def unbind(self, name: str) -> None:
        """Let whoever answers next take the place of a node, durably."""
        self._require(name)
        self._change({**self.bound, name: replace(self.bound[name], node_id=None)})

    def add(self, name: str, placement: Placement, address: str | None = None) -> None:
        """Add a name, or an orphan's anew, and the placement that counts from now on."""
        added = replace(self.bound.get(name, NodeBinding()), address=address)
        self._change({**self.bound, name: added}, self.owners.changed(placement))

    def keep(self, names: Collection[str], placement: Placement | None = None) -> None:
        """Know names again that were lost with this file, or half forgotten."""
        owners = self.owners if placement is None else self.owners.changed(placement)
        self._change({**dict.fromkeys(names, NodeBinding()), **self.bound}, owners)

    def take_over(self, names: Collection[str]) -> None:
        """Note that a configuration says from now on where some nodes are."""
        taken = self.added.keys() & names
        known = {name: replace(self.bound[name], address=None) for name in taken}
        self._change({**self.bound, **known})

    def drain(self, name: str, placement: Placement) -> None:
        """Place nothing on a node from now on; what waits for it is still sent."""
        self._require(name)
        drained = replace(self.bound[name], is_draining=True)
        self._change({**self.bound, name: drained}, self.owners.changed(placement))

    def replace(self, placement: Placement) -> None:
        """Let another placement count from now on."""
        self._change(self.bound, self.owners.changed(placement))

    def forget(self, name: str, owners: Owners) -> None:
        """Remove a name."""
        self._change({key: one for key, one in self.bound.items() if key != name}, owners)

    def _require(self, name: str) -> None:
        if name not in self.bound:
            raise BadInput(
                f"no data node {name!r}", hint=f"there are {', '.join(self.bound) or 'none'}"
            )

    # --------------------------------------------------------------------- file

    def _change(self, bound: dict[str, NodeBinding], owners: Owners | None = None) -> None:
        """Write first, believe second: a disk that fails changes nothing."""
        owners = owners or self.owners
        if bound == self.bound and owners.placements == self.owners.placements:
            return
        self._write(
            {
                "version": VERSION,
                "nodes": {
                    name: {
                        "node_id": one.node_id,
                        "is_draining": one.is_draining,
                        **({} if one.address is None else {"address": one.address}),
                    }
                    for name, one in bound.items()
                },
                "placements": [one.to_fields() for one in owners.placements],
            }
        )
        self.bound, self.owners = bound, owners

    def _write(self, fields: dict[str, Any]) -> None:
        disk, temporary = self._disk, self._folder / TEMPORARY
        if not disk.exists(self._folder):
            disk.make_dir(self._folder, HandoffPoint.MAKE_DIR)
        disk.sync_dir(self._folder.parent, HandoffPoint.SYNC_ROOT)
        if disk.exists(temporary):
            disk.unlink(temporary, HandoffPoint.SWEEP)
        line = json.dumps(fields, separators=(",", ":")).encode()
        content = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
        write_file(disk, temporary, [content], "handoff.members")
        disk.rename(temporary, self._folder / names.MEMBERS, HandoffPoint.MEMBERS_RENAME)
        disk.sync_dir(self._folder, HandoffPoint.MEMBERS_SYNC_DIR)

    def _read(self) -> dict[str, Any] | None:
        path = self._folder / names.MEMBERS
        if not self._disk.exists(path):
            return None
        data = bytes(read_pages(self._disk, path).view)
        line, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
        if not line or xxh3_64_hexdigest(line).encode() != checksum:
            log.warning("%s is damaged: data nodes are bound anew at the next contact", path)
            return None
        fields: dict[str, Any] = json.loads(line)
        if fields["version"] != VERSION:
            raise UnknownFormat(
                f"MEMBERS is of version {fields['version']}, this program reads {VERSION}",
                hint="use the program that wrote it",
                path=str(path),
            )
        return fields
