"""Prove the gateway: clients post, two backends receive, and both ends of the pipe are killed.

Every other kill strikes the gateway at a named point: a step of its disk, or a moment between a
backend's answer and the ledger. The rest strike the gateway or one of the backends at a random
moment. Clients are never killed: they go on posting to whoever listens. In the end the gateway is
left alone until everything has arrived, and the journals of all involved are compared.

On a small disk both backends are away now and then, until it is full and events are refused; the
gateway is killed there, and has to start on it, and to go on when its backends are back.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from holdfast.deliver.points import DeliveryPoint
from holdfast.errors import CheckFailed
from holdfast.graph.loader import load
from holdfast.graph.paths import plan
from holdfast.prove.checker import KILLS, GatewayVerdict, check_gateway
from holdfast.prove.gateway_victim import GatewayTask
from holdfast.prove.journal import count_refused
from holdfast.prove.quiver import KILL_SITES as QUIVER_SITES
from holdfast.prove.small_disk import (
    APPEND_TIMEOUT_S,
    FILL_EVERY_KILLS,
    FILL_SECONDS_MAX,
    data_directory,
)
from holdfast.prove.strikes import Strikes
from holdfast.quiver import AppendConfig, Quiver
from holdfast.seam.faulty import FaultKind

CLIENTS = 8
READY_SECONDS_MAX = 30.0
# How long a gateway is left to reach its point, and nothing may arrive before all has.
POINT_SECONDS_MAX = 5.0
DRAIN_SECONDS_MAX = 120.0
POLL_SECONDS = 0.02
KILL_SITES = (*QUIVER_SITES, DeliveryPoint.SENT, DeliveryPoint.COMMITTED)

SINGLE, BATCH = "single", "batch"
# What one request of each destination holds: all that a kill may bring twice.
EVENTS_PER_REQUEST = {SINGLE: 1, BATCH: 20}


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


class ProvenProcess:
    """A child that says "ready", and what becomes of it."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)

    def wait_ready(self) -> bool:
        """Wait until it says that it is ready; False if it ended before."""
        assert self._child.stdout is not None
        return bool(self._child.stdout.readline())

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self._child.kill()
        self.wait()

    def wait(self, timeout_s: float = READY_SECONDS_MAX) -> int:
        """Wait for its end."""
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise CheckFailed(
                "a process neither died nor ended in time", hint=f"see {self._log}"
            ) from None
        assert self._child.stdout is not None
        self._child.stdout.close()
        return code

    def end(self) -> None:
        """Ask it to stop, and wait."""
        self._child.send_signal(signal.SIGTERM)
        code = self.wait(DRAIN_SECONDS_MAX)
        if code not in (0, -signal.SIGTERM):
            raise CheckFailed(f"a process ended with {code}", hint=f"see {self._log}")


class GatewayProof:
    """All processes of one proof."""

    def __init__(self, directory: Path, seed: int, place: Path, *, fills: bool) -> None:
        self.directory = directory
        self._fills = fills
        self._strikes_at_random = 0
        self.journals = directory / "journals"
        self.journals.mkdir(parents=True)
        self._logs = directory / "logs"
        self._logs.mkdir()
        self.port, *ports = free_ports(3)
        self._backend_ports = dict(zip((SINGLE, BATCH), ports, strict=True))
        self._dice = random.Random(seed)
        self._lives: Counter[str] = Counter()
        self.config_path = directory / "gateway.yaml"
        timeout_s = APPEND_TIMEOUT_S if fills else AppendConfig.timeout_s
        text = graph_file(self.port, self._backend_ports, str(place / "data"), timeout_s)
        self.config_path.write_text(text)
        self._kills_fd = os.open(
            self.journals / KILLS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self.backends: dict[str, ProvenProcess] = {}
        self.gateway: ProvenProcess | None = None
        self.clients: ProvenProcess | None = None

    # ----------------------------------------------------------------- starting

    def start_backend(self, name: str) -> None:
        """Start a backend on its port."""
        self._lives[name] += 1
        journal = self.journals / f"{self._lives[name]:04d}.{name}"
        port = str(self._backend_ports[name])
        command = [sys.executable, "-m", "holdfast.prove.lineage", "backend", port, str(journal)]
        self.backends[name] = ProvenProcess(command, self._logs / f"backend-{name}")
        if not self.backends[name].wait_ready():
            raise CheckFailed("a backend ended at its start", hint=f"see {self._logs}")

    def start_clients(self) -> None:
        """Start the clients; they run until `end`."""
        arguments = ["clients", str(self.port), str(self.journals), str(CLIENTS)]
        command = [sys.executable, "-m", "holdfast.prove.lineage", *arguments]
        self.clients = ProvenProcess(command, self._logs / "clients")

    def start_gateway(self, point: str | None = None) -> None:
        """Start the gateway; with a point it dies there, which may be before it is ready."""
        kinds = [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER]
        once = point is not None and point.startswith(("wal.close", "recover"))
        nth = 1 if once else self._dice.randint(1, 12)
        task = GatewayTask(str(self.config_path), point, self._dice.choice(kinds), nth)
        self.gateway = ProvenProcess(task.command(), self._logs / "gateway")
        if not self.gateway.wait_ready() and point is None:
            raise CheckFailed("the gateway ended at its start", hint=f"see {self._logs}")

    # ------------------------------------------------------------------ killing

    def note_kill(self) -> None:
        """Write down that something is dead now."""
        os.write(self._kills_fd, b"%d\n" % time.monotonic_ns())

    def kill_at(self, point: str) -> str | None:
        """Let the gateway run into a point; return it, or None if it was not reached in time."""
        self.stop_gateway()
        self.start_gateway(point)
        assert self.gateway is not None
        deadline_s = time.monotonic() + POINT_SECONDS_MAX
        while self.gateway.is_alive() and time.monotonic() < deadline_s:
            time.sleep(POLL_SECONDS)
        reached = not self.gateway.is_alive()
        if reached and self.gateway.wait() != -signal.SIGKILL:
            raise CheckFailed("the gateway ended by itself", hint=f"see {self._logs}")
        if not reached:
            self.gateway.kill()
        self.note_kill()
        self.start_gateway()
        return point if reached else None

    def kill_at_random(self) -> str:
        """Kill the gateway or a backend at a random moment; return who it was."""
        self._strikes_at_random += 1
        if self._fills and 2 * self._strikes_at_random % FILL_EVERY_KILLS == 2:  # noqa: PLR2004
            return self.kill_on_full_disk()
        victim = self._dice.choice(("gateway", "gateway", SINGLE, BATCH))
        time.sleep(self._dice.uniform(0.05, 1.0))
        if victim == "gateway":
            assert self.gateway is not None
            self.gateway.kill()
            self.note_kill()
            self.start_gateway()
        else:
            self.backends[victim].kill()
            self.note_kill()
            time.sleep(self._dice.uniform(0.0, 0.5))
            self.start_backend(victim)
        return f"random: {victim}"

    def kill_on_full_disk(self) -> str:
        """Keep the backends away until the disk is full, and kill the gateway there."""
        for backend in self.backends.values():
            backend.kill()
        self.note_kill()
        refused = self.refused_disk_full()
        deadline_s = time.monotonic() + FILL_SECONDS_MAX
        while self.refused_disk_full() == refused:
            if time.monotonic() > deadline_s:
                raise CheckFailed(
                    f"the disk was not full within {FILL_SECONDS_MAX:.0f} s",
                    hint="name a smaller disk",
                )
            time.sleep(10 * POLL_SECONDS)
        time.sleep(self._dice.uniform(0.0, APPEND_TIMEOUT_S))
        assert self.gateway is not None
        self.gateway.kill()
        self.note_kill()
        self.start_gateway()
        for name in self.backends:
            self.start_backend(name)
        return "random: full disk"

    def refused_disk_full(self) -> int:
        """Return how often clients were told that the disk is full."""
        return count_refused(self.journals, " 503 the disk ")

    def stop_gateway(self) -> None:
        """End the gateway cleanly, so that the next one can have a point."""
        assert self.gateway is not None
        self.gateway.end()

    # ------------------------------------------------------------------- ending

    def drain(self) -> GatewayVerdict:
        """End the clients, wait until everything has arrived, end the rest; return the verdict."""
        assert self.clients is not None
        self.clients.end()
        deadline_s = time.monotonic() + DRAIN_SECONDS_MAX
        verdict = check_gateway(self.journals, EVENTS_PER_REQUEST)
        while verdict.lost and time.monotonic() < deadline_s:
            time.sleep(10 * POLL_SECONDS)
            before, verdict = verdict, check_gateway(self.journals, EVENTS_PER_REQUEST)
            if verdict.lost < before.lost:
                deadline_s = time.monotonic() + DRAIN_SECONDS_MAX
        self.stop_gateway()
        verdict = check_gateway(self.journals, EVENTS_PER_REQUEST)
        verdict.equation = self._books_balance()
        return verdict

    def _books_balance(self) -> bool:
        (buffer,) = plan(load(self.config_path).graph)
        (core,) = buffer.directory.glob("core-*")
        with Quiver.open(core) as quiver:
            accounts = [quiver.balance(name) for name in quiver.subscribers()]
        return len(accounts) == len(EVENTS_PER_REQUEST) and all(
            account.holds and account.pending.events == 0 for account in accounts
        )

    def close(self) -> None:
        """Leave no process behind."""
        for process in (self.clients, self.gateway, *self.backends.values()):
            if process is not None and process.is_alive():
                process.kill()
        os.close(self._kills_fd)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody uses at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def prove_gateway(
    *,
    kills: int,
    seed: int,
    directory: Path,
    progress: Callable[[str], None],
    small_disk_bytes: int | None = None,
) -> dict[str, Any]:
    """Kill gateway and backends `kills` times under load, and check what was promised."""
    fills = small_disk_bytes is not None
    with data_directory(directory, small_disk_bytes) as place:
        proof = GatewayProof(directory, seed, place, fills=fills)
        findings = _prove(proof, kills, seed, progress)
    if fills:
        refused = proof.refused_disk_full()
        findings |= {"ok": findings["ok"] and refused > 0, "refused_disk_full": refused}
    return findings


def _prove(
    proof: GatewayProof, kills: int, seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    started_s = time.monotonic()
    dice = random.Random(seed)
    strikes = Strikes()
    try:
        for name in (SINGLE, BATCH):
            proof.start_backend(name)
        proof.start_gateway()
        proof.start_clients()
        strikes.run(
            kills,
            proof.kill_at_random,
            lambda: proof.kill_at(dice.choice(KILL_SITES)),
            progress,
        )
        progress("everything has to arrive")
        verdict = proof.drain()
    finally:
        proof.close()
    return {
        "proof": "gateway",
        "ok": verdict.ok,
        **asdict(verdict),
        **strikes.as_dict(),
        "seconds": round(time.monotonic() - started_s, 1),
        "seed": seed,
    }
