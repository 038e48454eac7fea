"""The gateway that is killed: at a point chosen when it starts, or wherever a trap is set later.

    python -m holdfast.prove.gateway_victim run CONFIG [DEATH]
    python -m holdfast.prove.gateway_victim up CONFIG

`run` is the runtime of `holdfast up`. It prints "ready" when its receivers listen, and ends cleanly
after SIGTERM; most never get that far. `up` is the real command, driver of pipelines and all, on a
disk that looks for traps (sessions.py) and dies at that step. It ends when whoever started it is
gone.
"""

from __future__ import annotations

import asyncio
import os
import random
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.graph import runtime
from holdfast.graph.loader import load
from holdfast.graph.model import Graph
from holdfast.prove.sessions import GATEWAY, TRAPS, take_trap
from holdfast.prove.victim import deadly_seam, end_with_parent, say
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real

LOOK_EVERY_S = 0.05
# A trap strikes one of the next steps of its name.
NTH_MAX = 8


async def run(config_path: str, seam: Seam) -> None:
    """Run the gateway until SIGTERM, or until its point is reached."""
    gateway = runtime.Gateway(load(config_path).graph, seam)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await gateway.start()
    say("ready")
    await stop.wait()
    await gateway.stop()


class TrappedDisk(FaultyDisk):
    """A disk on which a fault can be set while it is used."""

    def __init__(self) -> None:
        super().__init__(RealDisk(), [], die_for_real)
        folder = Path(os.environ[TRAPS])
        threading.Thread(target=self._look, args=(folder,), name="traps", daemon=True).start()

    def _look(self, folder: Path) -> None:
        while True:
            point = take_trap(folder, GATEWAY)
            if point is not None:
                self._arm(point)
            time.sleep(LOOK_EVERY_S)

    def _arm(self, point: str) -> None:
        kind = random.choice((FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER))
        with self._lock:
            nth = self._calls[point] + random.randint(1, NTH_MAX)
            self._faults = [Fault(point, kind, nth)]


class TrappedGateway(runtime.Gateway):
    """The gateway of `up`, on that disk."""

    def __init__(self, graph: Graph, seam: Seam | None = None, *, worker: int = 0) -> None:
        end_with_parent(signal.SIGTERM)
        super().__init__(graph, Seam(disk=TrappedDisk()), worker=worker)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        import uvloop

        uvloop.run(run(sys.argv[2], deadly_seam(sys.argv[3:])))
    else:
        runtime.Gateway = TrappedGateway  # type: ignore[misc]
        sys.argv = ["holdfast", "up", sys.argv[2]]
        runpy.run_module("holdfast", run_name="__main__")
