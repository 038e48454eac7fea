"""Runs a benchmark: its sections one after another, in a folder that is gone afterwards.

A benchmark is a row of `load`: how much is measured, by which sections, and the bars its figures
must reach. docs/benchmarks.md says what each figure means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from holdfast.bench.figures import Bar, Figures
from holdfast.bench.machine import IN_MEMORY, describe, filesystem
from holdfast.bench.scale import (
    DATAFLOW_FULL,
    DATAFLOW_QUICK,
    GATEWAY_FULL,
    GATEWAY_QUICK,
    QUIVER_FULL,
    QUIVER_QUICK,
    STORE_FULL,
    STORE_QUICK,
)
from holdfast.bench.scratch import scratch

Progress = Callable[[str], None]
# Measures something in a folder, as much as the scale says, and adds what it found.
Section = Callable[[Path, Any, Figures, Progress], None]


class Benchmark(NamedTuple):
    """What is run under one name."""

    sections: tuple[Section, ...]
    bars: tuple[Bar, ...]
    full: object
    quick: object
    # What the figures depend on beside the machine.
    environment: Mapping[str, str] = {}


def run_benchmark(
    name: str, *, quick: bool, progress: Progress, directory: PurePath | None
) -> dict[str, object]:
    """Measure everything, and return the report."""
    benchmark = load(name)
    scale = benchmark.quick if quick else benchmark.full
    figures = Figures()
    with scratch(directory) as folder:
        machine = {**describe(folder), **benchmark.environment}
        if filesystem(folder) in IN_MEMORY:
            progress("this filesystem lives in memory: syncs cost nothing here")
        for measure in benchmark.sections:
            measure(folder, scale, figures, progress)
    return figures.result(name, quick=quick, machine=machine, bars=benchmark.bars)


def load(name: str) -> Benchmark:
    """Return a benchmark, with the libraries that it alone needs."""
    match name:
        case "quiver":
            return _quiver()
        case "gateway":
            return _gateway()
        case "dataflow":
            return _dataflow()
        case "store":
            return _store()
    raise AssertionError(f"BUG: no benchmark {name}")


def _quiver() -> Benchmark:
    from holdfast.bench.quiver_append import measure_append
    from holdfast.bench.quiver_delivery import measure_delivery
    from holdfast.bench.quiver_recovery import measure_recovery
    from holdfast.bench.quiver_small import measure_small
    from holdfast.bench.quiver_startup import measure_startup

    sections = (measure_append, measure_small, measure_recovery, measure_startup, measure_delivery)
    bars = (
        Bar("append_vs_disk", at_least=0.8),
        Bar("recovery_mb_s", at_least=400),
        Bar("recovery_frames_per_s", at_least=100_000),
        Bar("startup_doubling_percent", at_most=20),
        Bar("rss_mb", at_most=200),
    )
    return Benchmark(sections, bars, QUIVER_FULL, QUIVER_QUICK)


def _gateway() -> Benchmark:
    from holdfast.bench.gateway_accept import measure_accept
    from holdfast.bench.gateway_forward import measure_forward
    from holdfast.bench.gateway_memory import measure_memory
    from holdfast.bench.lineage_validation import measure_lineage_validation

    sections = (measure_accept, measure_forward, measure_memory, measure_lineage_validation)
    bars = (
        Bar("vs_jetstream_sync", at_least=2.0),
        Bar("rss_mb", at_most=150),
        Bar("rss_backlog_mb", at_most=250),
        Bar("validation_vs_parse", at_most=3.0),
    )
    return Benchmark(sections, bars, GATEWAY_FULL, GATEWAY_QUICK)


def _dataflow() -> Benchmark:
    import pyspark

    from holdfast.bench.dataflow_session import MASTER, measure_dataflow

    bars = (
        Bar("plain_vs_parquet", at_least=0.4),
        Bar("idle_batches_per_minute", at_most=0),
    )
    environment = {"spark": pyspark.__version__, "master": MASTER}
    return Benchmark((measure_dataflow,), bars, DATAFLOW_FULL, DATAFLOW_QUICK, environment)


def _store() -> Benchmark:
    from holdfast.bench.store_backup import measure_backup
    from holdfast.bench.store_gc import measure_collecting
    from holdfast.bench.store_many import measure_many

    bars = (
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
    sections = (measure_backup, measure_many, measure_collecting)
    return Benchmark(sections, bars, STORE_FULL, STORE_QUICK)
