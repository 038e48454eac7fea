"""A simulated machine on which quivers are opened, killed, unplugged, damaged and read back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple, Self

from tests.patience import APPEND_S, PATIENCE_S

from holdfast.quiver import AckLevel, AppendConfig, Quiver, QuiverConfig, SegmentConfig, WalConfig
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.frame import Frame
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.wal import Hole, WalHeader, decode_header, walk
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

ROOT = PurePath("/data")
WAL = ROOT / "wal"
SEGMENTS = ROOT / "segments"
QUARANTINE = ROOT / "quarantine"
# 2026-01-02 03:04:05.678901 UTC.
START_NS = 1_767_323_045_678_901_000
# Keeps the WAL files: nothing gets into a segment.
NO_SEAL = Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.EIO, times=1_000_000)


def quiet(
    level: AckLevel = AckLevel.FSYNCED,
    *,
    flush_interval_s: float = 3600.0,
    file_size_bytes: int = 64 * KB,
    max_size_bytes: int = 64 * MB,
    max_pending_bytes: int = 64 * MB,
    timeout_s: float = PATIENCE_S,
    max_open_duration_s: float = 3600.0,
    max_files: int = 64,
    spare_files: int = 0,
) -> QuiverConfig:
    """Return a configuration under which nothing happens by timer, and files are small and new."""
    return QuiverConfig(
        append=AppendConfig(level=level, max_pending_bytes=max_pending_bytes, timeout_s=timeout_s),
        wal=WalConfig(
            file_size_bytes=file_size_bytes,
            max_size_bytes=max_size_bytes,
            flush_interval_s=flush_interval_s,
            spare_files=spare_files,
        ),
        segment=SegmentConfig(
            target_size_bytes=MB,
            max_open_duration_s=max_open_duration_s,
            max_files=max_files,
            retry_min_s=0.001,
            retry_max_s=0.01,
        ),
    )


class Machine:
    """A disk and a clock, and the processes that own the quiver on it, one after another."""

    # Whether every append is answered by itself. Where nothing ever seals a segment, one that waits
    # for that ends by its time-out only.
    answers_all = True

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = JumpingClock(START_NS)
        self.quiver: Quiver | None = None
        self._starts = 0

    def start(
        self,
        config: QuiverConfig | None = None,
        *,
        faults: Iterable[Fault] = (),
        through: Callable[[SimulatedDisk], Disk] | None = None,
        expected_id: str | None = None,
    ) -> Quiver:
        """Open the quiver in a new process: over a disk with `faults`, or one that wraps ours."""
        disk = through(self.disk) if through else FaultyDisk(self.disk, faults, self.disk.die)
        self._starts += 1
        seam = Seam(disk, self.clock, seeded_randomness(self._starts))
        self.quiver = Quiver.open(ROOT, config or quiet(), seam=seam, expected_id=expected_id)
        if self.answers_all and (config or quiet()).append.timeout_s == APPEND_S:
            # So long the writer waits for room; on a busy machine its answer comes later.
            patient = replace(self.quiver._config.append, timeout_s=PATIENCE_S)
            self.quiver._config = replace(self.quiver._config, append=patient)
        return self.quiver

    def stop(self) -> None:
        """End the process as it should."""
        if self.quiver is not None:
            self.quiver.close()
            self.quiver = None

    def kill(self) -> None:
        """End the process by kill -9."""
        self._end(self.disk.kill())

    def cut_power(self, randomness: random.Random | None = None) -> None:
        """Turn the machine off and on again."""
        self._end(self.disk.power_loss(randomness))

    def _end(self, survivor: SimulatedDisk) -> None:
        self.disk = survivor
        if self.quiver is not None:
            with contextlib.suppress(SimulatedCrash):
                self.quiver.close()
            self.quiver = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ------------------------------------------------------------------ looking

    def wal_paths(self) -> list[PurePath]:
        """Return the WAL files, oldest first."""
        return [WAL / entry.name for entry in self.disk.list(WAL)]

    def wal(self, place: int = -1) -> WalFile:
        """Return one WAL file taken apart."""
        return take_apart(self.disk.read(self.wal_paths()[place]))

    def flip(self, path: PurePath, bit: int) -> None:
        """Turn over one bit of a file."""
        byte, mask = bit // 8, 1 << bit % 8
        self.disk.overwrite(path, byte, bytes([self.disk.read(path)[byte] ^ mask]))

    def scribble(self, path: PurePath, start: int, end: int) -> None:
        """Turn over all bits of a part of a file."""
        content = self.disk.read(path)[start:end]
        self.disk.overwrite(path, start, bytes(byte ^ 0xFF for byte in content))

    def cut(self, path: PurePath, size_bytes: int) -> None:
        """Cut a file short."""
        self.disk.put(path, self.disk.read(path)[:size_bytes])


class WalFile(NamedTuple):
    """The parts of a WAL file."""

    header: WalHeader
    items: list[Frame | Hole]

    @property
    def frames(self) -> list[Frame]:
        """The sound frames."""
        return [item for item in self.items if isinstance(item, Frame)]

    @property
    def starts(self) -> list[int]:
        """Where each item begins."""
        ends = [item.end for item in self.items]
        return [8192, *ends[:-1]] if ends else []


def take_apart(content: bytes) -> WalFile:
    """Return the header, the frames and the holes of a WAL file."""
    view = memoryview(content)
    header = decode_header(view)
    return WalFile(header, list(walk(view, header.salt)))


def payloads(quiver: Quiver, slot: str = "events") -> dict[int, list[bytes]]:
    """Return the events of every raw bundle in a slot, by seq; damaged ones are left out."""
    found: dict[int, list[bytes]] = {}
    for batch in quiver.scan(["_seq", "payload"], slot=slot, on_damage="skip"):
        for row in batch.to_pylist():
            found.setdefault(row["_seq"], []).append(row["payload"])
    return found


def segment(machine: Machine, place: int = 0) -> PurePath:
    """Return the folder of one of its segments, the oldest if none is named."""
    return SEGMENTS / machine.disk.list(SEGMENTS)[place].name


def remove_wal(machine: Machine) -> None:
    """Remove all files of the log."""
    for path in machine.wal_paths():
        machine.disk.unlink(path, "test")


def contents(disk: Disk, folder: PurePath = ROOT) -> dict[PurePath, bytes]:
    """Return every file below a folder."""
    found: dict[PurePath, bytes] = {}
    for entry in disk.list(folder):
        path = folder / entry.name
        found |= contents(disk, path) if entry.is_dir else {path: disk.read(path)}
    return found


def disk_with(files: dict[PurePath, bytes]) -> SimulatedDisk:
    """Return a disk that holds these files, durably."""
    disk = SimulatedDisk()
    for folder in (ROOT, WAL, SEGMENTS):
        disk.make_dir(folder, "test")
    for path, content in files.items():
        for folder in reversed(path.parents[:-1]):
            disk.make_dir(folder, "test")
        disk.put(path, content)
    for folder in {folder for path in (WAL, SEGMENTS, *files) for folder in path.parents}:
        disk.sync_dir(folder, "test")
    return disk
