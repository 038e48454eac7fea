"""Load on a quiver: what is appended, by whom, and the bare disk as the yardstick.

Many producers append one thing after the other, each waiting for its answer: a telemetry-like
record batch of about 88 kB, or raw events of 2 kB. `RecordingDisk` is a real disk that notes what
it was asked to write; the same bytes, in the same groups, are then written with nothing but write
and fdatasync. It names the steps in words, as every version does: the same measurement runs on
older ones (against.py).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.bench.figures import percentile
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.quiver import Quiver, QuiverConfig, Statistics
from holdfast.seam import Seam
from holdfast.seam.disk import Handle, RealDisk

if TYPE_CHECKING:
    from typing_extensions import Buffer


PRODUCERS = 64
BATCH_ROWS = 1_000
EVENT_BYTES = 2_048

_SERVICES = ("checkout", "cart", "payment", "frontend", "recommendation")
_TIME_US = 1_760_000_000_000_000


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

    def rewrite(self, path: PurePath, content: Buffer, at: str, offset_bytes: int = 0) -> None:
        super().rewrite(path, content, at, offset_bytes)
        self.written_bytes[at.partition(".")[0]] += memoryview(content).nbytes

    def sync(self, handle: Handle, at: str) -> None:
        """A group is what one sync made durable. Its size is the whole question: the bare disk is
        given the same groups, so that the comparison is between equal numbers of syncs of equal
        size.
        """
        super().sync(handle, at)
        if at == "wal.sync":
            self.groups.append(self._group_bytes)
            self._group_bytes = 0


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


# How long the files of a log may take to become spares.
SPARES_TIMEOUT_S = 60.0


def has_run(quiver: Quiver, folder: Path, appends_each: int, drive: Drive) -> None:
    """Append and seal as much as is measured afterwards, as a quiver has that is not new.

    Twice, because a file that is not needed any more is written over by the next one but one.
    """
    for each in (appends_each, 1):
        drive(quiver, each)
        quiver.flush()
        deadline_s = time.monotonic() + SPARES_TIMEOUT_S
        while len(list(folder.glob("wal/*.wal"))) > 1:
            if time.monotonic() > deadline_s:
                raise CheckFailed(
                    "old files of the log stay", hint="is its disk full?", path=str(folder)
                )
            time.sleep(0.01)


def measure(
    folder: Path, config: QuiverConfig, appends_each: int, drive: Drive, *, is_new: bool = True
) -> LoadRun:
    """Open a new quiver, let all producers append, and close it."""
    disk = RecordingDisk()
    # What earlier measurements left: to look through all of it takes 50 ms, which would otherwise
    # fall into one of the measurements, always the same one in the same version.
    gc.collect()
    with Quiver.open(folder, config, seam=Seam(disk=disk)) as quiver:
        if not is_new:
            has_run(quiver, folder, appends_each, drive)
            disk.groups.clear()
        with Stopwatch() as watch:
            latencies_s = drive(quiver, appends_each)
        # Before the quiver is closed: what closing seals and syncs is not part of the load.
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


async def _nothing_async(quiver: Quiver) -> None:
    pass


def _nothing(quiver: Quiver) -> None:
    pass


# The same loops around an append that does nothing.
IDLE_TASKS = by_tasks(_nothing_async)
IDLE_THREADS = by_threads(_nothing)


def generator_cpu_us(nothing: Drive, appends_each: int) -> float:
    """Return what the load generator itself takes of an append's CPU time."""
    # Nothing looks at the quiver.
    quiver: Any = None
    with Stopwatch() as watch:
        appends = len(nothing(quiver, appends_each))
    return watch.cpu_s / appends * 1e6


@dataclass(frozen=True)
class RawRun:
    """What the bare disk did."""

    written_bytes: int
    wall_s: float
    cpu_s: float
    # Of write and sync together, by group.
    group_s: list[float]

    @property
    def mb_per_s(self) -> float:
        """Throughput."""
        return self.written_bytes / self.wall_s / 1e6


def replay_groups(folder: Path, groups: Sequence[int], *, is_new: bool = True) -> RawRun:
    """Write and sync each group into one new file, or over one that is as long.

    One file, opened once and never rotated, from one buffer that is written over and over: the
    best a single-threaded program could do, so the comparison errs to the disk's favour.
    """
    path = folder / "raw"
    # Random, so that a filesystem or a device that compresses gains nothing.
    content = memoryview(os.urandom(max(groups)))
    disk = RealDisk()
    handle = disk.create(path, "raw")
    group_s = []
    try:
        if not is_new:
            for size_bytes in groups:
                _write(handle, content[:size_bytes])
            disk.sync(handle, "raw")
            disk.close(handle)
            # Not by the seam: older versions, which this is compared with, cannot write over.
            handle = Handle(os.open(path, os.O_WRONLY))
        with Stopwatch() as watch:
            for size_bytes in groups:
                began_s = time.perf_counter()
                _write(handle, content[:size_bytes])
                disk.sync(handle, "raw")
                group_s.append(time.perf_counter() - began_s)
    finally:
        disk.close(handle)
        path.unlink()
    return RawRun(sum(groups), watch.wall_s, watch.cpu_s, group_s)


def _write(handle: Handle, content: memoryview) -> None:
    while content:
        content = content[os.write(handle, content) :]


def telemetry_batch(seed: int = 1) -> pa.RecordBatch:
    """Return log records as a collector sees them."""
    chance = random.Random(seed)
    rows = range(BATCH_ROWS)
    return pa.record_batch(
        {
            "time": pa.array([_TIME_US + 250 * row for row in rows], pa.timestamp("us", "UTC")),
            "trace_id": pa.array([chance.randbytes(16) for _ in rows], pa.binary(16)),
            "span_id": pa.array([chance.randbytes(8) for _ in rows], pa.binary(8)),
            "severity": pa.array([chance.choice((5, 9, 13, 17)) for _ in rows], pa.uint8()),
            "service": pa.array([chance.choice(_SERVICES) for _ in rows]),
            "body": pa.array([_body(chance) for _ in rows]),
            "duration_ms": pa.array([chance.random() * 100 for _ in rows], pa.float64()),
        }
    )


def _body(chance: random.Random) -> str:
    return f"request {chance.randrange(10**6)} took {chance.random() * 100:.2f} ms"


def raw_event(seed: int = 1) -> bytes:
    """Return bytes that no filesystem or device can compress."""
    return random.Random(seed).randbytes(EVENT_BYTES)
