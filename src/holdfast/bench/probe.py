"""A fresh process that opens a quiver and reports how long it took and how much memory it has.

Run as `python -m holdfast.bench.probe DIRECTORY`. It ends without closing the quiver, so that
nothing is sealed after the report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import xxhash

from holdfast.bench.stopwatch import Stopwatch
from holdfast.quiver import Quiver
from holdfast.seam.disk import RealDisk

PIECE_BYTES = 1 << 20


class Opened(NamedTuple):
    """What the probe reports."""

    open_s: float
    cpu_s: float
    rss_before_mb: float
    rss_mb: float
    segments: int
    replayed_bundles: int
    damages: int
    # Only to read and hash the WAL files: what no recovery that checks them can undercut.
    hash_s: float
    wal_bytes: int


def probe(directory: Path) -> Opened:
    """Open the quiver in a directory from a fresh process."""
    command = [sys.executable, "-m", "holdfast.bench.probe", str(directory)]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Opened(**json.loads(result.stdout))


def _report(directory: Path) -> Opened:
    wal_bytes, hash_s = _hash_wal(directory / "wal")
    rss_before_mb = _rss_mb()
    with Stopwatch() as watch:
        quiver = Quiver.open(directory)
    rss_mb = _rss_mb()
    found = quiver.recovery
    return Opened(
        open_s=watch.wall_s,
        cpu_s=watch.cpu_s,
        rss_before_mb=rss_before_mb,
        rss_mb=rss_mb,
        segments=found.segments,
        replayed_bundles=found.replayed_bundles,
        damages=len(found.damages),
        hash_s=hash_s,
        wal_bytes=wal_bytes,
    )


def _hash_wal(directory: Path) -> tuple[int, float]:
    disk, wal_bytes = RealDisk(), 0
    with Stopwatch() as watch:
        for entry in disk.list(directory):
            for start in range(0, entry.size_bytes, PIECE_BYTES):
                piece = disk.read_range(directory / entry.name, start, PIECE_BYTES)
                xxhash.xxh3_64_intdigest(piece)
                wal_bytes += len(piece)
    return wal_bytes, watch.wall_s


def _rss_mb() -> float:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_report(Path(sys.argv[1]))._asdict()))
    sys.stdout.flush()
    os._exit(0)
