"""Append throughput: 64 producers of 88 kB batches, fsynced, against the bare disk.

Each contender is followed immediately by the disk's turn: write and fdatasync of the bytes that its
WAL was given, in the same groups. Ratios are taken within the pair. The disk has a second turn, and
the control is its speed in parts of the first. The contenders' order is another one each round, and
what they wrote stays until all are done: whoever comes next would pay for its removal.

The load generator shares the process, and its CPU time counts as the append's. The same loop with
an append that does nothing shows its share (`generator_cpu_us`).

Poor groups would make the disk look as slow as they are. So the burst is also set beside a disk
that is given the same bytes in groups of all 64 producers (`append_vs_disk_of_64`).

    burst       64 tasks of one event loop; nothing is sealed meanwhile, because the open buffer is
                large enough for all of it. This is the acknowledgement path alone, which is what
                the ratio is about
    trusted     the same with batches that are said to be trusted, so not looked through
    raw         the same with raw bundles of 43 events of 2 kB: no Arrow is encoded
    recycled    the burst in a quiver that has sealed as much before, so that its log is written
                over old files, as in any that runs for longer than a segment takes. Beside the bare
                disk that writes a new file and, as `recycled_append_vs_disk_over`, one that writes
                over an old one
    threads     the same with 64 threads
    sustained   default configuration, sealing included: every byte is written twice

And small appends: one raw 2 kB event each, fsynced, and what sealing does to them.

tasks       64 tasks of one event loop, sealing included: default configuration
threads     the same with 64 threads
unsealed    tasks again, with an open buffer that is large enough for all of it
"""

from __future__ import annotations

import inspect
import itertools
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.load import (
    IDLE_TASKS,
    IDLE_THREADS,
    PRODUCERS,
    Drive,
    LoadRun,
    RawRun,
    by_tasks,
    by_threads,
    generator_cpu_us,
    measure,
    raw_event,
    replay_groups,
    telemetry_batch,
)
from holdfast.bench.scale import QuiverScale
from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig, WalConfig

# The largest there is, so that no seal begins.
BURST = QuiverConfig(
    segment=SegmentConfig(target_size_bytes=256 * 1024 * 1024, max_open_duration_s=600.0)
)
# The whole burst in one file: what is written over is then as long.
RECYCLED = QuiverConfig(segment=BURST.segment, wal=WalConfig(file_size_bytes=256 * 1024 * 1024))
SUSTAINED = QuiverConfig()
RAW_EVENTS = 43  # of 2 kB: as many bytes as a batch


class Pair(NamedTuple):
    """One round of one contender: ours, then the disk, again, and with large groups."""

    ours: LoadRun
    raw: RawRun
    raw_again: RawRun
    raw_of_64: RawRun
    raw_over: RawRun
    generator_cpu_us: float

    @property
    def ratio(self) -> float:
        """Our throughput in parts of the disk's."""
        return self.ours.wal_mb_per_s / self.raw.mb_per_s


def _in_groups_of(appends: int, run: LoadRun) -> list[int]:
    """Return the bytes of a run in groups of so many appends."""
    groups = max(1, run.appends // appends)
    return [sum(run.groups) // groups] * groups


def measure_append(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"append: 64 producers, 88 kB batches, {scale.rounds} rounds against the bare disk")
    batch, events = telemetry_batch(), [raw_event(seed) for seed in range(RAW_EVENTS)]
    tasks = by_tasks(lambda quiver: quiver.append_async(batch))
    # A version that knows no trust looks through everything.
    known = "trusted" in inspect.signature(Quiver.append_async).parameters
    trust: Any = {"trusted": True} if known else {}
    trusted = by_tasks(lambda quiver: quiver.append_async(batch, **trust))
    raw = by_tasks(lambda quiver: quiver.append_raw_async(events))
    threads = by_threads(lambda quiver: quiver.append(batch))

    def pair(
        config: QuiverConfig, appends_each: int, drive: Drive, nothing: Drive
    ) -> Callable[[], Pair]:
        def contend() -> Pair:
            is_new = config is not RECYCLED
            place = folder / f"append-{next(number)}"
            ours = measure(place, config, appends_each, drive, is_new=is_new)
            # A seal during a burst would write the same bytes once more, beside the appends: the
            # ratio would then measure how the disk shares itself.
            seals = ours.statistics.sealer.segments
            assert config is SUSTAINED or seals == (0 if is_new else 2), "BUG: a seal began"
            # Immediately after: a shared disk is twice as fast from one minute to the next, and
            # the two halves of a pair should see the same disk.
            return Pair(
                ours,
                replay_groups(folder, ours.groups),
                replay_groups(folder, ours.groups),
                replay_groups(folder, _in_groups_of(PRODUCERS, ours)),
                replay_groups(folder, ours.groups, is_new=False),
                generator_cpu_us(nothing, appends_each),
            )

        return contend

    number, each = itertools.count(), scale.burst_batches_each
    pairs = rotated(
        {
            "burst": pair(BURST, each, tasks, IDLE_TASKS),
            "trusted": pair(BURST, each, trusted, IDLE_TASKS),
            "raw": pair(BURST, each, raw, IDLE_TASKS),
            "recycled": pair(RECYCLED, each, tasks, IDLE_TASKS),
            "threads": pair(BURST, each, threads, IDLE_THREADS),
            "sustained": pair(SUSTAINED, scale.sustained_batches_each, tasks, IDLE_TASKS),
        },
        scale.rounds,
        warm_up=True,
    )
    _add(figures, "", pairs["burst"])
    _add(figures, "trusted_", pairs["trusted"])
    _add(figures, "raw_", pairs["raw"])
    _add(figures, "recycled_", pairs["recycled"])
    over = (found.ours.wal_mb_per_s / found.raw_over.mb_per_s for found in pairs["recycled"])
    figures.add("recycled_append_vs_disk_over", over)
    _add(figures, "threads_", pairs["threads"])
    _add(figures, "sustained_", pairs["sustained"])
    _add_amplification(figures, [found.ours for found in pairs["sustained"]])
    figures.add(
        "sustained_stall_ms",
        (found.ours.statistics.writer.stall_seconds_max * 1e3 for found in pairs["sustained"]),
    )
    _remove(folder, "append-*")


def _remove(folder: Path, pattern: str) -> None:
    for place in folder.glob(pattern):
        shutil.rmtree(place)


def _add(figures: Figures, prefix: str, pairs: list[Pair]) -> None:
    """Add the figures of one way to append, and of the disk that ran right after it."""
    figures.add(f"{prefix}append_vs_disk", (pair.ratio for pair in pairs))
    again = (pair.raw_again.mb_per_s / pair.raw.mb_per_s for pair in pairs)
    figures.add(f"{prefix}append_vs_disk_control", again)
    of_64 = (pair.ours.wal_mb_per_s / pair.raw_of_64.mb_per_s for pair in pairs)
    figures.add(f"{prefix}append_vs_disk_of_64", of_64)
    figures.add(f"{prefix}append_cpu_vs_disk", (pair.raw.cpu_s / pair.ours.cpu_s for pair in pairs))
    figures.add(f"{prefix}generator_cpu_us", (pair.generator_cpu_us for pair in pairs))
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
    """Add how many bytes are written for each byte of payload, in all and by what wrote them."""

    def per_payload_byte(run: LoadRun, *parts: str) -> float:
        written = sum(run.written_bytes.get(part, 0) for part in parts or run.written_bytes)
        return written / run.statistics.writer.payload_bytes

    figures.add("write_amplification", (per_payload_byte(run) for run in runs))
    figures.add("write_amplification_wal", (per_payload_byte(run, "wal") for run in runs))
    figures.add("write_amplification_seal", (per_payload_byte(run, "seal") for run in runs))


def measure_small(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"small appends: 64 producers, one raw 2 kB event each, {scale.rounds} rounds")
    event = raw_event()
    tasks = by_tasks(lambda quiver: quiver.append_raw_async(event))
    threads = by_threads(lambda quiver: quiver.append_raw(event))
    disk: list[RawRun] = []
    number = itertools.count()

    def contender(config: QuiverConfig, drive: Drive) -> Callable[[], LoadRun]:
        def contend() -> LoadRun:
            run = measure(folder / f"small-{next(number)}", config, scale.small_each, drive)
            if drive is tasks and config is SUSTAINED:
                disk.append(replay_groups(folder, run.groups))
            return run

        return contend

    runs = rotated(
        {
            "tasks": contender(SUSTAINED, tasks),
            "threads": contender(SUSTAINED, threads),
            "unsealed": contender(BURST, tasks),
        },
        scale.rounds,
        warm_up=True,
    )
    generator = [generator_cpu_us(IDLE_TASKS, scale.small_each) for _ in range(scale.rounds)]
    figures.add("small_generator_cpu_us", generator)
    _add_small(figures, "", runs["tasks"])
    _add_small(figures, "threads_", runs["threads"])
    _add_small(figures, "unsealed_", runs["unsealed"])
    # The warm-up round's is thrown away here as well.
    measured = disk[-scale.rounds :]
    figures.add("disk_group_p50_ms", (statistics.median(run.group_s) * 1e3 for run in measured))
    _add_stall(figures, runs["tasks"], runs["unsealed"])
    _remove(folder, "small-*")


def _add_small(figures: Figures, prefix: str, runs: list[LoadRun]) -> None:
    figures.add(f"{prefix}small_append_per_s", (run.appends_per_s for run in runs))
    figures.add(
        f"{prefix}syncs_per_append", (run.statistics.writer.syncs / run.appends for run in runs)
    )
    figures.add(f"{prefix}cpu_us_per_small_append", (run.cpu_us_per_append for run in runs))
    for percent in (50, 99):
        figures.add(f"{prefix}ack_p{percent}_ms", (run.latency_ms(percent) for run in runs))


def _add_stall(figures: Figures, sealing: list[LoadRun], unsealed: list[LoadRun]) -> None:
    """Add how long the longest append waited: with sealing beside it, and without."""
    figures.add("seal_stall_ms", (run.latency_ms(100) for run in sealing))
    figures.add("unsealed_longest_ack_ms", (run.latency_ms(100) for run in unsealed))
    figures.add("seal_wait_ms", (run.statistics.writer.stall_seconds_max * 1e3 for run in sealing))
    figures.add("seals_per_round", (run.statistics.sealer.segments for run in sealing))
