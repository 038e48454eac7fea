"""Recovery: how fast `Quiver.open` takes in a WAL that a killed process left.

The files are copied from a quiver that is running, which is what a kill leaves. A fresh process
opens them, the page cache is warm. The time is that of `open`, all of it: reading, checking and
ordering every frame, and the first WAL file of the new process. Sealing what was found is not part
of it: that happens afterwards, in the background, while the quiver already accepts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.probe import Opened, probe
from holdfast.bench.quiver_append import BURST
from holdfast.bench.rounds import interleave
from holdfast.bench.scale import QuiverScale
from holdfast.bench.workload import raw_event, telemetry_batch
from holdfast.errors import CheckFailed
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base import names

MB = 1_000_000
FRAMES = ("88kb", "2kb")


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
    """Fill a quiver and copy its files while it runs."""
    live = left.parent / "live"
    batch, event = telemetry_batch(), raw_event()
    with Quiver.open(live, BURST) as quiver:
        while quiver.statistics().writer.payload_bytes < size_bytes:
            for _ in range(16):
                if frames == "88kb":
                    quiver.append(batch, level=AckLevel.WRITTEN)
                else:
                    quiver.append_raw(event, level=AckLevel.WRITTEN)
        # The socket of a running owner is no file that could be copied.
        shutil.copytree(live, left, ignore=shutil.ignore_patterns(names.CONTROL_SOCKET))
    shutil.rmtree(live)


def _recover(left: Path, place: Path) -> Opened:
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
