"""The sender that is killed: clients append to a quiver, and its parts go to data nodes.

    python -m holdfast.prove.handoff_victim TASK [DEATH]

It prints "ready" when clients append, and ends cleanly after SIGTERM; most never get that far. Its
pauses are short, so that a node which comes back is found at once, and its deadlines are shorter
than a node is stopped for: a put that is given up may still be adopted, and is then offered again.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from dataclasses import asdict, dataclass, replace

from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.monitor import MonitorSettings
from holdfast.handoff.scheduler import SchedulerSettings
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.handoff.worker import WorkerSettings
from holdfast.prove.quiver_victim import CONFIG, MB, AppendClient, QuiverTask
from holdfast.prove.victim import deadly_seam, end_with_parent, say, terminated, wait_for
from holdfast.quiver import Quiver, SegmentConfig
from holdfast.remote import ClientSettings
from holdfast.replica.flight import FlightTransport
from holdfast.seam import Seam

# What a call may take, a put beside its bytes: less than the longest stop of a node.
CALL_PATIENCE_S = 2.0
LOOK_EVERY_S = 0.1
# Two of three nodes own a block, and a block has a few parts: all nodes own, and all do not own.
REPLICAS = 2
BLOCK_SEQS = 500
SETTINGS = HandoffSettings(
    replicas=REPLICAS,
    block_seqs=BLOCK_SEQS,
    monitor=MonitorSettings(probe_interval_s=0.2, damping_min_s=0.1, damping_max_s=1.0),
    scheduler=SchedulerSettings(slow_start_bytes_s=64.0 * MB),
    worker=WorkerSettings(
        node_pause_min_s=0.05, node_pause_max_s=1.0, part_pause_min_s=0.05, part_pause_max_s=1.0
    ),
)
# A few parts a second.
SENDER_CONFIG = replace(
    CONFIG, segment=SegmentConfig(target_size_bytes=MB, max_open_duration_s=0.2)
)


@dataclass(frozen=True)
class HandoffTask:
    """What one sender has to do."""

    quiver_dir: str
    journal_dir: str
    incarnation: int
    # 0: what is there is sent, and it ends when every owner has it.
    clients: int
    seed: int
    # Of the data nodes, by name.
    locations: dict[str, str]
    token: str

    def argument(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))


def run(task: HandoffTask, seam: Seam) -> None:
    """Append and send until SIGTERM, or until its point is reached."""
    stop = terminated()
    end_with_parent()
    settings = ClientSettings.model_validate({"token": task.token, "timeout": CALL_PATIENCE_S})

    def connect(name: str) -> FlightTransport:
        return FlightTransport(task.locations[name], settings, put_patience_s=CALL_PATIENCE_S)

    with Quiver.open(task.quiver_dir, SENDER_CONFIG, seam=seam) as quiver:
        handoff = Handoff(quiver, seam, SETTINGS)
        handoff.configure(task.locations)
        driver = HandoffDriver(handoff, seam.clock, connect)
        driver.refresh()
        clients = _clients(quiver, task)
        for client in clients:
            client.start()
        say("ready")
        if clients:
            wait_for(stop)
        else:
            point = handoff.sync_point()
            while not handoff.reached(point).is_complete and not stop.wait(LOOK_EVERY_S):
                pass
        for client in clients:
            client.stop()
        for client in clients:
            client.join()
        driver.close()


def _clients(quiver: Quiver, task: HandoffTask) -> list[AppendClient]:
    work = QuiverTask(
        quiver_dir=task.quiver_dir,
        journal_dir=task.journal_dir,
        incarnation=task.incarnation,
        clients=task.clients,
        seconds=math.inf,
        seed=task.seed,
    )
    return [AppendClient(quiver, work, number, math.inf) for number in range(task.clients)]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    run(HandoffTask(**json.loads(sys.argv[1])), deadly_seam(sys.argv[2:]))
