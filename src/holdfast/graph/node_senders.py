"""What an exporter `nodes` runs in one process: a sender for each quiver that may hold parts.

Each worker has a quiver of its own, and maybe some of former workers, so a data node has as many
senders as there are quivers. What is bounded for all of them is divided among them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.graph.model import Node
from holdfast.graph.worker_quivers import WorkerQuivers
from holdfast.handoff import settings
from holdfast.handoff.runner import HandoffRunner, NodeCalls
from holdfast.seam import Seam


class NodeSenders:
    """The senders behind one exporter, in this process."""

    def __init__(
        self, node: Node, store: WorkerQuivers, workers: int, seam: Seam, base_dir: Path
    ) -> None:
        """Keep data for every data node from now on; blocks."""
        self.node = node
        config = _config_of(node)
        calls = NodeCalls(config.scheme, config.client_settings(base_dir), config.probe_timeout)
        shares = config.as_settings(workers * len(store.cores))
        self.runners = tuple(
            HandoffRunner(node.name, core.core_id, core.quiver, seam, shares, calls)
            for core in store.cores
        )
        for runner in self.runners:
            runner.configure(config.nodes)

    def can_become(self, node: Node) -> bool:
        """Whether only names and addresses differ: those change without a stop."""
        here, there = _config_of(self.node), _config_of(node)
        return self.node.name == node.name and here == there.model_copy(
            update={"nodes": here.nodes}
        )

    def become(self, node: Node) -> None:
        """Take over names and addresses; blocks."""
        self.node = node
        for runner in self.runners:
            runner.configure(_config_of(node).nodes)

    def start(self) -> None:
        """Begin to send."""
        for runner in self.runners:
            runner.start()

    async def stop(self, drain_s: float) -> None:
        """Send nothing more, and wait so long for what is under way."""
        await asyncio.gather(*(asyncio.to_thread(one.close, drain_s) for one in self.runners))


def _config_of(node: Node) -> settings.Config:
    config = node.config
    assert isinstance(config, settings.Config), f"BUG: {node}"
    return config
