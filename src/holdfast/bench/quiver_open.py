"""Opening a quiver: recovery after a kill, and the start with a full store.

Recovery: how fast `Quiver.open` reads a WAL that a killed process left. The files are copied from a
quiver that is running, which is what a kill leaves. The page cache is warm. The time is that of
`open`, all of it: reading, checking and ordering every frame, and the first WAL file of the new
process. Sealing what was found is not part of it: that happens afterwards, in the background, while
the quiver already accepts.

Start: only summaries are read, so bytes must not matter. Two stores have the same number of
segments, one of them twice the bytes: raw bundles of 64 events of 2 kB.

Both are opened by fresh processes: `python -m holdfast.bench.quiver_open DIRECTORY` reports how
long it took and how much memory it has. It ends without closing the quiver, so that nothing is
sealed after the report.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import xxhash

from holdfast.bench.figures import Figures, interleave
from holdfast.bench.load import EVENT_BYTES, raw_event, telemetry_batch
from holdfast.bench.quiver_append import BURST
from holdfast.bench.scale import QuiverScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.quiver import AckLevel, Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.seam.disk import RealDisk

MB, MIB = 1_000_000, 1 << 20
FRAMES = ("88kb", "2kb")
EVENTS_PER_BUNDLE = 64
WRITERS = 4
# Beside the segments: WAL, filesystem overhead, and room for whoever else uses the disk.
DISK_RESERVE = 1.25
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
    """Open the quiver in a directory from a fresh process.

    In a fresh process: this one has imported everything, its allocator has memory left over, and
    its page cache is warm for other reasons. What a start costs can only be seen once per process.
    """
    command = [sys.executable, "-m", "holdfast.bench.quiver_open", str(directory)]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Opened(**json.loads(result.stdout))


def _report(directory: Path) -> Opened:
    """Measure `Quiver.open` in this process, which has done nothing else before."""
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
    """Read and hash the WAL: what recovery is compared with, and then the cache is warm.

    Also the fairest warm-up: afterwards every byte of the WAL is in the page cache, for recovery
    as for the yardstick, and the disk's speed on that day is in neither.
    """
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


def measure_recovery(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    sizes = ", ".join(map(str, scale.recovery_mb))
    progress(f"recovery: WALs of {sizes} MB in frames of 88 kB and of 2 kB, {scale.rounds} rounds")
    contenders: dict[str, Callable[[], Opened]] = {}
    for size_mb in scale.recovery_mb:
        for frames in FRAMES:
            name = f"{frames}_{size_mb}mb"
            _leave_wal(folder / "killed" / name, frames, size_mb * MB)
            contenders[name] = partial(_recover, folder / "killed" / name, folder / "recovering")
    found = interleave(contenders, scale.rounds)
    shutil.rmtree(folder / "killed")
    for name, opened in found.items():
        figures.add(f"recovery_mb_s_{name}", map(_mb_per_s, opened))
    large, small = (found[f"{frames}_{scale.recovery_mb[-1]}mb"] for frames in FRAMES)
    figures.add("recovery_mb_s", map(_mb_per_s, large))
    figures.add("recovery_cpu_s_per_gb", (o.cpu_s / o.wal_bytes * 1e9 for o in large))
    figures.add("recovery_frames_per_s", (o.replayed_bundles / o.open_s for o in small))
    figures.add("recovery_cpu_us_per_frame", (o.cpu_s / o.replayed_bundles * 1e6 for o in small))
    figures.add("hash_mb_s", (o.wal_bytes / o.hash_s / MB for o in large))
    figures.note("recovery_wal_mb", scale.recovery_mb[-1])


def _mb_per_s(opened: Opened) -> float:
    return opened.wal_bytes / opened.open_s / MB


def _leave_wal(left: Path, frames: str, size_bytes: int) -> None:
    """Fill a quiver and copy its files while it runs.

    At the level `written`: nothing is cut off by a kill that the kernel has, so the copy is what a
    kill would leave, and filling does not take hours.
    """
    live = left.parent / "live"
    batch, event = telemetry_batch(), raw_event()
    with Quiver.open(live, BURST) as quiver:
        while quiver.statistics().writer.payload_bytes < size_bytes:
            for _ in range(16):
                if frames == "88kb":
                    quiver.append(batch, level=AckLevel.WRITTEN)
                else:
                    quiver.append_raw(event, level=AckLevel.WRITTEN)
        shutil.copytree(live, left, ignore=_sockets)
    shutil.rmtree(live)


def _sockets(folder: str, names: list[str]) -> list[str]:
    """A running owner has a socket, which is no file that could be copied."""
    return [name for name in names if Path(folder, name).is_socket()]


def _recover(left: Path, place: Path) -> Opened:
    """Open a copy of what a kill left: opening changes the files."""
    shutil.copytree(left, place)
    try:
        opened = probe(place)
    finally:
        shutil.rmtree(place)
    if opened.damages or not opened.replayed_bundles:
        raise CheckFailed(
            f"a WAL that a killed process left was not recovered: {opened}",
            hint="this is a defect; report it with this output",
        )
    return opened


def measure_startup(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    segments = _affordable_segments(folder, scale)
    whole_mb, half_mb = scale.startup_segment_mb, scale.startup_segment_mb // 2
    if segments < scale.startup_segments:
        figures.note(
            "startup_note",
            f"scaled down from {scale.startup_segments} to {segments} segments: "
            f"the disk has {shutil.disk_usage(folder).free // 1_000_000} MB free",
        )
    for name, segment_mb in (("whole", whole_mb), ("half", half_mb)):
        progress(f"start-up: filling a store with {segments} segments of {segment_mb} MB")
        _fill(folder / name, segments, segment_mb)
    progress(f"start-up: opening both stores, {scale.rounds} rounds")
    opened = interleave(
        {name: partial(_open, folder / name, segments) for name in ("whole", "half")},
        scale.rounds,
    )
    figures.note("startup_segments", segments)
    figures.note("startup_events", segments * _bundles(whole_mb) * EVENTS_PER_BUNDLE)
    figures.note("startup_gb", _size_gb(folder / "whole"))
    figures.note("startup_half_gb", _size_gb(folder / "half"))
    for name in ("whole", "half"):
        shutil.rmtree(folder / name)
    _add_startup(figures, opened["whole"], opened["half"])


def _add_startup(figures: Figures, whole: list[Opened], half: list[Opened]) -> None:
    figures.add("startup_s", (o.open_s for o in whole))
    figures.add("startup_half_bytes_s", (o.open_s for o in half))
    figures.add("startup_cpu_s", (o.cpu_s for o in whole))
    changes = (100 * (w.open_s / h.open_s - 1) for w, h in zip(whole, half, strict=True))
    figures.add("startup_doubling_percent", changes)
    figures.add("rss_mb", (o.rss_mb for o in whole))
    figures.add("rss_before_open_mb", (o.rss_before_mb for o in whole))


def _affordable_segments(folder: Path, scale: QuiverScale) -> int:
    """Return how many segments fit: a benchmark must not fill the disk of its machine."""
    per_segment = (scale.startup_segment_mb + scale.startup_segment_mb // 2) * MIB * DISK_RESERVE
    free_bytes = shutil.disk_usage(folder).free
    return max(1, min(scale.startup_segments, int(free_bytes * 0.9 / per_segment)))


def _bundles(segment_mb: int) -> int:
    """Return how many bundles fill a segment."""
    return segment_mb * MIB // (EVENTS_PER_BUNDLE * EVENT_BYTES)


def _fill(place: Path, segments: int, segment_mb: int) -> None:
    """Write that many segments; each is sealed by `flush`, so that all have the same size."""
    events = [raw_event(seed) for seed in range(EVENTS_PER_BUNDLE)]
    config = QuiverConfig(
        segment=SegmentConfig(target_size_bytes=2 * segment_mb * MIB, max_open_duration_s=600.0),
        retention=RetentionConfig(size_cap_bytes=64 * 1024 * MIB),
    )
    with Quiver.open(place, config) as quiver, ThreadPoolExecutor(WRITERS) as pool:

        def append(_: int) -> None:
            quiver.append_raw(events, level=AckLevel.WRITTEN)

        for _ in range(segments):
            list(pool.map(append, range(_bundles(segment_mb))))
            quiver.flush()


def _open(place: Path, segments: int) -> Opened:
    """Open a store; one that lost a segment is no measurement."""
    opened = probe(place)
    if opened.segments != segments:
        raise CheckFailed(
            f"{segments} segments were sealed, {opened.segments} were found at the next start",
            hint="this is a defect; report it with this output",
        )
    return opened


def _size_gb(place: Path) -> float:
    size_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return round(size_bytes / 1e9, 3)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_report(Path(sys.argv[1]))._asdict()))
    sys.stdout.flush()
    os._exit(0)
