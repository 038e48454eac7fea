"""Prove pipelines: clients post, a driver counts, and gateway and driver are killed under it.

The gateway is `holdfast up`, which starts the driver itself. Every other kill strikes at a named
point: of the driver a moment between two effects, of the gateway a step of its disk. The rest
strike at random moments. In the end the pipelines are drained and closed, and the journals of the
clients are compared with the files of the sinks.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from holdfast.dataflow.base.points import TRAP, BatchPoint
from holdfast.errors import CheckFailed
from holdfast.graph.loader import load
from holdfast.graph.pipeline_sources import state_dir
from holdfast.prove.dataflow_checker import (
    COPIES,
    COUNTS,
    LATE,
    NAMES,
    WINDOW_S,
    DataflowVerdict,
    check_dataflow,
)
from holdfast.prove.gateway import ProvenProcess, free_ports
from holdfast.prove.quiver import KILL_SITES as QUIVER_SITES
from holdfast.prove.sessions import (
    DRIVER,
    GATEWAY,
    TRAPS,
    commands_with,
    end_session,
    sessions_with,
    set_trap,
    take_trap,
)
from holdfast.prove.strikes import Strikes

CLIENTS = 4
START_SECONDS_MAX = 60.0
# Java, Spark and the first batch of both pipelines, on a machine that does much else; and a driver
# whose Spark does not answer is replaced (dataflow/driver/process.py).
PROGRESS_SECONDS_MAX = 900.0
# For those who are asked what they do to write it down.
STACKS_SECONDS = 5.0
# How long a trap lies before another one is set.
POINT_SECONDS_MAX = 60.0
DRAIN_SECONDS_MAX = 600.0
DRAIN_ATTEMPTS = 3
POLL_SECONDS = 0.05
# What a gateway does while it runs.
GATEWAY_SITES = tuple(
    point for point in QUIVER_SITES if not point.startswith(("recover", "wal.close"))
)

PIPELINES = (NAMES, COUNTS)
# Small files and short pauses, so that every step happens often.
_QUIVER = {
    "segment": {"target_size": "1MB", "max_open_duration": "100ms"},
    "wal": {"file_size": "256KB"},
}
_SOURCE = {"source": {"quiver": "buffer", "decode": "openlineage", "read_limit": {"rows": 2000}}}
# `job` is the name of the event: the client's number, a count, and its place in the request.
_COLUMNS = {
    "name": "job",
    "client": "split(job, '-')[0]",
    "at_us": "unix_micros(_event_time)",
}
_MAP = {"map": {"select": _COLUMNS}}


def graph_file(port: int, folder: Path) -> str:
    """Return the configuration."""
    names = {
        "vertices": {
            "events": _SOURCE,
            "named": _MAP,
            NAMES: {"sink": {"files": NAMES}},
            COPIES: {"sink": {"files": COPIES, "target_size": "1MB"}},  # one file that grows
        },
        "edges": ["events -> named", f"named -> {NAMES}", f"named -> {COPIES}"],
    }
    counts = {
        "watermark": {"max_delay": "2s", "idle_after": "1s"},
        "shuffle_partitions": 1,
        "vertices": {
            "events": _SOURCE,
            "named": _MAP,
            "windows": {
                "reduce": {
                    "window": {"fixed": f"{WINDOW_S}s"},
                    "key": "client",
                    "aggregate": {"n": "count(*)"},
                    "late": "side_output",
                }
            },
            COUNTS: {"sink": {"files": COUNTS}},
            LATE: {"sink": {"files": LATE}},
        },
        "edges": [
            "events -> named",
            "named -> windows",
            f"windows -> {COUNTS}",
            f"windows.late -> {LATE}",
        ],
    }
    receiver = {
        "kind": "receiver",
        "type": "openlineage",
        "config": {"listen": f"127.0.0.1:{port}"},
        "to": ["buffer"],
    }
    spark = {
        "master": "local[2]",
        "conf": {"spark.driver.memory": "1g", "spark.local.dir": str(folder / "spark")},
        "restart_min": "200ms",
        "restart_max": "2s",
    }
    written = {
        "data_dir": "data",
        "drain": "20s",
        "admin": {"listen": None},
        "nodes": {
            "lineage": receiver,
            "buffer": {"kind": "processor", "type": "quiver", "config": _QUIVER},
        },
        "spark": spark,
        "pipelines": {NAMES: names, COUNTS: counts},
    }
    return yaml.safe_dump(written, sort_keys=False)


class DataflowProof:
    """All processes of one proof."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.journals, self._logs, self._traps = (
            directory / name for name in ("journals", "logs", "traps")
        )
        for folder in (self.journals, self._logs, self._traps, directory / "spark"):
            folder.mkdir(parents=True)
        (self._port,) = free_ports(1)
        self._dice = random.Random(seed)
        self._config = directory / "gateway.yaml"
        self._config.write_text(graph_file(self._port, directory))
        graph = load(self._config).graph
        self._states = [state_dir(graph, name) for name in PIPELINES]
        self._environment = {
            **os.environ,
            TRAPS: str(self._traps),
            TRAP: "holdfast.prove.sessions:reached",
        }
        self._gateway: subprocess.Popen[bytes] | None = None
        self._clients: ProvenProcess | None = None

    # ----------------------------------------------------------------- starting

    def start_gateway(self) -> None:
        """Start the gateway, which starts the driver, and wait until it listens."""
        command = [sys.executable, "-m", "holdfast.prove.gateway_victim", "up", str(self._config)]
        with (self._logs / "gateway").open("ab") as log:
            self._gateway = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        self._wait(self._listens, START_SECONDS_MAX, "the gateway does not listen")

    def start_clients(self) -> None:
        """Start the clients; they run until the end."""
        arguments = ["clients", str(self._port), str(self.journals), str(CLIENTS), "paced"]
        command = [sys.executable, "-m", "holdfast.prove.lineage", *arguments]
        self._clients = ProvenProcess(command, self._logs / "clients")

    def wait_for_progress(self) -> None:
        """Wait until every pipeline has done a batch more than it has now."""
        before = self._batches()

        def went_on() -> bool:
            if self._is_gateway_dead():
                raise CheckFailed("the gateway was killed by somebody", hint=f"see {self._logs}")
            return all(now > then for now, then in zip(self._batches(), before, strict=True))

        try:
            self._wait(went_on, PROGRESS_SECONDS_MAX, "a pipeline does not go on")
        except CheckFailed:
            self._tell_stacks()
            raise

    def _tell_stacks(self) -> None:
        """Let drivers and their Java write down what they do, in the gateway's log."""
        asked = {"holdfast.operate.driver_main": signal.SIGUSR2, "java": signal.SIGQUIT}
        for pid, command in commands_with(TRAPS, str(self._traps)).items():
            for name, number in asked.items():
                if any(os.path.basename(part) == name for part in command):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        time.sleep(STACKS_SECONDS)

    def _batches(self) -> list[int]:
        """Return the last batch of each pipeline's only query."""
        found = []
        for state in self._states:
            commits = [p.name for p in state.glob("*/checkpoint/commits/*") if p.name.isdigit()]
            found.append(max(map(int, commits), default=-1))
        return found

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _wait(self, condition: Callable[[], bool], seconds_max: float, complaint: str) -> None:
        deadline_s = time.monotonic() + seconds_max
        while not condition():
            if time.monotonic() > deadline_s:
                raise CheckFailed(complaint, hint=f"see {self._logs}")
            time.sleep(POLL_SECONDS)

    # ------------------------------------------------------------------ killing

    def kill_at_random(self) -> str:
        """Kill the driver or the gateway at a random moment; return who it was."""
        self.wait_for_progress()
        time.sleep(self._dice.uniform(0.0, 2.0))
        victim = self._dice.choice((DRIVER, GATEWAY))
        if victim == DRIVER:
            for session in self._drivers():
                end_session(session)
        else:
            assert self._gateway is not None
            self._gateway.kill()
            self._gateway.wait()
            self.start_gateway()
        return f"random: {victim}"

    def kill_at_point(self) -> str | None:
        """Set a trap; return where it struck, or None if nobody came there in time."""
        self.wait_for_progress()
        victim = self._dice.choice((DRIVER, GATEWAY))
        sites = tuple(BatchPoint) if victim == DRIVER else GATEWAY_SITES
        point = str(self._dice.choice(sites))
        set_trap(self._traps, victim, point)
        deadline_s = time.monotonic() + POINT_SECONDS_MAX
        while time.monotonic() < deadline_s:
            if victim == DRIVER and not (self._traps / DRIVER).exists():
                return point
            if self._is_gateway_dead():
                self.start_gateway()
                return point
            time.sleep(POLL_SECONDS)
        if victim == DRIVER and take_trap(self._traps, DRIVER) is None:
            return point
        if victim == GATEWAY:
            self._disarm_gateway()
        return None

    def _disarm_gateway(self) -> None:
        """Let the next gateway be one without a trap; it ends as it would have at the point."""
        assert self._gateway is not None
        self._gateway.kill()
        self._gateway.wait()
        self.start_gateway()

    def _is_gateway_dead(self) -> bool:
        assert self._gateway is not None
        code = self._gateway.poll()
        if code not in (None, -signal.SIGKILL):
            raise CheckFailed(f"the gateway ended with {code}", hint=f"see {self._logs}")
        return code is not None

    def _drivers(self) -> set[int]:
        """Return the sessions of all drivers; one whose gateway is dead takes a while to end."""
        assert self._gateway is not None
        return sessions_with(TRAPS, str(self._traps)) - {self._gateway.pid}

    # ------------------------------------------------------------------- ending

    def drain(self) -> DataflowVerdict:
        """End the clients, let the pipelines read everything and close; return the verdict."""
        assert self._clients is not None
        # While somebody posts: the last event may be in a batch already.
        self.wait_for_progress()
        self._clients.end()
        for name in PIPELINES:
            self._close(name)
        return check_dataflow(self.journals, self.directory)

    def _close(self, name: str) -> None:
        command = [sys.executable, "-m", "holdfast", "dataflow", "drain", str(self._config), name]
        for attempt in range(1, DRAIN_ATTEMPTS + 1):
            with (self._logs / "drain").open("ab") as log:
                done = subprocess.run(
                    [*command, "--close"],
                    stdout=log, stderr=log, timeout=DRAIN_SECONDS_MAX, check=False,
                    env=self._environment,
                )  # fmt: skip
            if done.returncode == 0:
                return
            # A driver that has just been begun again may not have its lock yet.
            time.sleep(attempt)
        raise CheckFailed(f"{name} cannot be drained", hint=f"see {self._logs}")

    def close(self) -> None:
        """Leave no process behind."""
        if self._clients is not None and self._clients.is_alive():
            self._clients.kill()
        if self._gateway is not None:
            self._gateway.kill()
            self._gateway.wait()
            for session in sessions_with(TRAPS, str(self._traps)):
                end_session(session)


def prove_dataflow(
    *, kills: int, seed: int, directory: Path, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Kill gateway and driver `kills` times under load, and check what was promised."""
    started_s = time.monotonic()
    strikes = Strikes()
    proof = DataflowProof(directory, seed)
    try:
        proof.start_gateway()
        proof.start_clients()
        progress("Spark starts")
        strikes.run(kills, proof.kill_at_random, proof.kill_at_point, progress)
        progress("everything has to be counted")
        verdict = proof.drain()
    finally:
        proof.close()
    return {
        "proof": "dataflow",
        "ok": verdict.ok,
        **asdict(verdict),
        **strikes.as_dict(),
        "seconds": round(time.monotonic() - started_s, 1),
        "seed": seed,
    }
