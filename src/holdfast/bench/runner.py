"""Runs a benchmark: its sections one after another, in a folder that is gone afterwards.

A benchmark is a row of `load`: how much is measured, by which sections, and the bars its figures
must reach. The report says what it ran on: without that, no figure can be compared with another.
docs/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from holdfast import __version__
from holdfast.bench.figures import Bar, Figures
from holdfast.bench.scale import (
    DATAFLOW_FULL,
    DATAFLOW_QUICK,
    GATEWAY_FULL,
    GATEWAY_QUICK,
    HANDOFF_FULL,
    HANDOFF_QUICK,
    OTEL_FULL,
    OTEL_QUICK,
    QUIVER_FULL,
    QUIVER_QUICK,
    STORE_FULL,
    STORE_QUICK,
)
from holdfast.errors import BadInput

Progress = Callable[[str], None]
# Measures something in a folder, as much as the scale says, and adds what it found.
Section = Callable[[Path, Any, Figures, Progress], None]


class Benchmark(NamedTuple):
    """What is run under one name.

    Bars are ratios wherever that is possible, against something that ran in the same minutes on the
    same machine. An absolute bar says how fast the machine has to be, and is there for what users
    feel directly: memory, start-up, an idle gateway.
    """

    sections: tuple[Section, ...]
    bars: tuple[Bar, ...]
    full: object
    quick: object
    # What the figures depend on beside the machine.
    environment: Mapping[str, str] = {}
    # What of the full scale is less when commits are compared: more rounds tell more than bytes.
    compared: Mapping[str, object] = {}

    def only(self, names: Collection[str]) -> Benchmark:
        """Return it with the sections of these names; without any, with all."""
        if not names:
            return self
        known = {section_name(section.__name__): section for section in self.sections}
        if unknown := set(names) - set(known):
            raise BadInput(
                f"there is no section {', '.join(sorted(unknown))}",
                hint=f"choose of: {', '.join(known)}",
            )
        return self._replace(sections=tuple(known[name] for name in known if name in names))


def section_name(function_name: str) -> str:
    """Return what a section is called: `measure_append` is "append"."""
    return function_name.removeprefix("measure_")


def run_benchmark(
    name: str,
    *,
    quick: bool,
    progress: Progress,
    directory: PurePath | None,
    only: Collection[str] = (),
) -> dict[str, object]:
    """Measure everything, or some sections, and return the report."""
    benchmark = load(name).only(only)
    scale = benchmark.quick if quick else benchmark.full
    figures = Figures()
    with scratch(directory) as folder:
        machine = {**describe(folder), **benchmark.environment}
        if filesystem(folder) in IN_MEMORY:
            progress("this filesystem lives in memory: syncs cost nothing here")
        for measure in benchmark.sections:
            # Its own: what one section leaves is not there for the next.
            place = folder / section_name(measure.__name__)
            place.mkdir()
            measure(place, scale, figures, progress)
    return figures.result(name, quick=quick, machine=machine, bars=benchmark.bars)


def load(name: str) -> Benchmark:
    """Return a benchmark, with the libraries that it alone needs.

    Imports happen here, one benchmark at a time: measuring the quiver must not depend on Spark
    being installed, nor pay for importing it.
    """
    match name:
        case "quiver":
            return _quiver()
        case "gateway":
            return _gateway()
        case "otel":
            return _otel()
        case "dataflow":
            return _dataflow()
        case "handoff":
            return _handoff()
        case "store":
            return _store()
    raise AssertionError(f"BUG: no benchmark {name}")


def _quiver() -> Benchmark:
    from holdfast.bench.quiver_append import measure_append, measure_small
    from holdfast.bench.quiver_delivery import measure_delivery
    from holdfast.bench.quiver_ledger import measure_ledger
    from holdfast.bench.quiver_open import measure_recovery, measure_startup

    sections = (
        measure_append,
        measure_small,
        measure_recovery,
        measure_startup,
        measure_delivery,
        measure_ledger,
    )
    bars = (
        Bar("append_vs_disk", at_least=0.8),
        Bar("recovery_mb_s", at_least=400),
        Bar("recovery_frames_per_s", at_least=100_000),
        Bar("startup_doubling_percent", at_most=20),
        Bar("rss_mb", at_most=200),
    )
    compared = {
        "burst_batches_each": 16,
        "sustained_batches_each": 32,
        "small_each": 300,
        "recovery_mb": (96,),
        "startup_segments": 40,
        "startup_segment_mb": 4,
        "deliver_mb": 100,
        "deliver_bundles": 5_000,
        "idle_events": 20,
        "acks": 5_000,
        "stream_batches": 100,
        "ledger_acks": 200_000,
    }
    return Benchmark(sections, bars, QUIVER_FULL, QUIVER_QUICK, compared=compared)


def _gateway() -> Benchmark:
    from holdfast.bench.gateway_accept import measure_accept
    from holdfast.bench.gateway_forward import measure_forward, measure_memory
    from holdfast.bench.lineage_validation import measure_lineage_validation

    sections = (measure_accept, measure_forward, measure_memory, measure_lineage_validation)
    # Arrow loads it where it is installed: `holdfast[gateway]` alone does not, tests do.
    numpy = _version("numpy")
    bars = (
        Bar("vs_jetstream_sync", at_least=2.0),
        Bar("jetstream_client_cpu_ratio", at_most=1.5),
        Bar("deliver_vs_bare_client", at_least=0.6),
        Bar("rss_mb", at_most=110 if numpy is None else 150),
        Bar("rss_backlog_mb", at_most=250),
        Bar("validation_vs_parse", at_most=3.0),
    )
    compared = {"seconds": 1.5, "backlog_events": 4_000, "backlog_mb": 100}
    environment = {"numpy": numpy or "not installed"}
    return Benchmark(sections, bars, GATEWAY_FULL, GATEWAY_QUICK, environment, compared)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _otel() -> Benchmark:
    # Beside `grpcio`, which is the peer and the client here, and nothing that Holdfast listens by.
    from holdfast.bench.otel_accept import measure_otel_accept
    from holdfast.bench.otel_durable import measure_otel_durable
    from holdfast.bench.otel_flat import measure_flat_tables
    from holdfast.bench.otel_forward import measure_joining, measure_persistence
    from holdfast.bench.otel_memory import measure_otel_memory
    from holdfast.bench.otel_otap import measure_otap
    from holdfast.bench.otel_query import measure_scan

    sections = (
        measure_otel_memory,
        measure_otel_accept,
        measure_otel_durable,
        measure_joining,
        measure_persistence,
        measure_scan,
        measure_flat_tables,
        measure_otap,
    )
    bars = (
        Bar("flat_vs_parse", at_most=4.0),
        Bar("grpc_vs_plain", at_most=2.5),
        Bar("grpc_vs_plain_1000", at_most=2.5),
        Bar("http_vs_plain", at_most=1.5),
        Bar("http_vs_plain_1000", at_most=1.5),
        Bar("vs_otelcol_durable", at_least=1.0),
        Bar("vs_otelcol_durable_1000", at_least=1.0),
        Bar("rss_mb", at_most=150),
        Bar("rss_in_flight_mb", at_most=400),
        Bar("scan_vs_parquet", at_least=0.5),
        Bar("otap_vs_otlp_bytes", at_most=0.7),
    )
    return Benchmark(sections, bars, OTEL_FULL, OTEL_QUICK)


def _dataflow() -> Benchmark:
    import pyspark

    from holdfast.bench.dataflow_latency import measure_latency
    from holdfast.bench.dataflow_pipelines import (
        measure_batches,
        measure_idle,
        measure_native,
        measure_python,
    )
    from holdfast.bench.dataflow_reading import MASTER, measure_reading
    from holdfast.bench.dataflow_windows import measure_arrow, measure_by_rows, measure_windows

    bars = (
        Bar("plain_vs_parquet", at_least=0.5),
        Bar("window_vs_parquet", at_least=1.0),
        Bar("stream_window_vs_batch", at_least=0.25),
        Bar("idle_batches_per_minute", at_most=0),
    )
    sections = (
        measure_reading,
        measure_windows,
        measure_by_rows,
        measure_native,
        measure_python,
        measure_arrow,
        measure_batches,
        measure_latency,
        measure_idle,
    )
    compared = {"rows": 3_000_000, "batches": 8, "idle_s": 5.0, "latency_s": 5.0}
    environment = {"spark": pyspark.__version__, "master": MASTER}
    return Benchmark(sections, bars, DATAFLOW_FULL, DATAFLOW_QUICK, environment, compared)


def _handoff() -> Benchmark:
    from holdfast.bench.handoff_drain import measure_drain
    from holdfast.bench.handoff_waiting import measure_waiting

    bars = (
        Bar("drain_vs_flight", at_least=0.8),
        Bar("adopt_vs_append", at_least=1.5),
        Bar("healthy_node_ratio", at_least=0.9),
        Bar("fairness", at_most=1.2),
        Bar("store_amplification", at_most=1.01),
        Bar("startup_s", at_most=1.0),
        Bar("startup_segments_s", at_most=10.0),
        Bar("node_startup_s", at_most=10.0),
    )
    sections = (measure_drain, measure_waiting)
    compared = {"waiting_bundles": 50_000, "waiting_segments": 2_000, "startup_rounds": 1}
    return Benchmark(sections, bars, HANDOFF_FULL, HANDOFF_QUICK, compared=compared)


def _store() -> Benchmark:
    from holdfast.bench.store_backup import measure_backup
    from holdfast.bench.store_many import measure_collecting, measure_many

    bars = (
        Bar("vs_restic_store", at_least=2.0),
        Bar("vs_restic_changed", at_least=2.0),
        Bar("vs_restic_restore", at_least=1.7),
        Bar("vs_restic_store_cpu", at_least=2.0),
        Bar("vs_restic_changed_cpu", at_least=2.0),
        Bar("vs_restic_restore_cpu", at_least=1.3),
        Bar("vs_borg_store", at_least=1.3),
        Bar("vs_borg_changed", at_least=1.5),
        Bar("vs_borg_restore", at_least=1.5),
        Bar("startup_cpu_ms", at_most=150.0),
        Bar("stored_bytes_vs_restic", at_most=1.02),
        Bar("lookup_ms", at_most=5.0),
        Bar("list_entries_per_s", at_least=200_000),
        Bar("diff_growth", at_most=2.0),
        Bar("gc_chunks_per_s", at_least=12_000),
        Bar("gc_cost_slope", at_most=0.5),
    )
    sections = (measure_backup, measure_many, measure_collecting)
    compared = {
        "corpus_bytes": 100 * 1024 * 1024,
        "many_files": 100_000,
        "fewer_files": 10_000,
        "garbage_chunks": 2_000,
    }
    return Benchmark(sections, bars, STORE_FULL, STORE_QUICK, compared=compared)


# Filesystems that live in memory: their sync costs nothing and proves nothing.
IN_MEMORY = {"ramfs", "tmpfs"}


def describe(directory: PurePath) -> dict[str, object]:
    """Return processor, memory, filesystem and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "load_average": _load_average(),
        "memory_mb": _memory_mb(),
        "filesystem": filesystem(directory),
        "free_disk_mb": shutil.disk_usage(directory).free // 1_000_000,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "pyarrow": pa.__version__,
        "xxhash": xxhash.VERSION,
        "holdfast": __version__,
    }


def filesystem(directory: PurePath) -> str:
    """Return the type of the filesystem that holds a directory, "unknown" where nobody says.

    The deepest mount point above it counts.
    """
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    here = Path(directory).resolve()
    best, kind = -1, "unknown"
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        place = Path(point.encode().decode("unicode_escape"))
        # Later mounts hide earlier ones at the same place.
        if here.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), found
    return kind


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _load_average() -> list[float]:
    """Before the measurement: who reads a report can tell whether the machine had other work."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else []


def _memory_mb() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1_000_000


PREFIX = "holdfast-bench-"


def default_directory() -> Path:
    """Return where large temporary files go: /var/tmp, because /tmp may live in memory.

    On many systems /tmp is a tmpfs, whose sync is free: every figure about durability would be
    fiction.
    """
    large = Path("/var/tmp")
    return large if os.access(large, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def scratch(directory: PurePath | None) -> Iterator[Path]:
    """Yield a new folder, and remove it on return, on an error, on ^C and on SIGTERM."""
    parent = default_directory() if directory is None else Path(directory)
    parent.mkdir(parents=True, exist_ok=True)
    with _terminate_by_exception():
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _terminate_by_exception() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that `finally` runs and the folder goes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
