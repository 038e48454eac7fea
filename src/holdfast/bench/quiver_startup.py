"""Start-up with a full store: only summaries are read, so bytes must not matter.

Two stores have the same number of segments, one of them twice the bytes: raw bundles of 64 events
of 2 kB. Fresh processes open them in turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.probe import Opened, probe
from holdfast.bench.rounds import interleave
from holdfast.bench.scale import QuiverScale
from holdfast.bench.workload import EVENT_BYTES, raw_event
from holdfast.errors import CheckFailed
from holdfast.quiver import AckLevel, Quiver, QuiverConfig, RetentionConfig, SegmentConfig

EVENTS_PER_BUNDLE = 64
WRITERS = 4
MB = 1 << 20
# Beside the segments: WAL, filesystem overhead, and room for whoever else uses the disk.
DISK_RESERVE = 1.25


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
    _add(figures, opened["whole"], opened["half"])


def _add(figures: Figures, whole: list[Opened], half: list[Opened]) -> None:
    figures.add("startup_s", (o.open_s for o in whole))
    figures.add("startup_half_bytes_s", (o.open_s for o in half))
    figures.add("startup_cpu_s", (o.cpu_s for o in whole))
    changes = (100 * (w.open_s / h.open_s - 1) for w, h in zip(whole, half, strict=True))
    figures.add("startup_doubling_percent", changes)
    figures.add("rss_mb", (o.rss_mb for o in whole))
    figures.add("rss_before_open_mb", (o.rss_before_mb for o in whole))


def _affordable_segments(folder: Path, scale: QuiverScale) -> int:
    per_segment = (scale.startup_segment_mb + scale.startup_segment_mb // 2) * MB * DISK_RESERVE
    free_bytes = shutil.disk_usage(folder).free
    return max(1, min(scale.startup_segments, int(free_bytes * 0.9 / per_segment)))


def _bundles(segment_mb: int) -> int:
    """Return how many bundles fill a segment."""
    return segment_mb * MB // (EVENTS_PER_BUNDLE * EVENT_BYTES)


def _fill(place: Path, segments: int, segment_mb: int) -> None:
    """Write that many segments; each is sealed by `flush`, so that all have the same size."""
    events = [raw_event(seed) for seed in range(EVENTS_PER_BUNDLE)]
    config = QuiverConfig(
        segment=SegmentConfig(target_size_bytes=2 * segment_mb * MB, max_open_duration_s=600.0),
        retention=RetentionConfig(size_cap_bytes=64 * 1024 * MB),
    )
    with Quiver.open(place, config) as quiver, ThreadPoolExecutor(WRITERS) as pool:

        def append(_: int) -> None:
            quiver.append_raw(events, level=AckLevel.WRITTEN)

        for _ in range(segments):
            list(pool.map(append, range(_bundles(segment_mb))))
            quiver.flush()


def _open(place: Path, segments: int) -> Opened:
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
