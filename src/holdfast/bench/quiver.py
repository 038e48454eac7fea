"""The benchmark of the buffer: everything a quiver promises about speed, in one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from holdfast.bench.figures import Bar, Figures
from holdfast.bench.machine import IN_MEMORY, describe, filesystem
from holdfast.bench.quiver_append import measure_append
from holdfast.bench.quiver_delivery import measure_delivery
from holdfast.bench.quiver_recovery import measure_recovery
from holdfast.bench.quiver_small import measure_small
from holdfast.bench.quiver_startup import measure_startup
from holdfast.bench.scale import FULL, QUICK
from holdfast.bench.scratch import scratch

BARS = (
    Bar("append_vs_disk", at_least=0.8),
    Bar("recovery_mb_s", at_least=400),
    Bar("recovery_frames_per_s", at_least=100_000),
    Bar("startup_doubling_percent", at_most=20),
    Bar("rss_mb", at_most=200),
)
SECTIONS = (
    measure_append,
    measure_small,
    measure_recovery,
    measure_startup,
    measure_delivery,
)


def run_quiver(
    *, quick: bool, progress: Callable[[str], None], directory: PurePath | None
) -> dict[str, object]:
    """Measure everything; see docs/benchmarks.md for what each figure means."""
    scale = QUICK if quick else FULL
    figures = Figures()
    with scratch(directory) as folder:
        machine = describe(folder)
        if filesystem(folder) in IN_MEMORY:
            progress("this filesystem lives in memory: syncs cost nothing here")
        for measure in SECTIONS:
            measure(folder, scale, figures, progress)
    return figures.result("quiver", quick=quick, machine=machine, bars=BARS)
