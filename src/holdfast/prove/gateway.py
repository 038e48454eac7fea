"""Prove the gateway: clients post, two backends receive, and both ends of the pipe are killed.

Kills at a named point strike the gateway: at a step of its disk, or at a moment between a backend's
answer and the ledger. Those at a random moment strike the gateway or one of the backends. Clients
are never killed: they keep posting to whoever listens. In the end the gateway is left alone until
everything has arrived, and the journals of all involved are compared.

On a small disk both backends are away now and then, until it is full and events are refused; the
gateway is killed there, and has to start on it, and to continue when its backends are back.

What flows is said by `GatewayEnds`: lineage here, telemetry in otel.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from holdfast.deliver.context import DeliveryPoint
from holdfast.errors import CheckFailed
from holdfast.graph.loader import load
from holdfast.graph.paths import plan
from holdfast.prove.checker import KILLS, GatewayVerdict, check_gateway
from holdfast.prove.journal import ProofJournal, count_refused
from holdfast.prove.runner import RANDOM, ProofOptions, ProofProcesses, ProofRunner, free_ports
from holdfast.prove.small_disk import APPEND_TIMEOUT_S, FILL_EVERY_STRIKES, FILL_SECONDS_MAX
from holdfast.prove.victim import QUIVER_SITES, Death
from holdfast.quiver import AppendConfig, Quiver

CLIENTS = 8
# How long a gateway is left to reach its point, and how long nothing may arrive before all has.
POINT_SECONDS_MAX = 5.0
DRAIN_SECONDS_MAX = 120.0
POLL_SECONDS = 0.2
KILL_SITES = (*QUIVER_SITES, DeliveryPoint.SENT, DeliveryPoint.COMMITTED)
SINGLE, BATCH = "single", "batch"
# What one request of each destination holds: all that a kill may bring twice.
EVENTS_PER_REQUEST = {SINGLE: 1, BATCH: 20}
# Small files and short pauses, so that every step happens often.
BUFFER_SETTINGS = {
    "segment": {"target_size": "1MB", "max_open_duration": "50ms"},
    "wal": {"file_size": "256KB"},
}
DRAIN = "20s"
_GATEWAY, _CLIENTS = "gateway", "clients"


class GraphPlaces(NamedTuple):
    """What the graph file of a run depends on."""

    # Where the gateway is sent to, and by destination where it sends to.
    ports: Sequence[int]
    backend_ports: Mapping[str, int]
    data_dir: Path
    append_timeout_s: float


@dataclass(frozen=True)
class GatewayEnds:
    """Who sends to a gateway under proof, and who receives from it."""

    # The processes of both ends. Its clients are called with the gateway's ports, the folder of
    # the journals and their number; a backend by its role, with its port and journal.
    module: str
    # How many ports of the gateway there are to send to.
    ports: int
    # By destination: the role of its backend, and how many events a kill may bring twice.
    roles: Mapping[str, str]
    events_per_request: Mapping[str, int]
    # Returns the graph file: `around_buffer`, or a file of its own.
    graph: Callable[[GraphPlaces], str]
    # Clients are told no position: what each of them sent has to arrive in its own order.
    by_client: bool = False


def around_buffer(
    receiver: Callable[[Sequence[int]], Mapping[str, Any]],
    exporters: Callable[[Mapping[str, int]], Mapping[str, Mapping[str, Any]]],
) -> Callable[[GraphPlaces], str]:
    """Return what makes a graph file of a receiver, a buffer, and an exporter to each backend."""

    def graph(places: GraphPlaces) -> str:
        behind = exporters(places.backend_ports)
        buffer = {"append": {"timeout": places.append_timeout_s}, **BUFFER_SETTINGS}
        nodes = {
            "receiver": {"kind": "receiver", **receiver(places.ports), "to": ["buffer"]},
            "buffer": {"kind": "processor", "type": "quiver", "config": buffer, "to": list(behind)},
            **{name: {"kind": "exporter", **exporter} for name, exporter in behind.items()},
        }
        tree = {"data_dir": str(places.data_dir), "drain": DRAIN, "nodes": nodes}
        return yaml.safe_dump(tree, sort_keys=False)

    return graph


def _lineage_receiver(ports: Sequence[int]) -> Mapping[str, Any]:
    return {"type": "openlineage", "config": {"listen": f"127.0.0.1:{ports[0]}"}}


def _lineage_exporters(backend_ports: Mapping[str, int]) -> Mapping[str, Mapping[str, Any]]:
    dialects = {SINGLE: "single", BATCH: "batch_array"}
    return {
        name: {
            "type": "http",
            "config": {
                "url": f"http://127.0.0.1:{backend_ports[name]}",
                "dialect": dialect,
                "max_batch_events": EVENTS_PER_REQUEST[name],
            },
            "delivery": {"retry_max": "100ms", "send_timeout": "5s"},
        }
        for name, dialect in dialects.items()
    }


LINEAGE_ENDS = GatewayEnds(
    module="lineage",
    ports=1,
    roles={SINGLE: "backend", BATCH: "backend"},
    events_per_request=EVENTS_PER_REQUEST,
    graph=around_buffer(_lineage_receiver, _lineage_exporters),
)


class GatewayProver:
    """A gateway, its two backends and its clients."""

    last_step = "everything has to arrive"

    def __init__(self, options: ProofOptions, ends: GatewayEnds = LINEAGE_ENDS) -> None:
        self._options = options
        self._ends = ends
        self._processes = ProofProcesses(options.directory, options.seed)
        self._dice = self._processes.dice
        self._journals = self._processes.journals
        ports = free_ports(ends.ports + len(ends.roles))
        self._ports = ports[: ends.ports]
        self._backend_ports = dict(zip(ends.roles, ports[ends.ports :], strict=True))
        self._lives: Counter[str] = Counter()
        self._strikes_at_random = 0
        self._config_path = options.directory / "gateway.yaml"
        self._config_path.write_text(self._graph_file())
        self._kills = ProofJournal(self._journals / KILLS)

    def _graph_file(self) -> str:
        timeout_s = APPEND_TIMEOUT_S if self._options.fills_disk else AppendConfig.timeout_s
        data_dir = self._options.data_dir / "data"
        places = GraphPlaces(self._ports, self._backend_ports, data_dir, timeout_s)
        return self._ends.graph(places)

    # ----------------------------------------------------------------- starting

    def start(self) -> None:
        """Start backends, gateway and clients, in this order: nothing may be refused at first."""
        for name in self._backend_ports:
            self._start_backend(name)
        self._start_gateway()
        arguments = (*map(str, self._ports), str(self._journals), str(CLIENTS))
        self._processes.start(_CLIENTS, self._ends.module, "clients", *arguments, word=None)

    def _start_backend(self, name: str) -> None:
        self._lives[name] += 1
        journal = str(self._journals / f"{self._lives[name]:04d}.{name}")
        port = str(self._backend_ports[name])
        self._processes.start(name, self._ends.module, self._ends.roles[name], port, journal)

    def _start_gateway(self, death: Death | None = None) -> None:
        path = str(self._config_path)
        self._processes.start(_GATEWAY, "gateway_victim", "run", path, death=death)

    # ------------------------------------------------------------------ killing

    def _note_kill(self) -> None:
        """Write down that something is dead now: it explains what arrives twice after it."""
        self._kills.note(time.monotonic_ns())

    def _restart_gateway(self) -> None:
        """Start it after its death.

        Noted before and behind: what it had sent may still be read by a backend when it is dead.
        """
        self._note_kill()
        self._start_gateway()
        self._note_kill()

    def strike_at_point(self) -> str | None:
        """Let the gateway run into a point; return it, or None if it was not reached in time."""
        point = self._dice.choice(KILL_SITES)
        self._processes.stop(_GATEWAY)
        self._start_gateway(Death.at(point, self._dice))
        is_reached = self._processes.dies(_GATEWAY, POINT_SECONDS_MAX)
        self._restart_gateway()
        return point if is_reached else None

    def strike_at_random(self) -> str:
        """Kill the gateway or a backend at a random moment; return which it was."""
        self._strikes_at_random += 1
        if self._options.fills_disk and self._strikes_at_random % FILL_EVERY_STRIKES == 1:
            return self._strike_on_full_disk()
        victim = self._dice.choice((_GATEWAY, _GATEWAY, *self._backend_ports))
        time.sleep(self._dice.uniform(0.05, 1.0))
        self._processes.kill(victim)
        if victim == _GATEWAY:
            self._restart_gateway()
        else:
            self._note_kill()
            time.sleep(self._dice.uniform(0.0, 0.5))
            self._start_backend(victim)
        return f"{RANDOM}: {victim}"

    def _strike_on_full_disk(self) -> str:
        """Keep the backends away until the disk is full, and kill the gateway there."""
        for name in self._backend_ports:
            self._processes.kill(name)
        self._note_kill()
        refused = self.refused_disk_full()
        deadline_s = time.monotonic() + FILL_SECONDS_MAX
        while self.refused_disk_full() == refused:
            if time.monotonic() > deadline_s:
                raise CheckFailed(
                    f"the disk was not full within {FILL_SECONDS_MAX:.0f} s",
                    hint="name a smaller disk",
                )
            time.sleep(POLL_SECONDS)
        time.sleep(self._dice.uniform(0.0, APPEND_TIMEOUT_S))
        self._processes.kill(_GATEWAY)
        self._restart_gateway()
        for name in self._backend_ports:
            self._start_backend(name)
        return f"{RANDOM}: full disk"

    def refused_disk_full(self) -> int:
        """Return how many requests were refused because the disk was full."""
        return count_refused(self._journals, " 503 the disk ")

    # ------------------------------------------------------------------- ending

    def settle(self) -> GatewayVerdict:
        """Stop the clients, wait until everything has arrived, stop the rest, and compare."""
        self._processes.stop(_CLIENTS)
        # As long as something arrives there is no hurry: what is looked for is an event that never
        # comes, on a machine of any speed.
        deadline_s = time.monotonic() + DRAIN_SECONDS_MAX
        verdict = self._check()
        while verdict.lost and time.monotonic() < deadline_s:
            time.sleep(POLL_SECONDS)
            before, verdict = verdict, self._check()
            if verdict.lost < before.lost:
                deadline_s = time.monotonic() + DRAIN_SECONDS_MAX
        self._processes.stop(_GATEWAY)
        # Once more: what arrived last may have arrived twice.
        verdict = self._check()
        verdict.equation = self._balances_hold()
        return verdict

    def _check(self) -> GatewayVerdict:
        """Compare what the journals say by now."""
        return check_gateway(
            self._journals, self._ends.events_per_request, by_client=self._ends.by_client
        )

    def _balances_hold(self) -> bool:
        """Whether the ledger says, too, that nothing is pending: accepted = all outcomes."""
        (buffer,) = plan(load(self._config_path).graph)
        (core,) = buffer.directory.glob("core-*")
        with Quiver.open(core) as quiver:
            balances = [quiver.balance(name) for name in quiver.subscribers()]
        return len(balances) == len(self._backend_ports) and all(
            balance.holds and balance.pending.events == 0 for balance in balances
        )

    def close(self) -> None:
        """Leave no process behind."""
        self._processes.close()
        self._kills.close()


def prove_gateway(options: ProofOptions) -> dict[str, Any]:
    """Kill gateway and backends again and again under load, and check what was promised."""
    runner, prover = ProofRunner(options), GatewayProver(options)
    verdict = runner.run(prover, options.kills, options.seconds)
    findings = asdict(verdict)
    if options.fills_disk:
        findings["refused_disk_full"] = prover.refused_disk_full()
    return runner.report("gateway", verdict.ok, findings)
