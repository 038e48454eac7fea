"""The gateway that is killed: the runtime of `holdfast up`, with a moment chosen at which it dies.

Run as `python -m holdfast.prove.gateway_victim` with a `GatewayTask` as JSON. It prints "ready"
when its receivers listen, and ends cleanly after SIGTERM; most never get that far.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict, dataclass

import yaml

from holdfast.graph.loader import load
from holdfast.graph.runtime import Gateway
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real

SINGLE, BATCH = "single", "batch"
# What one request of each destination holds: all that a kill may bring twice.
EVENTS_PER_REQUEST = {SINGLE: 1, BATCH: 20}


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
        return [sys.executable, "-m", "holdfast.prove.gateway_victim", json.dumps(asdict(self))]


def graph_file(
    port: int, backend_ports: dict[str, int], data_dir: str, append_timeout_s: float
) -> str:
    """Return the configuration: small files and short pauses, so that every step happens often."""
    delivery = {"retry_max": "100ms", "send_timeout": "5s"}
    dialects = {SINGLE: "single", BATCH: "batch_array"}
    exporters = {
        name: {
            "kind": "exporter",
            "type": "http",
            "config": {
                "url": f"http://127.0.0.1:{backend_ports[name]}",
                "dialect": dialects[name],
                "max_batch_events": EVENTS_PER_REQUEST[name],
            },
            "delivery": delivery,
        }
        for name in dialects
    }
    nodes = {
        "lineage": {
            "kind": "receiver",
            "type": "openlineage",
            "config": {"listen": f"127.0.0.1:{port}"},
            "to": ["buffer"],
        },
        "buffer": {
            "kind": "processor",
            "type": "quiver",
            "config": {
                "append": {"timeout": append_timeout_s},
                "segment": {"target_size": "1MB", "max_open_duration": "50ms"},
                "wal": {"file_size": "256KB"},
            },
            "to": list(exporters),
        },
        **exporters,
    }
    return yaml.safe_dump({"data_dir": data_dir, "drain": "20s", "nodes": nodes}, sort_keys=False)


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
    gateway = Gateway(load(task.config_path).graph, seam)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await gateway.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await stop.wait()
    await gateway.stop()


if __name__ == "__main__":
    import uvloop

    uvloop.run(run(GatewayTask(**json.loads(sys.argv[1]))))
