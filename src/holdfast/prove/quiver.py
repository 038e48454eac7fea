"""Prove the quiver: kill its process again and again, then compare the journals of all involved.

Every other kill strikes at a named fault point (before, midway, or after the step), the rest at a
random moment, including during recovery. Each incarnation opens what the last one left; the last
one is not killed, and reads what is left.

On a small disk nobody reads now and then, until it is full and appends are refused; the process is
killed there, and those that follow have to start on it, deliver and go on.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.errors import CheckFailed, DiskFull
from holdfast.prove.checker import QuiverVerdict, check
from holdfast.prove.journal import count_refused
from holdfast.prove.quiver_victim import QuiverTask, drain
from holdfast.prove.small_disk import (
    APPEND_TIMEOUT_S,
    FILL_EVERY_KILLS,
    FILL_SECONDS_MAX,
    data_directory,
)
from holdfast.quiver import Balance
from holdfast.quiver.base.frame import NOTHING
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import FaultKind

CLIENTS = 8
# How kills at a random moment are called.
RANDOM, FULL_DISK = RANDOM_SITES = ("random", "random: full disk")
# How long a process may run before it closes by itself, and before it counts as hung.
RUN_SECONDS = 1.5
HUNG_SECONDS = 60.0

# Steps that every process of this workload reaches. The others (undo, quarantine) need a disk that
# fails, and belong to the crash matrix of the tests.
_NEED_A_FAILING_DISK = (
    QuiverPoint.WAL_UNDO,
    QuiverPoint.WAL_UNDO_SYNC,
    QuiverPoint.LEDGER_UNDO,
    QuiverPoint.RECOVER_SWEEP,
)
KILL_SITES = tuple(
    point
    for point in QuiverPoint
    if point.partition(".")[0] in ("wal", "seal", "truncate", "ledger", "trash", "recover")
    and point not in _NEED_A_FAILING_DISK
)
_WRITES = (
    QuiverPoint.WAL_WRITE,
    QuiverPoint.WAL_HEADER,
    QuiverPoint.SEAL_DATA_WRITE,
    QuiverPoint.SEAL_MANIFEST_WRITE,
    QuiverPoint.LEDGER_WRITE,
    QuiverPoint.LEDGER_CHECKPOINT,
)


@dataclass
class Kills:
    """What was killed where, so far."""

    done: int = 0
    sites: Counter[str] = field(default_factory=Counter)
    clean_ends: int = 0


def prove_quiver(
    *,
    kills: int,
    seed: int,
    directory: Path,
    progress: Callable[[str], None],
    small_disk_bytes: int | None = None,
) -> dict[str, Any]:
    """Kill a process `kills` times and check what it promised."""
    with data_directory(directory, small_disk_bytes) as place:
        findings = _prove(
            kills,
            seed,
            place / "quiver",
            directory / "journals",
            progress,
            fills=small_disk_bytes is not None,
        )
    if small_disk_bytes is not None:
        refused = count_refused(directory / "journals", DiskFull.__name__)
        findings |= {"ok": findings["ok"] and refused > 0, "refused_disk_full": refused}
    return findings


def _prove(
    kills: int,
    seed: int,
    quiver_dir: Path,
    journal_dir: Path,
    progress: Callable[[str], None],
    *,
    fills: bool,
) -> dict[str, Any]:
    dice = random.Random(seed)
    journal_dir.mkdir(parents=True)
    started_s = time.monotonic()
    tally = Kills()
    incarnation = 0
    while tally.done < kills:
        point = dice.choice(KILL_SITES) if tally.done % 2 else None
        task = _task(dice, point, incarnation, quiver_dir, journal_dir, seed)
        if fills:
            task = replace(task, append_timeout_s=APPEND_TIMEOUT_S)
        if fills and tally.done % FILL_EVERY_KILLS == 0:
            progress("nobody reads until the disk is full")
            task = replace(task, seconds=FILL_SECONDS_MAX, readers=())
            site: str | None = fill_and_kill(task, dice)
        else:
            site = run_and_kill(task, dice)
        if site is None:
            tally.clean_ends += 1
        else:
            tally.done += 1
            tally.sites[site] += 1
            progress(f"kill {tally.done}/{kills} at {site}")
        incarnation += 1
    verdict, _ = drain_and_check(_task(dice, None, incarnation, quiver_dir, journal_dir, seed))
    return {
        "proof": "quiver",
        "ok": verdict.ok,
        **asdict(verdict),
        "kills": tally.done,
        "kills_at_points": sum(n for site, n in tally.sites.items() if site not in RANDOM_SITES),
        "kill_sites": dict(sorted(tally.sites.items())),
        "clean_ends": tally.clean_ends,
        "incarnations": incarnation,
        "seconds": round(time.monotonic() - started_s, 1),
        "seed": seed,
    }


def _task(
    dice: random.Random,
    point: QuiverPoint | None,
    incarnation: int,
    quiver_dir: Path,
    journal_dir: Path,
    seed: int,
) -> QuiverTask:
    kinds = [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER]
    if point in _WRITES:
        kinds.append(FaultKind.KILL_MIDWAY)
    # The steps of the start and of the end happen once; the others often.
    once = point is not None and point.startswith(("wal.close", "recover"))
    return QuiverTask(
        quiver_dir=str(quiver_dir),
        journal_dir=str(journal_dir),
        incarnation=incarnation,
        clients=CLIENTS,
        seconds=RUN_SECONDS,
        seed=seed,
        point=point,
        kind=dice.choice(kinds),
        nth=1 if once else dice.randint(1, 12),
    )


def drain_and_check(last: QuiverTask) -> tuple[QuiverVerdict, list[Balance]]:
    """Read what is left, as one more incarnation that is not killed, and compare the journals."""
    accounts = drain(last)
    verdict = check(Path(last.journal_dir))
    verdict.equation = bool(accounts) and all(
        account.holds and account.pending == NOTHING for account in accounts
    )
    return verdict, accounts


def fill_and_kill(task: QuiverTask, dice: random.Random) -> str:
    """Run one process until its disk is full, kill it there, and return how that is called."""
    process = subprocess.Popen(task.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            assert process.stdout is not None
            is_full = any(line == b"full\n" for line in process.stdout)
            time.sleep(dice.uniform(0.0, APPEND_TIMEOUT_S))
        finally:
            process.kill()
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace")[-2000:]
    if not is_full:
        raise CheckFailed(
            f"the disk was not full within {FILL_SECONDS_MAX:.0f} s: {errors}",
            hint="name a smaller disk",
        )
    return FULL_DISK


def run_and_kill(task: QuiverTask, dice: random.Random) -> str | None:
    """Run one process until it dies; return where it was killed, or None if it ended by itself."""
    process = subprocess.Popen(task.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if task.point is None:
            # From the first moments of recovery to well into the load.
            time.sleep(dice.uniform(0.15, RUN_SECONDS))
            process.kill()
        _, errors = process.communicate(timeout=HUNG_SECONDS)
    except subprocess.TimeoutExpired:
        raise CheckFailed(
            f"a process neither died nor ended within {HUNG_SECONDS:.0f} s",
            hint=f"its task was {task}",
        ) from None
    finally:
        process.kill()
        process.wait()
    if process.returncode == -signal.SIGKILL:
        return task.point or RANDOM
    if process.returncode != 0:
        raise CheckFailed(
            f"a process failed by itself: {errors.decode(errors='replace')[-2000:]}",
            hint=f"its task was {task}",
        )
    return None
