"""Prove pipelines: clients post, a driver counts, and gateway and driver are killed under it.

The gateway is `holdfast up`, which starts the driver itself. A named point is a moment between two
effects in the driver, or a step of the gateway's disk. In the end the pipelines are drained and
closed, and the journals of the clients are compared with the files of the sinks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from holdfast.dataflow.base.points import TRAP, BatchPoint
from holdfast.errors import CheckFailed
from holdfast.graph.loader import load
from holdfast.graph.paths import state_dir
from holdfast.prove.dataflow_checker import (
    COPIES,
    COUNTS,
    LATE,
    NAMES,
    WINDOW_S,
    check_dataflow,
)
from holdfast.prove.runner import (
    RANDOM,
    ProofOptions,
    ProofProcesses,
    ProofRunner,
    free_ports,
    listens,
)
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
from holdfast.prove.victim import ONCE, QUIVER_SITES

CLIENTS = 4
START_SECONDS_MAX = 60.0
# Java, Spark and the first batch of a pipeline, on a machine that does much else; and a driver
# whose Spark does not answer is replaced (dataflow/driver/process.py). When one pipeline of several
# has moved, the next one has as long again: they share the machine.
PROGRESS_SECONDS_MAX = 900.0
# For those who are asked what they do to write it down.
STACKS_SECONDS = 5.0
# How long a trap lies before another one is set.
POINT_SECONDS_MAX = 60.0
# How long a drain may go on without a batch.
DRAIN_SECONDS_MAX = 900.0
DRAIN_ATTEMPTS = 3
POLL_SECONDS = 0.05
# What a gateway does while it runs.
GATEWAY_SITES = tuple(point for point in QUIVER_SITES if not point.startswith(ONCE))
_CLIENTS = "clients"

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


Verdict = TypeVar("Verdict")


@dataclass(frozen=True)
class DataflowEnds(Generic[Verdict]):
    """What is particular about a proof of pipelines: who sends, what is counted, and the check."""

    # Of this package; its clients are told the ports, where their journals are, and how many.
    module: str
    ports: int
    graph: Callable[[Sequence[int], Path], str]
    # Each is one query.
    pipelines: tuple[str, ...]
    # Of the clients' journals, and of the folder that the sinks are in.
    check: Callable[[Path, Path], Verdict]


def graph_file(ports: Sequence[int], folder: Path) -> str:
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
    (port,) = ports
    receiver = {"type": "openlineage", "config": {"listen": f"127.0.0.1:{port}"}}
    return gateway_file(receiver, {}, {NAMES: names, COUNTS: counts}, folder)


def gateway_file(
    receiver: Mapping[str, Any],
    quiver: Mapping[str, Any],
    pipelines: Mapping[str, Any],
    folder: Path,
) -> str:
    """Return the configuration of a gateway with one receiver, a quiver, and pipelines."""
    spark = {
        "master": "local[2]",
        "conf": {"spark.driver.memory": "1g", "spark.local.dir": str(folder / "spark")},
        "restart_min": "200ms",
        "restart_max": "2s",
    }
    buffer = {"kind": "processor", "type": "quiver", "config": {**_QUIVER, **quiver}}
    written = {
        "data_dir": "data",
        "drain": "20s",
        "admin": {"listen": None},
        "nodes": {"events": {"kind": "receiver", **receiver, "to": ["buffer"]}, "buffer": buffer},
        "spark": spark,
        "pipelines": dict(pipelines),
    }
    return yaml.safe_dump(written, sort_keys=False)


LINEAGE_ENDS = DataflowEnds(
    module="lineage", ports=1, graph=graph_file, pipelines=PIPELINES, check=check_dataflow
)


class DataflowProver(Generic[Verdict]):
    """A gateway with pipelines, the driver that it starts, and its clients.

    A driver is not a child of this process but of the gateway, and starts a JVM and workers of its
    own. So it cannot be handed a point on its command line: a trap is a file that it looks for at
    each point, and processes are found by a variable in their environment.
    """

    last_step = "everything has to be counted"

    def __init__(self, options: ProofOptions, ends: DataflowEnds[Verdict]) -> None:
        directory = options.directory
        self._options = options
        self._ends = ends
        self._processes = ProofProcesses(directory, options.seed)
        self._dice = self._processes.dice
        self._traps = directory / "traps"
        for folder in (self._traps, directory / "spark"):
            folder.mkdir()
        self._ports = free_ports(ends.ports)
        self._config = directory / "gateway.yaml"
        self._config.write_text(ends.graph(self._ports, directory))
        graph = load(self._config).graph
        self._states = [state_dir(graph, name) for name in ends.pipelines]
        self._environment = {TRAPS: str(self._traps), TRAP: "holdfast.prove.sessions:reached"}

    # ----------------------------------------------------------------- starting

    def start(self) -> None:
        """Start the gateway and its clients; they run until the end."""
        self._start_gateway()
        told = (*map(str, self._ports), str(self._processes.journals), str(CLIENTS), "paced")
        self._processes.start(_CLIENTS, self._ends.module, "clients", *told, word=None)
        self._options.progress("Spark starts")

    def _start_gateway(self) -> None:
        """Start the gateway, which starts the driver, and wait until it listens."""
        self._processes.start(
            GATEWAY, "gateway_victim", "up", str(self._config),
            word=None, environment=self._environment, leads_session=True,
        )  # fmt: skip
        self._processes.wait_until(
            lambda: all(map(listens, self._ports)), START_SECONDS_MAX, "the gateway does not listen"
        )

    def wait_for_progress(self) -> None:
        """Wait until every pipeline has done a batch more than it has now.

        A strike needs a pipeline at work: one that is killed while it starts shows little.
        """
        before = self._batches()
        left = set(range(len(before)))
        while left:
            try:
                left = self._next_to_move(left, before)
            except CheckFailed:
                self._log_stacks()
                raise

    def _next_to_move(self, left: set[int], before: Sequence[int]) -> set[int]:
        """Wait until one of some pipelines has done a batch; return those that have not."""

        def still() -> set[int]:
            if self._is_gateway_dead():
                raise self._processes.failure("somebody else killed the gateway")
            now = self._batches()
            return {place for place in left if now[place] <= before[place]}

        self._processes.wait_until(
            lambda: still() < left, PROGRESS_SECONDS_MAX, "a pipeline does not make progress"
        )
        return still()

    def _log_stacks(self) -> None:
        """Let drivers and their Java write down what they do, in the gateway's log."""
        asked = {"holdfast.operate.driver_main": signal.SIGUSR2, "java": signal.SIGQUIT}
        for pid, command in commands_with(TRAPS, str(self._traps)).items():
            for name, number in asked.items():
                if any(os.path.basename(part) == name for part in command):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        time.sleep(STACKS_SECONDS)

    def _batches(self) -> list[int]:
        """Return the last batch of each pipeline's only query, as Spark's own commit log says."""
        found = []
        for state in self._states:
            commits = [p.name for p in state.glob("*/checkpoint/commits/*") if p.name.isdigit()]
            found.append(max(map(int, commits), default=-1))
        return found

    # ------------------------------------------------------------------ killing

    def strike_at_random(self) -> str:
        """Kill the driver or the gateway at a random moment; return which it was."""
        self.wait_for_progress()
        time.sleep(self._dice.uniform(0.0, 2.0))
        victim = self._dice.choice((DRIVER, GATEWAY))
        if victim == DRIVER:
            for session in self._drivers():
                end_session(session)
        else:
            self._restart_gateway()
        return f"{RANDOM}: {victim}"

    def strike_at_point(self) -> str | None:
        """Set a trap; return where it struck, or None if nobody got there in time."""
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
                self._start_gateway()
                return point
            time.sleep(POLL_SECONDS)
        if victim == DRIVER:
            # Whoever renames the file has it: the driver may be dying of it right now.
            return point if take_trap(self._traps, DRIVER) is None else None
        # The trap is in the gateway's memory already: the next one has none.
        self._restart_gateway()
        return None

    def _restart_gateway(self) -> None:
        self._processes.kill(GATEWAY)
        self._start_gateway()

    def _is_gateway_dead(self) -> bool:
        code = self._processes.children[GATEWAY].poll()
        if code not in (None, -signal.SIGKILL):
            raise self._processes.failure(f"the gateway ended with {code}")
        return code is not None

    def _drivers(self) -> set[int]:
        """Return the sessions of all drivers; one whose gateway is dead takes a while to end."""
        gateway = self._processes.children[GATEWAY].pid
        return sessions_with(TRAPS, str(self._traps)) - {gateway}

    # ------------------------------------------------------------------- ending

    def settle(self) -> Verdict:
        """Stop the clients, let the pipelines read everything and close; compare."""
        # While somebody posts: the last event may be in a batch already.
        self.wait_for_progress()
        self._processes.stop(_CLIENTS)
        for name in self._ends.pipelines:
            self._drain(name)
        return self._ends.check(self._processes.journals, self._options.directory)

    def _drain(self, name: str) -> None:
        """Let a pipeline read everything, close its windows, and stop.

        With the command that operators have. Only a closed window can be compared: one that is open
        has not been written.
        """
        command = [sys.executable, "-m", "holdfast", "dataflow", "drain", str(self._config), name]
        for attempt in range(1, DRAIN_ATTEMPTS + 1):
            with (
                (self._processes.logs / "drain").open("ab") as log,
                subprocess.Popen(
                    [*command, "--close"],
                    stdout=log, stderr=log, env={**os.environ, **self._environment},
                ) as drain,
            ):  # fmt: skip
                try:
                    self._wait_while_it_moves(drain)
                except CheckFailed:
                    self._log_stacks()
                    drain.kill()
                    raise
            if drain.returncode == 0:
                return
            # A driver that has just been restarted may not have its lock yet.
            time.sleep(attempt)
        raise self._processes.failure(f"{name} cannot be drained")

    def _wait_while_it_moves(self, drain: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a drain; a busy machine may take any time, but not stand still."""
        seen = self._batches()

        def has_moved() -> bool:
            return drain.poll() is not None or self._batches() != seen

        while drain.poll() is None:
            seen = self._batches()
            self._processes.wait_until(
                has_moved, DRAIN_SECONDS_MAX, "a drain does not make progress"
            )

    def close(self) -> None:
        """Leave no process behind, nor any that a driver has started."""
        self._processes.close()
        for session in sessions_with(TRAPS, str(self._traps)):
            end_session(session)


def prove_dataflow(options: ProofOptions) -> dict[str, Any]:
    """Kill gateway and driver again and again under load, and check what was promised."""
    runner = ProofRunner(options)
    verdict = runner.run(DataflowProver(options, LINEAGE_ENDS), options.kills, options.seconds)
    return runner.report("dataflow", verdict.ok, asdict(verdict))
