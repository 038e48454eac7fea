"""The benchmark of the store: beside restic and borg, with a million files, and its collector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from holdfast.bench.figures import Bar, Figures
from holdfast.bench.machine import describe
from holdfast.bench.scratch import scratch
from holdfast.bench.store_backup import measure_backup
from holdfast.bench.store_gc import measure_collecting
from holdfast.bench.store_many import measure_many
from holdfast.bench.store_scale import FULL, QUICK

BARS = (
    Bar("vs_restic_store", at_least=2.0),
    Bar("vs_restic_changed", at_least=2.0),
    Bar("vs_restic_restore", at_least=1.7),
    Bar("stored_bytes_vs_restic", at_most=1.02),
    Bar("lookup_ms", at_most=5.0),
    Bar("list_entries_per_s", at_least=150_000),
    Bar("diff_growth", at_most=2.0),
    Bar("gc_chunks_per_s", at_least=8_000),
    Bar("gc_cost_slope", at_most=0.5),
)
SECTIONS = (measure_backup, measure_many, measure_collecting)


def run_store(
    *, quick: bool, progress: Callable[[str], None], directory: PurePath | None
) -> dict[str, object]:
    """Measure everything; see docs/benchmarks.md for what each figure means."""
    scale = QUICK if quick else FULL
    figures = Figures()
    with scratch(directory) as folder:
        machine = describe(folder)
        for measure in SECTIONS:
            measure(folder, scale, figures, progress)
    return figures.result("store", quick=quick, machine=machine, bars=BARS)
