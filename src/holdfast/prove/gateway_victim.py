"""The gateway that is killed: at a point chosen when it starts, or wherever a trap is set later.

    python -m holdfast.prove.gateway_victim run TASK
    python -m holdfast.prove.gateway_victim up CONFIG

`run` is the runtime of `holdfast up` with a `GatewayTask` as JSON. It prints "ready" when its
receivers listen, and ends cleanly after SIGTERM; most never get that far. `up` is the real command,
driver of pipelines and all, on a disk that looks for traps (sessions.py) and dies at that step. It
ends when whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import runpy
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.graph import runtime
from holdfast.graph.loader import load
from holdfast.graph.model import Graph
from holdfast.prove.sessions import GATEWAY, TRAPS, take_trap
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real

LOOK_EVERY_S = 0.05
# A trap strikes one of the next steps of its name.
NTH_MAX = 8


@dataclass(frozen=True)
class GatewayTask:
    """What one gateway process has to do."""

    config_path: str
    # Where to die: a step of the disk, or a moment between two effects.
    point: str | None = None
    kind: str = FaultKind.KILL_BEFORE
    nth: int = 1

    def command(self) -> list[str]:
        """Return the command line that runs this task."""
        return [
            sys.executable,
            "-m",
            "holdfast.prove.gateway_victim",
            "run",
            json.dumps(asdict(self)),
        ]


class _Death:
    """Kills this process when a named moment is reached for the nth time."""

    def __init__(self, point: str | None, nth: int) -> None:
        self._point, self._left = point, nth

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                die_for_real()


async def run(task: GatewayTask) -> None:
    """Run the gateway until SIGTERM, or until its moment comes."""
    faults = [Fault(task.point, FaultKind(task.kind), task.nth)] if task.point else []
    disk = FaultyDisk(RealDisk(), faults, die_for_real)
    seam = Seam(disk=disk, reached=_Death(task.point, task.nth))
    gateway = runtime.Gateway(load(task.config_path).graph, seam)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await gateway.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await stop.wait()
    await gateway.stop()


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
    if sys.argv[1] == "run":
        import uvloop

        uvloop.run(run(GatewayTask(**json.loads(sys.argv[2]))))
    else:
        runtime.Gateway = TrappedGateway  # type: ignore[misc]
        sys.argv = ["holdfast", "up", sys.argv[2]]
        runpy.run_module("holdfast", run_name="__main__")
