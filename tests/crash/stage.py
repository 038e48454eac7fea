"""The stage: one simulated machine on which quivers live, die and come back."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from tests.crash.contents import RAW_SLOT, Shape
from tests.crash.journal import Entry, Journal
from tests.patience import PATIENCE_S
from tests.support.disk import GatedDisk

from holdfast.quiver import AckLevel, AppendConfig, Quiver, QuiverConfig, SegmentConfig, WalConfig
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.quarantine import Quarantine
from holdfast.seam import Seam
from holdfast.seam.clock import Clock, JumpingClock
from holdfast.seam.faulty import Fault
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

ROOT = PurePath("/data/quiver")
NOON_NS = 1_700_000_000_000_000_000

# Timers far away: what happens, and in which order, is up to the script alone.
CONFIG = QuiverConfig(
    append=AppendConfig(timeout_s=2.0),
    wal=WalConfig(file_size_bytes=64 * KB, flush_interval_s=3600.0),
    segment=SegmentConfig(
        target_size_bytes=MB, max_open_duration_s=3600.0, retry_min_s=0.001, retry_max_s=0.01
    ),
)


class Stage:
    """A disk with faults, and the one quiver that runs on it."""

    def __init__(
        self,
        disk: SimulatedDisk,
        faults: Iterable[Fault] = (),
        config: QuiverConfig = CONFIG,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        self.disk = disk
        self.faulty = GatedDisk(disk, QuiverPoint.WAL_SYNC, faults)
        self.faulty.gate.set()
        self._config = config
        self._seam = Seam(self.faulty, clock or JumpingClock(NOON_NS), seeded_randomness(seed))
        self._quiver: Quiver | None = None

    @property
    def quiver(self) -> Quiver:
        assert self._quiver is not None, "open first"
        return self._quiver

    def open(self) -> Quiver:
        self._quiver = Quiver.open(ROOT, self._config, seam=self._seam)
        return self._quiver

    def crash(self) -> None:
        """Let the process be dead, and its threads with it; the disk keeps its state."""
        with contextlib.suppress(SimulatedCrash):
            self.disk.die()
        with contextlib.suppress(SimulatedCrash):
            if self._quiver is not None:
                self._quiver.close()


@contextlib.contextmanager
def opened(disk: SimulatedDisk, seed: int = 0) -> Iterator[Quiver]:
    """Run a quiver without faults; it is dead at the end, unless it was closed."""
    stage = Stage(disk, seed=seed)
    try:
        yield stage.open()
    finally:
        stage.crash()


class Survivor(NamedTuple):
    """A disk as the next process finds it."""

    ending: str
    disk: SimulatedDisk
    # The lowest level whose acknowledgement must hold now.
    promised: AckLevel


def survivors(disk: SimulatedDisk, seed: int) -> list[Survivor]:
    """Return what a dead process may leave; only one of those that are the same."""
    found = [
        Survivor("kill", disk.kill(), AckLevel.WRITTEN),
        Survivor("power loss", disk.power_loss(), AckLevel.FSYNCED),
        Survivor("loss of some", disk.power_loss(random.Random(seed)), AckLevel.FSYNCED),
    ]
    # If a power cut takes nothing, all was synced.
    return found[:1] if content_of(found[0].disk) == content_of(found[1].disk) else found


def content_of(disk: SimulatedDisk, folder: PurePath = ROOT.parents[1]) -> dict[PurePath, bytes]:
    """Return all files of a disk, and its empty folders."""
    content: dict[PurePath, bytes] = {}
    for entry in disk.list(folder):
        path = folder / entry.name
        content |= (
            content_of(disk, path) or {path: b""} if entry.is_dir else {path: disk.peek(path)}
        )
    return content


def append_in_one_group(stage: Stage, journal: Journal, entries: Sequence[Entry]) -> None:
    """Append single raw bundles so that the writer takes them together.

    Another one goes first, and keeps the writer busy in its sync meanwhile.
    """
    disk = stage.faulty

    async def append_all() -> None:
        disk.reached.clear()
        disk.gate.clear()
        first = asyncio.create_task(_append_async(stage.quiver, journal, journal.entry()))
        waiting = asyncio.create_task(asyncio.to_thread(disk.reached.wait, PATIENCE_S))
        await asyncio.wait({first, waiting}, return_when=asyncio.FIRST_COMPLETED)
        disk.reached.set()
        tasks = [
            asyncio.create_task(_append_async(stage.quiver, journal, entry)) for entry in entries
        ]
        await asyncio.sleep(0)  # each runs until it waits for its answer
        disk.gate.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(append_all())


async def _append_async(quiver: Quiver, journal: Journal, entry: Entry) -> None:
    (content,) = entry.contents
    assert content.shape is Shape.RAW
    with journal.trying(entry) as receipts:
        receipt = await quiver.append_raw_async(
            content.filler,
            slot=RAW_SLOT,
            headers=[{"token": content.token}],
            producer=entry.producer,
            epoch=entry.epoch,
            level=entry.level,
        )
        receipts.append(receipt)


def check_survivor(disk: SimulatedDisk, journal: Journal, promised: AckLevel) -> None:
    """Restart on a disk that a fault left, thrice, and see that everything holds.

    The first life ends in a power cut that forgets all it may, the second in a clean shutdown.
    """
    journal = copy.deepcopy(journal)
    with opened(disk, seed=1) as quiver:
        journal.verify(quiver, promised, restarted=True)
        journal.repeat_last_epochs(quiver)
        journal.append(quiver)
        journal.verify(quiver, AckLevel.FSYNCED, restarted=False)
        assert journal.entries[-1].fate == "acked"
    disk = disk.power_loss()
    with opened(disk, seed=2) as quiver:
        journal.verify(quiver, AckLevel.FSYNCED, restarted=True)
        journal.append(quiver, level=AckLevel.WRITTEN)
        quiver.close()
    disk = disk.power_loss()
    with opened(disk, seed=3) as quiver:
        assert quiver.recovery.clean_shutdown
        assert quiver.recovery.damages == []
        journal.verify(quiver, AckLevel.MEMORY, restarted=True)
        journal.verify_damages(quiver, Quarantine(disk, ROOT).damages())
        quiver.close()
