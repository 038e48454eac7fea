"""The gateway that is killed under a pipeline: `holdfast up` itself, with a disk that has traps.

Run as `python -m holdfast.prove.dataflow_victim CONFIG`. The command is the real one, driver and
all; only the gateway's disk is another: when a trap is set (dataflow_trap.py) the process dies at
that step, before it or after it. It ends when whoever started it is gone.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.graph import runtime
from holdfast.graph.model import Graph
from holdfast.prove.dataflow_trap import GATEWAY, TRAPS, take_trap
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real

LOOK_EVERY_S = 0.05
# A trap strikes one of the next steps of its name.
NTH_MAX = 8


class TrappedDisk(FaultyDisk):
    """A disk that is looked after for traps."""

    def __init__(self) -> None:
        super().__init__(RealDisk(), [], die_for_real)
        folder = Path(os.environ[TRAPS])
        threading.Thread(target=self._look, args=(folder,), name="traps", daemon=True).start()

    def _look(self, folder: Path) -> None:
        parent = os.getppid()
        while True:
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)  # nobody is left to end it
                return
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
        super().__init__(graph, Seam(disk=TrappedDisk()), worker=worker)


if __name__ == "__main__":
    runtime.Gateway = TrappedGateway  # type: ignore[misc]
    sys.argv = ["holdfast", "up", sys.argv[1]]
    runpy.run_module("holdfast", run_name="__main__")
