"""What all processes that are killed have in common: where they die, and how they end otherwise."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real

# A point strikes one of the next times it is reached.
NTH_MAX = 12
PARENT_POLL_S = 0.2
# Steps that every process with a quiver reaches. The others (undo, quarantine) need a disk that
# fails, and belong to the crash matrix of the tests.
_NEED_A_FAILING_DISK = (
    QuiverPoint.WAL_UNDO,
    QuiverPoint.WAL_UNDO_SYNC,
    QuiverPoint.LEDGER_UNDO,
    QuiverPoint.RECOVER_SWEEP,
)
QUIVER_SITES = tuple(
    point
    for point in QuiverPoint
    if point.partition(".")[0] in ("wal", "seal", "truncate", "ledger", "trash", "recover")
    and point not in _NEED_A_FAILING_DISK
)
# Steps of the start and of the end happen once in a process; the others often.
ONCE = ("wal.close", "recover")
_WRITES = (
    QuiverPoint.WAL_WRITE,
    QuiverPoint.WAL_HEADER,
    QuiverPoint.SEAL_DATA_WRITE,
    QuiverPoint.SEAL_MANIFEST_WRITE,
    QuiverPoint.LEDGER_WRITE,
    QuiverPoint.LEDGER_CHECKPOINT,
)


@dataclass(frozen=True)
class Death:
    """Where a process kills itself: the nth time it reaches a point, before or after that step."""

    point: str
    kind: str = FaultKind.KILL_BEFORE
    nth: int = 1

    @classmethod
    def at(cls, point: str, dice: random.Random, nth_max: int = NTH_MAX) -> Death:
        """Choose how to die at a point."""
        kinds = [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER]
        if point in _WRITES:
            kinds.append(FaultKind.KILL_MIDWAY)
        nth = 1 if point.startswith(ONCE) else dice.randint(1, nth_max)
        return cls(point, dice.choice(kinds), nth)

    def argument(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))


def deadly_seam(arguments: Sequence[str]) -> Seam:
    """Return the seam of a process that was given these arguments: a `Death`, or nothing.

    A point is a step of the disk, or a moment between two effects; the process cannot know which,
    so both count how often it is reached.
    """
    if not arguments:
        return Seam()
    death = Death(**json.loads(arguments[0]))
    left = death.nth

    def reached(point: str) -> None:
        nonlocal left
        if point == death.point:
            left -= 1
            if left == 0:
                die_for_real()

    fault = Fault(death.point, FaultKind(death.kind), death.nth)
    return Seam(disk=FaultyDisk(RealDisk(), [fault], die_for_real), reached=reached)


def say(word: str) -> None:
    """Tell the prover how far this process is."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def terminated() -> threading.Event:
    """Return an event that is set after SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def wait_for(stop: threading.Event) -> None:
    """Wait for an event that a handler of signals sets.

    With looks in between: right after SIGCONT the kernel may hand a signal to another thread than
    the main one, which then wakes for nothing.
    """
    while not stop.wait(PARENT_POLL_S):
        pass


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Let this process get a signal when whoever started it is gone: nobody else would end it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, name="parent", daemon=True).start()
