"""Prove handoff: three data nodes and the gateway that sends to them, struck under load.

Kills at a named point strike the gateway, or a node: at a step of its disk, or between a node's
answer and the ledger. At a random moment a node or the gateway is killed, or a node is stopped for
longer than anybody waits for it, or its cable is pulled (`--partitions`). It stays so for a while,
often until the next strike has struck another. Clients are never killed: they keep posting to
whoever listens. In the end this process sends what is left, and the folders of all nodes are
compared with the clients' journals.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from holdfast.graph.loader import load
from holdfast.graph.paths import plan
from holdfast.handoff.driver import HandoffDriver
from holdfast.handoff.monitor import MonitorSettings
from holdfast.handoff.owners import Owners, Placement
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.scheduler import SchedulerSettings
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.node.points import NodePoint
from holdfast.prove.cables import Cables, cables
from holdfast.prove.handoff_checker import HandoffVerdict, NodeFolders, check_handoff
from holdfast.prove.journal import UNKNOWN
from holdfast.prove.lineage import name_of
from holdfast.prove.runner import RANDOM, ProofOptions, ProofProcesses, ProofRunner, free_ports
from holdfast.prove.victim import QUIVER_SITES, Death
from holdfast.quiver import Bundle, Outcome, Quiver
from holdfast.remote import ClientSettings
from holdfast.replica.flight import FlightTransport
from holdfast.seam import Seam

NODES = ("a", "b", "c")
# Two of three nodes own a block, and a block has a few parts: all nodes own, and all do not own.
REPLICAS = 2
BLOCK_SEQS = 200
CLIENTS = 8
# What a call may take, a put beside its bytes: less than the longest stop of a node, so that a put
# is given up which the node adopts later.
CALL_PATIENCE_S = 2.0
# How long a process is left to reach its point, and how long the last sending may take.
POINT_SECONDS_MAX = 8.0
DRAIN_SECONDS_MAX = 300.0
POLL_SECONDS = 0.1
# How long a node is stopped, or its cable pulled, at least and at most.
AWAY_SECONDS = (0.2, 5.0)
_GATEWAY, _CLIENTS = "gateway", "clients"
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
# Nodes are told what is not theirs by a gateway that has just begun, and once a minute.
_TOLD = "node.seen"
_SEND_SITES = (HandoffPoint.ANSWERED, HandoffPoint.COMMITTED)


def graph_file(port: int, data_dir: str, addresses: dict[str, str], token: str) -> str:
    """Return the configuration: small files and short pauses, so that every step happens often."""
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
                "segment": {"target_size": "1MB", "max_open_duration": "200ms"},
                "wal": {"file_size": "256KB"},
            },
            "to": ["copies"],
        },
        "copies": {
            "kind": "exporter",
            "type": "nodes",
            "config": {
                "nodes": addresses,
                "replicas": REPLICAS,
                "block": BLOCK_SEQS,
                "token": token,
                "probe_interval": "200ms",
                "timeout": CALL_PATIENCE_S,
            },
        },
    }
    return yaml.safe_dump({"data_dir": data_dir, "drain": "5s", "nodes": nodes}, sort_keys=False)


def names_of(bundle: Bundle) -> list[str]:
    """Return the names of a bundle's events, checked against their content."""
    return [
        name_of(payload) or UNKNOWN
        for batch in bundle.slots.values()
        for payload in batch.column("payload").to_pylist()
    ]


class HandoffProver:
    """Three data nodes, and a gateway with its clients."""

    last_step = "every owner has to get everything"

    def __init__(self, options: ProofOptions, wires: Cables | None) -> None:
        self._options = options
        self._processes = ProofProcesses(options.directory, options.seed)
        self._dice = self._processes.dice
        self._wires = wires
        self._token = secrets.token_hex(16)
        self._port, *ports = free_ports(1 + len(NODES))
        if wires is None:
            self._addresses = {n: f"127.0.0.1:{p}" for n, p in zip(NODES, ports, strict=True)}
        else:
            self._addresses = {name: f"{wires.host(name)}:{_PORT}" for name in NODES}
        self._node_dirs = {name: options.data_dir / f"node-{name}" for name in NODES}
        self._config_path = options.directory / "gateway.yaml"
        data_dir = str(options.data_dir / "data")
        self._config_path.write_text(graph_file(self._port, data_dir, self._addresses, self._token))
        # By node that is away: how it comes back.
        self._away: dict[str, Callable[[], None]] = {}
        self._owners = Owners([Placement(0, NODES, REPLICAS, BLOCK_SEQS)])

    # ----------------------------------------------------------------- starting

    def start(self) -> None:
        """Start the nodes, the gateway, and its clients."""
        for name in NODES:
            self._start_node(name)
        self._start_gateway()
        arguments = (str(self._port), str(self._processes.journals), str(CLIENTS))
        self._processes.start(_CLIENTS, "lineage", "clients", *arguments, word=None)

    def _start_node(self, name: str, death: Death | None = None) -> None:
        arguments = (str(self._node_dirs[name]), self._addresses[name], self._token)
        inside = () if self._wires is None else self._wires.inside(name)
        self._processes.start(name, "node_victim", *arguments, death=death, inside=inside)

    def _start_gateway(self, death: Death | None = None) -> None:
        path = str(self._config_path)
        self._processes.start(_GATEWAY, "gateway_victim", "run", path, death=death)

    # ------------------------------------------------------------------ killing

    def strike_at_point(self) -> str | None:
        """Let the gateway or a node run into a point; None if it was not reached in time."""
        self._bring_some_back()
        if self._dice.random() < 0.5:  # noqa: PLR2004
            return self._gateway_at_point()
        return self._node_at_point()

    def _gateway_at_point(self) -> str | None:
        sites = _SEND_SITES if self._dice.random() < 0.5 else QUIVER_SITES  # noqa: PLR2004
        point = self._dice.choice(sites)
        self._processes.stop(_GATEWAY)
        self._start_gateway(Death.at(point, self._dice))
        is_reached = self._processes.dies(_GATEWAY, POINT_SECONDS_MAX)
        self._start_gateway()
        return point if is_reached else None

    def _node_at_point(self) -> str | None:
        """Let a node die at a point, and leave it away for a while: what it misses has to wait.

        A point about what is not a node's own is reached only when a gateway begins, so that one is
        killed as well, without notice: then both ends recover at the same time.
        """
        point, name = self._dice.choice(NODE_SITES), self._present_node()
        self._processes.stop(name)
        is_told = point.startswith(_TOLD)
        self._start_node(name, Death.at(point, self._dice, nth_max=1 if is_told else 12))
        if is_told:
            self._processes.kill(_GATEWAY)
            self._start_gateway()
        is_reached = self._processes.dies(name, POINT_SECONDS_MAX)
        self._away[name] = lambda: self._start_node(name)
        return point if is_reached else None

    def strike_at_random(self) -> str:
        """Kill, stop or cut off somebody at a random moment; return what was done."""
        self._bring_some_back()
        time.sleep(self._dice.uniform(0.05, 1.0))
        kinds = [self._kill_node, self._stop_node, self._kill_gateway, self._kill_both]
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

    def _kill_gateway(self) -> str:
        self._processes.kill(_GATEWAY)
        self._start_gateway()
        return "gateway killed"

    def _kill_both(self) -> str:
        self._kill_node()
        self._kill_gateway()
        return "node and gateway killed"

    def _stop_node(self) -> str:
        """Freeze a node. It is the worst of all: its port accepts, nothing comes back, and what was
        sent to it is adopted after its sender has given up.
        """
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
        """Let nothing new come, send what is left, stop all, and compare.

        The gateway stops before the rest is sent: a quiver has one owner, and here that is this
        process, which can wait for the very last part.
        """
        self._bring_back(list(self._away))
        self._processes.stop(_CLIENTS)
        self._processes.stop(_GATEWAY)
        (buffer,) = plan(load(self._config_path).graph)
        (core,) = buffer.directory.glob("core-*")
        balances_hold = self._send_rest(core)
        for name in NODES:
            self._processes.stop(name)
        verdict = check_handoff(
            self._processes.journals, self._node_dirs, self._owners, NodeFolders(names_of)
        )
        verdict.equation = balances_hold
        return verdict

    def _send_rest(self, core: Path) -> bool:
        """Send what is left; return whether the ledger says that nothing was given up.

        Then what was accepted is what nodes have acknowledged, and what they do not own.
        """
        settings = HandoffSettings(
            REPLICAS,
            BLOCK_SEQS,
            MonitorSettings(probe_interval_s=0.2),
            SchedulerSettings(slow_start_bytes_s=1e9),
        )
        client = ClientSettings.model_validate({"token": self._token})
        seam = Seam()
        with Quiver.open(core, seam=seam) as quiver:
            handoff = Handoff(quiver, seam, settings)
            handoff.configure(NODES)
            driver = HandoffDriver(
                handoff,
                seam.clock,
                lambda name: FlightTransport(f"grpc://{self._addresses[name]}", client),
            )
            driver.refresh()
            point, give_up_s = handoff.sync_point(), time.monotonic() + DRAIN_SECONDS_MAX
            while not handoff.reached(point).is_complete and time.monotonic() < give_up_s:
                time.sleep(POLL_SECONDS)
            driver.close()
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
    """Kill data nodes and their gateway again and again under load, and check every folder."""
    runner = ProofRunner(options)
    with cables(NODES) if options.partitions else nullcontext() as wires:
        verdict = runner.run(HandoffProver(options, wires), options.kills, options.seconds)
    return runner.report("handoff", verdict.ok, asdict(verdict))
