"""The yardstick: the same bytes, in the same groups, with nothing but write and fdatasync."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.bench.stopwatch import Stopwatch
from holdfast.seam.disk import Handle, RealDisk


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


def replay_groups(folder: Path, groups: Sequence[int]) -> RawRun:
    """Write and sync each group into one new file.

    One file, opened once and never rotated, from one buffer that is written over and over: the
    best a single-threaded program could do, so the comparison errs to the disk's favour.
    """
    path = folder / "raw"
    content = memoryview(os.urandom(max(groups)))
    disk = RealDisk()
    handle = disk.create(path, "raw")
    group_s = []
    try:
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
