"""Prove handoff: three data nodes and their sender, killed, stopped and cut off under load.

Kills at a named point strike the sender, or a node: at a step of its disk, or between a node's
answer and the ledger. At a random moment a node or the sender is killed, or a node is stopped for
longer than anybody waits for it, or its cable is pulled (`--partitions`). It stays so for a while,
often until the next strike has struck another. In the end everybody is left alone until each owner
has everything, and the folders of all nodes are compared with the clients' journals.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from holdfast.handoff.owners import Owners, Placement
from holdfast.handoff.points import HandoffPoint
from holdfast.node.points import NodePoint
from holdfast.prove.cables import Cables, cables
from holdfast.prove.handoff_checker import HandoffVerdict, NodeFolders, check_handoff
from holdfast.prove.handoff_victim import BLOCK_SEQS, REPLICAS, SENDER_CONFIG, HandoffTask
from holdfast.prove.quiver_victim import names_of
from holdfast.prove.runner import RANDOM, ProofOptions, ProofProcesses, ProofRunner, free_ports
from holdfast.prove.victim import QUIVER_SITES, Death
from holdfast.quiver import Outcome, Quiver

NODES = ("a", "b", "c")
CLIENTS = 4
# How long a process is left to reach its point, and how long nothing may arrive before all has.
POINT_SECONDS_MAX = 8.0
DRAIN_SECONDS_MAX = 120.0
POLL_SECONDS = 0.5
# How long a node is stopped, or its cable pulled, at least and at most.
AWAY_SECONDS = (0.2, 5.0)
_SENDER = "sender"
_PORT = 8816

# What a node that takes parts and is told what it does not own reaches again and again. The others
# need retention, a failing disk, or the first start: the crash matrix of the tests has them all.
_NOT_UNDER_LOAD = (NodePoint.STAGE_REMOVE, NodePoint.ADOPT_UNDO)
NODE_SITES = (
    NodePoint.RECOVER_SYNC_DIR,
    *(
        point
        for point in NodePoint
        if point.startswith(("node.stage", "node.adopt", "node.seen"))
        and point not in _NOT_UNDER_LOAD
    ),
)
# Nodes are told what is not theirs by a sender that has just begun, and once a minute.
_TOLD = "node.seen"
_SEND_SITES = (HandoffPoint.ANSWERED, HandoffPoint.COMMITTED)


class HandoffProver:
    """Three data nodes, and a sender with its clients."""

    last_step = "every owner has to get everything"

    def __init__(self, options: ProofOptions, wires: Cables | None) -> None:
        self._options = options
        self._processes = ProofProcesses(options.directory, options.seed)
        self._dice = self._processes.dice
        self._wires = wires
        self._token = secrets.token_hex(16)
        if wires is None:
            ports = free_ports(len(NODES))
            self._addresses = {n: f"127.0.0.1:{p}" for n, p in zip(NODES, ports, strict=True)}
        else:
            self._addresses = {name: f"{wires.host(name)}:{_PORT}" for name in NODES}
        self._node_dirs = {name: options.data_dir / f"node-{name}" for name in NODES}
        self._incarnations = 0
        # By node that is away: how it comes back.
        self._away: dict[str, Callable[[], None]] = {}
        self._owners = Owners([Placement(0, NODES, REPLICAS, BLOCK_SEQS)])

    # ----------------------------------------------------------------- starting

    def start(self) -> None:
        """Start the nodes, then the sender."""
        for name in NODES:
            self._start_node(name)
        self._start_sender()

    def _start_node(self, name: str, death: Death | None = None) -> None:
        arguments = (str(self._node_dirs[name]), self._addresses[name], self._token)
        inside = () if self._wires is None else self._wires.inside(name)
        self._processes.start(name, "node_victim", *arguments, death=death, inside=inside)

    def _start_sender(self, death: Death | None = None, clients: int = CLIENTS) -> None:
        task = HandoffTask(
            quiver_dir=str(self._options.data_dir / "quiver"),
            journal_dir=str(self._processes.journals),
            incarnation=self._incarnations,
            clients=clients,
            seed=self._options.seed,
            locations={name: f"grpc://{where}" for name, where in self._addresses.items()},
            token=self._token,
        )
        self._incarnations += 1
        self._processes.start(_SENDER, "handoff_victim", task.argument(), death=death)

    # ------------------------------------------------------------------ killing

    def strike_at_point(self) -> str | None:
        """Let the sender or a node run into a point; None if it was not reached in time."""
        self._bring_some_back()
        if self._dice.random() < 0.5:  # noqa: PLR2004
            return self._sender_at_point()
        return self._node_at_point()

    def _sender_at_point(self) -> str | None:
        sites = _SEND_SITES if self._dice.random() < 0.5 else QUIVER_SITES  # noqa: PLR2004
        point = self._dice.choice(sites)
        self._processes.stop(_SENDER)
        self._start_sender(Death.at(point, self._dice))
        is_reached = self._processes.dies(_SENDER, POINT_SECONDS_MAX)
        self._start_sender()
        return point if is_reached else None

    def _node_at_point(self) -> str | None:
        point, name = self._dice.choice(NODE_SITES), self._present_node()
        self._processes.stop(name)
        is_told = point.startswith(_TOLD)
        self._start_node(name, Death.at(point, self._dice, nth_max=1 if is_told else 12))
        if is_told:
            self._processes.kill(_SENDER)
            self._start_sender()
        is_reached = self._processes.dies(name, POINT_SECONDS_MAX)
        self._away[name] = lambda: self._start_node(name)
        return point if is_reached else None

    def strike_at_random(self) -> str:
        """Kill, stop or cut off somebody at a random moment; return what was done."""
        self._bring_some_back()
        time.sleep(self._dice.uniform(0.05, 1.0))
        kinds = [self._kill_node, self._stop_node, self._kill_sender, self._kill_both]
        if self._wires is not None:
            kinds += [self._cut_off, self._cut_off]
        done = self._dice.choice(kinds)()
        time.sleep(self._dice.uniform(0.0, 1.0))
        return f"{RANDOM}: {done}"

    def _kill_node(self) -> str:
        name = self._present_node()
        self._processes.kill(name)
        self._away[name] = lambda: self._start_node(name)
        return "node killed"

    def _kill_sender(self) -> str:
        self._processes.kill(_SENDER)
        self._start_sender()
        return "sender killed"

    def _kill_both(self) -> str:
        self._kill_node()
        self._kill_sender()
        return "node and sender killed"

    def _stop_node(self) -> str:
        name = self._present_node()
        self._processes.signal(name, signal.SIGSTOP)
        self._away[name] = lambda: self._processes.signal(name, signal.SIGCONT)
        time.sleep(self._dice.uniform(*AWAY_SECONDS))
        return "node stopped"

    def _cut_off(self) -> str:
        wires, name = self._wires, self._present_node()
        assert wires is not None, "BUG: no cable to pull"
        wires.pull(name)
        self._away[name] = lambda: wires.plug(name)
        time.sleep(self._dice.uniform(*AWAY_SECONDS))
        return "node cut off"

    def _present_node(self) -> str:
        """Return a node to strike; all come back first if there is none."""
        if len(self._away) == len(NODES):
            self._bring_back(list(self._away))
        return self._dice.choice([name for name in NODES if name not in self._away])

    def _bring_some_back(self) -> None:
        self._bring_back([name for name in self._away if self._dice.random() < 0.7])  # noqa: PLR2004

    def _bring_back(self, names: list[str]) -> None:
        for name in names:
            self._away.pop(name)()

    # ------------------------------------------------------------------- ending

    def settle(self) -> HandoffVerdict:
        """Let nothing new come, wait until every owner has everything, stop all, and compare."""
        self._bring_back(list(self._away))
        self._processes.stop(_SENDER)
        self._start_sender(clients=0)
        folders = NodeFolders(names_of)
        verdict = self._check(folders)
        deadline_s = time.monotonic() + DRAIN_SECONDS_MAX
        while verdict.lost and time.monotonic() < deadline_s:
            time.sleep(POLL_SECONDS)
            before, verdict = verdict, self._check(folders)
            if verdict.lost < before.lost:
                deadline_s = time.monotonic() + DRAIN_SECONDS_MAX
        # Its ledger may be behind the nodes: it ends when they have told it all.
        if verdict.lost or not self._processes.dies(_SENDER, DRAIN_SECONDS_MAX, may_end=True):
            self._processes.stop(_SENDER)
        for name in NODES:
            self._processes.stop(name)
        # Once more, every byte: what arrived last may have arrived twice.
        verdict = self._check(NodeFolders(names_of))
        verdict.equation = self._balances_hold()
        return verdict

    def _check(self, folders: NodeFolders) -> HandoffVerdict:
        return check_handoff(self._processes.journals, self._node_dirs, self._owners, folders)

    def _balances_hold(self) -> bool:
        """Whether the ledger says, too, that nothing was given up: accepted = sent + not owned."""
        with Quiver.open(self._options.data_dir / "quiver", SENDER_CONFIG) as quiver:
            balances = [quiver.balance(f"node.{name}") for name in NODES]
        settled = (Outcome.ACKED, Outcome.FILTERED)
        return all(
            balance.holds
            and sum(balance.outcomes[one].events for one in settled) == balance.accepted.events
            for balance in balances
        )

    def close(self) -> None:
        """Leave no process behind."""
        self._processes.close()


def prove_handoff(options: ProofOptions) -> dict[str, Any]:
    """Kill data nodes and their sender again and again under load, and check every folder."""
    runner = ProofRunner(options)
    with cables(NODES) if options.partitions else nullcontext() as wires:
        verdict = runner.run(HandoffProver(options, wires), options.kills, options.seconds)
    return runner.report("handoff", verdict.ok, asdict(verdict))
