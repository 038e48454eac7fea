"""Append throughput: 64 producers of 88 kB batches, fsynced, against the bare disk.

Each contender is followed at once by the disk's turn: write and fdatasync of the bytes that its
WAL was given, in the same groups. Ratios are taken within the pair.

    burst       64 tasks of one event loop; nothing is sealed meanwhile, because the open buffer is
                large enough for all of it. This is the acknowledgement path alone, which is what
                the ratio is about
    raw         the same with raw bundles of 43 events of 2 kB: no Arrow is encoded
    threads     the same with 64 threads
    sustained   default configuration, sealing included: every byte is written twice
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.bench.figures import Figures
from holdfast.bench.load import Drive, LoadRun, by_tasks, by_threads, measure
from holdfast.bench.raw_disk import RawRun, replay_groups
from holdfast.bench.rounds import interleave
from holdfast.bench.scale import QuiverScale
from holdfast.bench.workload import raw_event, telemetry_batch
from holdfast.quiver import QuiverConfig, SegmentConfig

# The largest there is, so that no seal begins.
BURST = QuiverConfig(
    segment=SegmentConfig(target_size_bytes=256 * 1024 * 1024, max_open_duration_s=600.0)
)
SUSTAINED = QuiverConfig()
RAW_EVENTS = 43  # of 2 kB: as many bytes as a batch


class Pair(NamedTuple):
    """One round of one contender: ours, then the disk."""

    ours: LoadRun
    raw: RawRun

    @property
    def ratio(self) -> float:
        """Our throughput in parts of the disk's."""
        return self.ours.wal_mb_per_s / self.raw.mb_per_s


def measure_append(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"append: 64 producers, 88 kB batches, {scale.rounds} rounds against the bare disk")
    batch, events = telemetry_batch(), [raw_event(seed) for seed in range(RAW_EVENTS)]
    tasks = by_tasks(lambda quiver: quiver.append_async(batch))
    raw = by_tasks(lambda quiver: quiver.append_raw_async(events))
    threads = by_threads(lambda quiver: quiver.append(batch))

    def pair(config: QuiverConfig, appends_each: int, drive: Drive) -> Callable[[], Pair]:
        def contend() -> Pair:
            ours = measure(folder / "append", config, appends_each, drive)
            shutil.rmtree(folder / "append")
            assert config is SUSTAINED or not ours.statistics.sealer.segments, "BUG: a seal began"
            return Pair(ours, replay_groups(folder, ours.groups))

        return contend

    pairs = interleave(
        {
            "burst": pair(BURST, scale.burst_batches_each, tasks),
            "raw": pair(BURST, scale.burst_batches_each, raw),
            "threads": pair(BURST, scale.burst_batches_each, threads),
            "sustained": pair(SUSTAINED, scale.sustained_batches_each, tasks),
        },
        scale.rounds,
    )
    _add(figures, "", pairs["burst"])
    _add(figures, "raw_", pairs["raw"])
    _add(figures, "threads_", pairs["threads"])
    _add(figures, "sustained_", pairs["sustained"])
    _add_amplification(figures, [found.ours for found in pairs["sustained"]])
    figures.add(
        "sustained_stall_ms",
        (found.ours.statistics.writer.stall_seconds_max * 1e3 for found in pairs["sustained"]),
    )


def _add(figures: Figures, prefix: str, pairs: list[Pair]) -> None:
    figures.add(f"{prefix}append_vs_disk", (pair.ratio for pair in pairs))
    figures.add(f"{prefix}append_mb_s", (pair.ours.wal_mb_per_s for pair in pairs))
    figures.add(f"{prefix}disk_mb_s", (pair.raw.mb_per_s for pair in pairs))
    figures.add(f"{prefix}append_cpu_us", (pair.ours.cpu_us_per_append for pair in pairs))
    figures.add(
        f"{prefix}disk_cpu_us", (pair.raw.cpu_s / pair.ours.appends * 1e6 for pair in pairs)
    )
    figures.add(f"{prefix}append_group_kb", (_group_kb(pair.ours) for pair in pairs))


def _group_kb(run: LoadRun) -> float:
    return sum(run.groups) / len(run.groups) / 1e3


def _add_amplification(figures: Figures, runs: list[LoadRun]) -> None:
    def per_payload_byte(run: LoadRun, *parts: str) -> float:
        written = sum(run.written_bytes.get(part, 0) for part in parts or run.written_bytes)
        return written / run.statistics.writer.payload_bytes

    figures.add("write_amplification", (per_payload_byte(run) for run in runs))
    figures.add("write_amplification_wal", (per_payload_byte(run, "wal") for run in runs))
    figures.add("write_amplification_seal", (per_payload_byte(run, "seal") for run in runs))
