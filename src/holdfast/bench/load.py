"""Load: many producers that append one thing after the other, each waiting for its answer.

`RecordingDisk` is a real disk that notes what it was asked to write: the groups of the WAL, and all
bytes. It names the steps in words, as every version does: the same measurement runs on older ones
(scripts/compare_versions.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bench.rounds import percentile
from holdfast.bench.stopwatch import Stopwatch
from holdfast.quiver import Quiver, QuiverConfig, Statistics
from holdfast.seam import Seam
from holdfast.seam.disk import Handle, RealDisk

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RecordingDisk(RealDisk):
    """Passes everything on, and counts."""

    def __init__(self) -> None:
        # Bytes of the WAL that each sync made durable, in order.
        self.groups: list[int] = []
        # By the first word of the step ("wal", "seal", …).
        self.written_bytes: Counter[str] = Counter()
        self._group_bytes = 0

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        written = super().write(handle, buffers, at)
        self.written_bytes[at.partition(".")[0]] += written
        if at == "wal.write":
            self._group_bytes += written
        return written

    def sync(self, handle: Handle, at: str) -> None:
        super().sync(handle, at)
        if at == "wal.sync":
            self.groups.append(self._group_bytes)
            self._group_bytes = 0


PRODUCERS = 64


@dataclass(frozen=True)
class LoadRun:
    """What one load did. Times end with the last answer; bytes include the seals of `close`."""

    wall_s: float
    cpu_s: float
    # Of all appends, sorted.
    latencies_s: list[float]
    statistics: Statistics
    groups: list[int]
    written_bytes: dict[str, int]

    @property
    def appends(self) -> int:
        """How many appends were answered."""
        return len(self.latencies_s)

    @property
    def appends_per_s(self) -> float:
        """Throughput in appends."""
        return self.appends / self.wall_s

    @property
    def wal_mb_per_s(self) -> float:
        """Throughput in bytes of the WAL."""
        return sum(self.groups) / self.wall_s / 1e6

    @property
    def cpu_us_per_append(self) -> float:
        """CPU time of the whole process, sealing included."""
        return self.cpu_s / self.appends * 1e6

    def latency_ms(self, percent: float) -> float:
        """Return how long an append waited for its answer."""
        return percentile(self.latencies_s, percent) * 1e3


# Runs all producers and returns their latencies.
Drive = Callable[[Quiver, int], list[float]]


def measure(folder: Path, config: QuiverConfig, appends_each: int, drive: Drive) -> LoadRun:
    """Open a new quiver, let all producers append, and close it."""
    disk = RecordingDisk()
    with Quiver.open(folder, config, seam=Seam(disk=disk)) as quiver:
        with Stopwatch() as watch:
            latencies_s = drive(quiver, appends_each)
        statistics = quiver.statistics()
        groups = disk.groups[:]
    latencies_s.sort()
    written = dict(disk.written_bytes)
    return LoadRun(watch.wall_s, watch.cpu_s, latencies_s, statistics, groups, written)


def by_tasks(append: Callable[[Quiver], Awaitable[object]]) -> Drive:
    """Drive with as many tasks of one event loop, as a gateway does."""

    async def produce(quiver: Quiver, appends_each: int, latencies_s: list[float]) -> None:
        for _ in range(appends_each):
            began_s = time.perf_counter()
            await append(quiver)
            latencies_s.append(time.perf_counter() - began_s)

    async def produce_all(quiver: Quiver, appends_each: int, latencies_s: list[float]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PRODUCERS):
                tasks.create_task(produce(quiver, appends_each, latencies_s))

    def drive(quiver: Quiver, appends_each: int) -> list[float]:
        latencies_s: list[float] = []
        asyncio.run(produce_all(quiver, appends_each, latencies_s))
        return latencies_s

    return drive


def by_threads(append: Callable[[Quiver], object]) -> Drive:
    """Drive with as many threads, as an embedding program may."""

    def produce(quiver: Quiver, appends_each: int, latencies_s: list[float]) -> None:
        for _ in range(appends_each):
            began_s = time.perf_counter()
            append(quiver)
            latencies_s.append(time.perf_counter() - began_s)

    def drive(quiver: Quiver, appends_each: int) -> list[float]:
        latencies_s: list[float] = []
        with ThreadPoolExecutor(PRODUCERS) as pool:
            arguments = (quiver, appends_each, latencies_s)
            running = [pool.submit(produce, *arguments) for _ in range(PRODUCERS)]
        for producer in running:
            producer.result()
        return latencies_s

    return drive
