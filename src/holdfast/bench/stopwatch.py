"""Stopwatches for wall and CPU time: of this process, or of everything that it started."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Self


class Stopwatch:
    """Measures the block it guards."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def __enter__(self) -> Self:
        self._cpu_began_s = time.process_time()
        # Wall time is read last on entry and first on exit, so that reading the other clock is not
        # in it.
        self._wall_began_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall_began_s
        self.cpu_s = time.process_time() - self._cpu_began_s


# Workers come and go: what one used since it was looked at for the last time is not seen.
LOOK_EVERY_S = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of `/proc/<pid>/stat`, counted behind the name.
_PARENT, _TICKS, _BEGAN = 1, slice(11, 13), 19
# The same, with those of children that ended and were waited for.
_TICKS_OF_ALL = slice(11, 15)

# A process, and when it began: numbers are used again.
_TreeProcess = tuple[int, str]


class TreeStopwatch:
    """Measures the wall time of the block it guards, and the CPU time of the whole tree.

    The kernel adds a child's time to its parent's only when the child has ended and was waited for;
    Spark's workers outlive a query. So everything below this process is looked at now and then.
    """

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def __enter__(self) -> Self:
        self._before = tree_ticks()
        self._seen = dict(self._before)
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="tree-stopwatch")
        self._began_s = time.perf_counter()
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._began_s
        self._ended.set()
        self._looking.join()
        # Once more at the end: what ran since the last look would be missing. A process that came
        # and went between two looks is not seen at all, so CPU is a lower bound, and the same for
        # all contenders.
        self._seen.update(tree_ticks())
        ticks = (seen - self._before.get(process, 0) for process, seen in self._seen.items())
        self.cpu_s = sum(ticks) / _TICKS_PER_S

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._seen.update(tree_ticks())


def tree_ticks() -> dict[_TreeProcess, int]:
    """Return the CPU time of this process and its descendants, in ticks of the kernel."""
    return {(pid, fields[_BEGAN]): _sum(fields[_TICKS]) for pid, fields in _tree_stats().items()}


def tree_cpu_s() -> float:
    """Return the CPU time of this process and all descendants that run or were waited for.

    Between two looks it grows by what all of them used, unless one ends that nobody waits for.
    """
    ticks = (_sum(fields[_TICKS_OF_ALL]) for fields in _tree_stats().values())
    return sum(ticks) / _TICKS_PER_S


def _sum(fields: list[str]) -> int:
    return sum(map(int, fields))


def _tree_stats() -> dict[int, list[str]]:
    stats = _stats()
    mine = {os.getpid()}
    while more := {pid for pid, fields in stats.items() if int(fields[_PARENT]) in mine} - mine:
        mine |= more
    return {pid: stats[pid] for pid in mine if pid in stats}


def _stats() -> dict[int, list[str]]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            found[int(name)] = text.rpartition(")")[2].split()
    return found
