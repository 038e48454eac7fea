"""Prove the quiver: kill its process again and again, then compare the journals of all involved.

Kills at a named fault point strike before, midway in, or after the step; those at a random moment
strike during recovery, too. Each incarnation opens what the last one left; the last one is not
killed, and reads what is left.

On a small disk nobody reads now and then, until it is full and appends are refused; the process is
killed there, and those that follow have to start on it, deliver and continue.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from holdfast.errors import CheckFailed, DiskFull
from holdfast.prove.checker import QuiverVerdict, check
from holdfast.prove.journal import count_refused
from holdfast.prove.quiver_victim import QuiverTask, drain
from holdfast.prove.runner import RANDOM, ProofOptions, ProofProcesses, ProofRunner
from holdfast.prove.small_disk import APPEND_TIMEOUT_S, FILL_EVERY_STRIKES, FILL_SECONDS_MAX
from holdfast.prove.victim import ONCE, QUIVER_SITES, Death
from holdfast.quiver.base.frame import NOTHING

CLIENTS = 8
# How long a process may run before it closes by itself, and before it counts as hung. One that has
# to reach a point gets more time: on a busy machine it does little in a second.
RUN_SECONDS = 1.5
POINT_SECONDS = 6.0
HUNG_SECONDS = 120.0
_NAME = "quiver"


class QuiverProver:
    """One process after another on the same quiver: clients and readers are threads in it."""

    last_step = "what is left is read"

    def __init__(self, options: ProofOptions) -> None:
        self._options = options
        self._processes = ProofProcesses(options.directory, options.seed)
        self._dice = self._processes.dice
        self._strikes_at_random = 0
        self.incarnations = 0
        self.clean_ends = 0

    def start(self) -> None:
        """Every strike starts a process of its own."""

    def _task(self) -> QuiverTask:
        """Return the work of the next incarnation."""
        task = QuiverTask(
            quiver_dir=str(self._options.data_dir / "quiver"),
            journal_dir=str(self._processes.journals),
            incarnation=self.incarnations,
            clients=CLIENTS,
            seconds=RUN_SECONDS,
            seed=self._options.seed,
        )
        if self._options.fills_disk:
            task = replace(task, append_timeout_s=APPEND_TIMEOUT_S)
        self.incarnations += 1
        return task

    def _start(self, task: QuiverTask, death: Death | None = None, word: str | None = None) -> None:
        self._processes.start(_NAME, "quiver_victim", task.argument(), death=death, word=word)

    def strike_at_point(self) -> str | None:
        """Let a process die at a point; None if it closed its quiver without reaching it."""
        point = self._dice.choice(QUIVER_SITES)
        seconds = RUN_SECONDS if point.startswith(ONCE) else POINT_SECONDS
        self._start(replace(self._task(), seconds=seconds), Death.at(point, self._dice))
        if self._processes.dies(_NAME, HUNG_SECONDS, may_end=True):
            return point
        self.clean_ends += 1
        return None

    def strike_at_random(self) -> str:
        """Kill a process, from the first moments of its recovery to well into the load."""
        self._strikes_at_random += 1
        if self._options.fills_disk and self._strikes_at_random % FILL_EVERY_STRIKES == 1:
            return self._strike_on_full_disk()
        self._start(self._task())
        time.sleep(self._dice.uniform(0.15, RUN_SECONDS))
        self._processes.kill(_NAME)
        return RANDOM

    def _strike_on_full_disk(self) -> str:
        """Let nobody read until the disk is full, and kill the process there."""
        self._options.progress("nobody reads until the disk is full")
        self._start(replace(self._task(), seconds=FILL_SECONDS_MAX, readers=()), word="open")
        if not self._processes.says(_NAME, "full"):
            raise CheckFailed(
                f"the disk was not full within {FILL_SECONDS_MAX:.0f} s",
                hint=f"name a smaller disk, or see {self._processes.logs}",
            )
        time.sleep(self._dice.uniform(0.0, APPEND_TIMEOUT_S))
        self._processes.kill(_NAME)
        return f"{RANDOM}: full disk"

    def settle(self) -> QuiverVerdict:
        """Read what is left, as one more incarnation that is not killed; compare the journals."""
        balances = drain(replace(self._task(), append_timeout_s=QuiverTask.append_timeout_s))
        verdict = check(self._processes.journals)
        verdict.equation = bool(balances) and all(
            balance.holds and balance.pending == NOTHING for balance in balances
        )
        return verdict

    def close(self) -> None:
        """Leave no process behind."""
        self._processes.close()


def prove_quiver(options: ProofOptions) -> dict[str, Any]:
    """Kill a process again and again, and check what it promised."""
    runner, prover = ProofRunner(options), QuiverProver(options)
    verdict = runner.run(prover, options.kills, options.seconds)
    findings = {
        **asdict(verdict),
        "clean_ends": prover.clean_ends,
        # The last one only reads.
        "incarnations": prover.incarnations - 1,
    }
    if options.fills_disk:
        findings["refused_disk_full"] = count_refused(
            options.directory / "journals", DiskFull.__name__
        )
    return runner.report("quiver", verdict.ok, findings)
