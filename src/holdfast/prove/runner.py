"""The runner of all proofs: it kills, restarts and waits, and reports what was found.

A prover says what is particular about its proof: which processes there are, where to strike them,
and what to compare in the end. Everything else is here. A proof is:

1. start all processes;
2. strike as often as asked for: every other time at a named point, the rest at a random moment;
   a strike whose point nobody reached is repeated;
3. let what is left be finished and compared (`settle`);
4. leave no process behind, whatever happened, but all journals and logs: whoever called removes
   the folder if the proof held.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.errors import CheckFailed
from holdfast.prove.victim import Death

# How a kill at a random moment is reported: this, and which process it was.
RANDOM = "random"
# Loaded machines are slow; a process that takes longer than this hangs.
KILL_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 120.0
POLL_SECONDS = 0.02

# Below those that systems give out: Linux from 32768 on, others from 49152.
PORTS = range(20_000, 32_000)

OnProgress = Callable[[str], None]
Verdict_co = TypeVar("Verdict_co", covariant=True)


@dataclass(frozen=True)
class ProofOptions:
    """What was asked for."""

    kills: int
    seed: int
    # Journals and logs go here.
    directory: Path
    # Data goes here: the same directory, or a small disk that is filled now and then.
    data_dir: Path
    progress: OnProgress
    fills_disk: bool = False
    # Strike for so long at least, also when all kills are done.
    seconds: float = 0.0
    # Nodes are behind cables that are pulled now and then.
    partitions: bool = False


class Prover(Protocol[Verdict_co]):
    """What a proof consists of."""

    # What is said while it settles.
    last_step: str

    def start(self) -> None:
        """Start all processes."""

    def strike_at_random(self) -> str | None:
        """Kill a process at a random moment, restart it, and return which it was."""

    def strike_at_point(self) -> str | None:
        """Let a process die at a named point, restart it, and return the point.

        None if nobody reached it in time.
        """

    def settle(self) -> Verdict_co:
        """Let everything be finished, and compare the journals."""

    def close(self) -> None:
        """Leave no process behind."""


class ProofRunner:
    """Runs the provers of one proof, and counts the kills by where they struck."""

    def __init__(self, options: ProofOptions) -> None:
        self._options = options
        self._started_s = time.monotonic()
        self._sites: Counter[str] = Counter()
        self._not_reached = 0

    def run(self, prover: Prover[Verdict_co], kills: int, seconds_min: float = 0.0) -> Verdict_co:
        """Strike so often and for so long, then settle."""
        progress, until_s = self._options.progress, time.monotonic() + seconds_min
        try:
            prover.start()
            done = 0
            while done < kills or time.monotonic() < until_s:
                site = prover.strike_at_point() if done % 2 else prover.strike_at_random()
                if site is None:
                    self._not_reached += 1
                    continue
                self._sites[site] += 1
                done += 1
                progress(f"kill {done}/{max(done, kills)} at {site}")
            progress(prover.last_step)
            return prover.settle()
        finally:
            prover.close()

    def report(self, proof: str, ok: bool, findings: Mapping[str, object]) -> dict[str, Any]:
        """Return the report of the whole proof.

        One on a small disk must have met a full one, or it has shown nothing.
        """
        at_points = sum(n for site, n in self._sites.items() if not site.startswith(RANDOM))
        return {
            "proof": proof,
            "ok": ok and findings.get("refused_disk_full") != 0,
            **findings,
            "kills": self._sites.total(),
            "kills_at_points": at_points,
            "kill_sites": dict(sorted(self._sites.items())),
            "points_not_reached": self._not_reached,
            "seconds": round(time.monotonic() - self._started_s, 1),
            "seed": self._options.seed,
        }


class ProofProcesses:
    """The processes of a prover, by name, with their journals and logs in one folder."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.journals, self.logs = directory / "journals", directory / "logs"
        for folder in (self.journals, self.logs):
            folder.mkdir(parents=True)
        self.dice = random.Random(seed)
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        module: str,
        *arguments: str,
        death: Death | None = None,
        word: str | None = "ready",
        environment: Mapping[str, str] | None = None,
        leads_session: bool = False,
        inside: Sequence[str] = (),
    ) -> None:
        """Start a module of this package as a process, and wait until it says its word.

        One that has to die may do so before it is ready. `inside` is a command that becomes it.
        """
        command = [*inside, sys.executable, "-m", f"holdfast.prove.{module}", *arguments]
        with (self.logs / name).open("ab") as log:
            self.children[name] = subprocess.Popen(
                [*command, death.argument()] if death else command,
                stdout=subprocess.PIPE if word else log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=leads_session,
            )
        if word and not self.says(name, word) and death is None:
            raise self.failure(f"{name} ended before it was {word}")

    def says(self, name: str, word: str) -> bool:
        """Wait until a process says a word; False if it ended before."""
        output = self.children[name].stdout
        assert output is not None, "BUG: nobody listens to it"
        return any(line.decode().strip() == word for line in output)

    def is_alive(self, name: str) -> bool:
        """Whether a process runs."""
        return self.children[name].poll() is None

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a process a signal, and do not wait for what it does."""
        self.children[name].send_signal(number)

    def kill(self, name: str) -> None:
        """kill -9."""
        self.children[name].kill()
        self._wait(name, KILL_SECONDS_MAX)

    def stop(self, name: str) -> None:
        """Ask a process to stop, and wait."""
        self.children[name].send_signal(signal.SIGTERM)
        code = self._wait(name, STOP_SECONDS_MAX)
        if code not in (0, -signal.SIGTERM):
            raise self.failure(f"{name} ended with {code}")

    def dies(self, name: str, seconds_max: float, *, may_end: bool = False) -> bool:
        """Wait until a process has killed itself at its point, and return whether it has.

        It is killed if that takes too long. `may_end`: it may also end, having done its work; then
        one that does neither hangs, which is a finding.
        """
        give_up_s = time.monotonic() + seconds_max
        while self.is_alive(name) and time.monotonic() < give_up_s:
            time.sleep(POLL_SECONDS)
        if self.is_alive(name):
            self.kill(name)
            if may_end:
                raise self.failure(f"{name} neither died nor ended within {seconds_max:g} s")
            return False
        code = self._wait(name, KILL_SECONDS_MAX)
        if code == 0 and may_end:
            return False
        if code != -signal.SIGKILL:
            raise self.failure(f"{name} ended by itself with {code}")
        return True

    def wait_until(self, condition: Callable[[], bool], seconds_max: float, complaint: str) -> None:
        """Wait for something that has to happen."""
        give_up_s = time.monotonic() + seconds_max
        while not condition():
            if time.monotonic() > give_up_s:
                raise self.failure(complaint)
            time.sleep(POLL_SECONDS)

    def failure(self, complaint: str) -> CheckFailed:
        """Return an error that says where to look."""
        return CheckFailed(complaint, hint=f"see {self.logs}")

    def close(self) -> None:
        """Kill whatever still runs."""
        for child in self.children.values():
            child.kill()
        for name in self.children:
            self._wait(name, KILL_SECONDS_MAX)

    def _wait(self, name: str, seconds_max: float) -> int:
        child = self.children[name]
        try:
            code = child.wait(seconds_max)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise self.failure(f"{name} did not end within {seconds_max:g} s") from None
        if child.stdout is not None:
            child.stdout.close()
        return code


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody uses at this moment.

    None that a system gives to whoever asks for any: another process would be given it before it is
    used here, or while the process that had it is dead.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().choice(PORTS)
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
    return found


def listens(port: int) -> bool:
    """Whether somebody listens at a port of the loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
