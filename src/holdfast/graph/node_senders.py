"""What an exporter `nodes` runs in one process: a sender for each quiver that may hold parts.

Each worker has a quiver of its own, and maybe some of former workers, so a data node has as many
senders as there are quivers. What is bounded for all of them is divided among them. Where a file or
DNS says who the data nodes are, a thread looks there again and again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.graph.model import Node
from holdfast.graph.worker_quivers import WorkerQuivers
from holdfast.handoff import settings
from holdfast.handoff.discovery import NodeSources
from holdfast.handoff.membership import Membership
from holdfast.handoff.runner import HandoffRunner, NodeCalls
from holdfast.quiver.base import names
from holdfast.quiver.cores import core_ids
from holdfast.seam import Seam

# How long a start waits for the first answer of DNS: data is kept for a data node that was never
# met from the moment it is known.
FIRST_LOOK_S = 5.0

log = logging.getLogger("holdfast.graph")


class NodeSenders:
    """The senders behind one exporter, in this process."""

    def __init__(
        self, node: Node, store: WorkerQuivers, workers: int, seam: Seam, base_dir: Path
    ) -> None:
        """Keep data for every data node from now on; blocks.

        Subscribers are registered before anything is sent, or received: what comes in between
        would otherwise belong to no data node.
        """
        self.node = node
        config = _config_of(node)
        calls = NodeCalls(config.scheme, config.client_settings(base_dir), config.probe_timeout)
        shares = config.as_settings(workers * len(store.cores))
        self._sources = NodeSources(config, base_dir, seam.disk, calls.connect)
        self.runners = tuple(
            HandoffRunner(node.name, core.core_id, core.quiver, seam, shares, calls)
            for core in store.cores
        )
        self._closing, self._looked = threading.Event(), threading.Event()
        # Guards the sources.
        self._looking = threading.Lock()
        self._configure()
        self._inherit(store, seam)
        self._watch: threading.Thread | None = None
        if self._sources.is_changing:
            name = f"nodes-{node.name}"
            self._watch = threading.Thread(target=self._keep_looking, name=name, daemon=True)
            self._watch.start()
            self._looked.wait(FIRST_LOOK_S)

    def _configure(self, *, again: bool = False) -> None:
        """Take over who the data nodes are, by the last look or by another one.

        One look for all runners: two looks at DNS may differ, and then the quivers of one gateway
        would place the same blocks on different nodes.
        """
        with self._looking:
            membership = self.runners[0].handoff.membership
            look = self._sources.look if again else self._sources.known
            addresses = look(membership)
        for runner in self.runners:
            if not self._closing.is_set():
                runner.configure(addresses)

    def _inherit(self, store: WorkerQuivers, seam: Seam) -> None:
        """Let a new worker's quiver know the data nodes that an operator added to the others."""
        root = store.main.quiver.directory.parent
        for core_id in core_ids(seam.disk, root):
            beside = Membership(seam.disk, root / names.core_dir(core_id))
            for name, address in beside.added.items():
                for runner in self.runners:
                    if name not in runner.handoff.membership.bound:
                        runner.take_in(name, address)

    def _keep_looking(self) -> None:
        while not self._closing.is_set():
            try:
                self._configure(again=True)
            except HoldfastError as error:
                log.warning("%s: data nodes stay as they were: %s", self.node.name, error)
            except Exception:
                log.exception("%s: who the data nodes are was not found out", self.node.name)
            self._looked.set()
            self._closing.wait(self._sources.config.nodes_refresh)

    def can_become(self, node: Node) -> bool:
        """Whether only names and addresses differ: those change without a stop."""
        here, there = _config_of(self.node), _config_of(node)
        return self.node.name == node.name and here == there.model_copy(
            update={"nodes": here.nodes}
        )

    def become(self, node: Node) -> None:
        """Take over names and addresses, and files that may have changed; blocks."""
        config = _config_of(node)
        with self._looking:
            self._sources.config = config
        self._configure()
        self.node = node
        if config.tls is not None:
            for runner in self.runners:
                runner.reconnect()

    def start(self) -> None:
        """Begin to send."""
        for runner in self.runners:
            runner.start()

    async def stop(self, drain_s: float) -> None:
        """Send nothing more, and wait so long for what is under way."""
        self._closing.set()
        await asyncio.gather(*(asyncio.to_thread(one.close, drain_s) for one in self.runners))


def _config_of(node: Node) -> settings.Config:
    config = node.config
    assert isinstance(config, settings.Config), f"BUG: {node}"
    return config
