"""Small appends: 64 producers of one raw 2 kB event each, fsynced; and what sealing does to them.

tasks       64 tasks of one event loop, sealing included: default configuration
threads     the same with 64 threads
unsealed    tasks again, with an open buffer that is large enough for all of it
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.load import Drive, LoadRun, by_tasks, by_threads, measure
from holdfast.bench.quiver_append import BURST, SUSTAINED
from holdfast.bench.raw_disk import RawRun, replay_groups
from holdfast.bench.rounds import interleave
from holdfast.bench.scale import QuiverScale
from holdfast.bench.workload import raw_event
from holdfast.quiver import QuiverConfig


def measure_small(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"small appends: 64 producers, one raw 2 kB event each, {scale.rounds} rounds")
    event = raw_event()
    tasks = by_tasks(lambda quiver: quiver.append_raw_async(event))
    threads = by_threads(lambda quiver: quiver.append_raw(event))
    disk: list[RawRun] = []

    def contender(config: QuiverConfig, drive: Drive) -> Callable[[], LoadRun]:
        def contend() -> LoadRun:
            run = measure(folder / "small", config, scale.small_each, drive)
            shutil.rmtree(folder / "small")
            return run

        return contend

    def tasks_then_disk() -> LoadRun:
        run = contender(SUSTAINED, tasks)()
        disk.append(replay_groups(folder, run.groups))
        return run

    runs = interleave(
        {
            "tasks": tasks_then_disk,
            "threads": contender(SUSTAINED, threads),
            "unsealed": contender(BURST, tasks),
        },
        scale.rounds,
    )
    _add(figures, "", runs["tasks"])
    _add(figures, "threads_", runs["threads"])
    _add(figures, "unsealed_", runs["unsealed"])
    # The warm-up round's is thrown away here as well.
    measured = disk[-scale.rounds :]
    figures.add("disk_group_p50_ms", (statistics.median(run.group_s) * 1e3 for run in measured))
    _add_stall(figures, runs["tasks"], runs["unsealed"])


def _add(figures: Figures, prefix: str, runs: list[LoadRun]) -> None:
    figures.add(f"{prefix}small_append_per_s", (run.appends_per_s for run in runs))
    figures.add(
        f"{prefix}syncs_per_append", (run.statistics.writer.syncs / run.appends for run in runs)
    )
    figures.add(f"{prefix}cpu_us_per_small_append", (run.cpu_us_per_append for run in runs))
    for percent in (50, 99):
        figures.add(f"{prefix}ack_p{percent}_ms", (run.latency_ms(percent) for run in runs))


def _add_stall(figures: Figures, sealing: list[LoadRun], unsealed: list[LoadRun]) -> None:
    figures.add("seal_stall_ms", (run.latency_ms(100) for run in sealing))
    figures.add("unsealed_longest_ack_ms", (run.latency_ms(100) for run in unsealed))
    figures.add("seal_wait_ms", (run.statistics.writer.stall_seconds_max * 1e3 for run in sealing))
    figures.add("seals_per_round", (run.statistics.sealer.segments for run in sealing))
