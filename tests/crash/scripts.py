"""The scripts of the crash matrix: small lives of a quiver that together reach every fault point.

A script is a list of steps; the matrix may end the process after any of them. `BASE_FAULTS` are
struck in every run of a script, because some steps are taken only when another one failed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath

from tests.crash.contents import Shape
from tests.crash.journal import Entry, Journal
from tests.crash.stage import CONFIG, ROOT, Stage

from holdfast.errors import HoldfastError, NotAccepted, StaleEpoch
from holdfast.quiver import AckLevel, Quiver, QuiverConfig
from holdfast.quiver.base import names
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

Step = Callable[[Journal, Quiver], object]

# With its header a bundle of this size fills a segment of 1 MB alone.
FILLS_A_SEGMENT_BYTES = MB - 100


@dataclass(frozen=True)
class Script:
    """What a process does between open and its end."""

    name: str
    # Makes the disk and the journal the process begins with.
    before: Callable[[], tuple[SimulatedDisk, Journal]]
    steps: tuple[Step, ...]
    base_faults: tuple[Fault, ...] = ()
    # None where the script does not wait for the sealer: it lets files go in its own time.
    spare_files: int = 0


def nothing_yet() -> tuple[SimulatedDisk, Journal]:
    return SimulatedDisk(), Journal()


# ------------------------------------------------------------------------ steps


def append(
    shape: Shape = Shape.RAW, size_bytes: int = 40, level: AckLevel = AckLevel.FSYNCED
) -> Step:
    return lambda journal, quiver: journal.append(quiver, shape, size_bytes=size_bytes, level=level)


def epoch(producer: str, number: int) -> Step:
    return lambda journal, quiver: journal.append(quiver, producer=producer, epoch=number)


def transaction(*shapes: Shape) -> Step:
    return lambda journal, quiver: journal.append(quiver, *shapes)


def repeat_epochs(journal: Journal, quiver: Quiver) -> None:
    journal.repeat_last_epochs(quiver)


def stale_epoch(journal: Journal, quiver: Quiver) -> None:
    """Send epoch 1 of a producer that is already at epoch 2, if it is."""
    known = [e for e in journal.entries if e.producer == "p" and e.epoch == 2]
    if known and known[0].fate in ("acked", "found"):
        with contextlib.suppress(NotAccepted, StaleEpoch):
            quiver.append_raw(b"stale", slot="stale", producer="p", epoch=1)
            raise AssertionError("a stale epoch was accepted")


def abort(journal: Journal, quiver: Quiver) -> None:
    journal.abort(quiver)


def flush(journal: Journal, quiver: Quiver) -> None:
    with contextlib.suppress(NotAccepted):
        quiver.flush()


def let_sealed_files_go(journal: Journal, quiver: Quiver) -> None:
    """Do what the sealer may not have done yet, so that the next file begins with a spare."""
    engine = quiver._engine
    sealed_through = max((s.summary.last_seq for s in engine.catalog.snapshot()), default=-1)
    with contextlib.suppress(OSError):
        engine.sealer.wal_files.remove_sealed(sealed_through)


def close(journal: Journal, quiver: Quiver) -> None:
    quiver.close()


WRITTEN, MEMORY, SEGMENT = AckLevel.WRITTEN, AckLevel.MEMORY, AckLevel.SEGMENT

FRESH = Script(
    "fresh",
    nothing_yet,
    (
        append(Shape.ARROW),
        append(Shape.TWO_SLOTS, level=WRITTEN),
        append(level=MEMORY),
        append(Shape.HEARTBEAT),
        epoch("p", 1),
        transaction(Shape.RAW, Shape.ARROW, Shape.TWO_SLOTS),
        # The file is full while it holds unsynced bundles.
        append(size_bytes=30_000, level=WRITTEN),
        append(size_bytes=30_000, level=WRITTEN),
        append(level=WRITTEN),
        repeat_epochs,
        flush,
        epoch("p", 2),
        stale_epoch,
        abort,
        append(Shape.ARROW, level=WRITTEN),
        append(size_bytes=FILLS_A_SEGMENT_BYTES, level=SEGMENT),
        append(Shape.TWO_SLOTS),
        append(level=WRITTEN),
        close,
    ),
)

FAILING = Script(
    "failing",
    nothing_yet,
    (
        append(),
        append(level=WRITTEN),
        epoch("p", 1),  # half written, then cut off again
        repeat_epochs,
        append(level=WRITTEN),
        transaction(Shape.RAW, Shape.RAW),  # not synced, then written to a new file
        append(level=MEMORY),
        append(),
        flush,
        append(),
        close,
    ),
    (
        Fault(QuiverPoint.WAL_WRITE, FaultKind.SHORT_WRITE, nth=3),
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC, nth=3),
    ),
)


# --------------------------------------------------------- an unclean beginning


@cache
def _unclean_store() -> tuple[SimulatedDisk, Journal]:
    """Make a store with a segment, a full buffer that could not be sealed, and an open one."""
    journal = Journal()
    stage = Stage(
        SimulatedDisk(), [Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.EIO, nth=3, times=1_000_000)]
    )
    quiver = stage.open()
    for size_bytes in (40, 40):  # two segments: one is going to be damaged
        journal.append(quiver, Shape.ARROW, size_bytes=size_bytes)
        quiver.flush()
    journal.append(quiver, producer="p", epoch=1)
    journal.append(quiver, size_bytes=FILLS_A_SEGMENT_BYTES)
    for shape in (Shape.RAW, Shape.ARROW, Shape.TWO_SLOTS):
        journal.append(quiver, shape, size_bytes=5_000)
    journal.append(quiver, Shape.RAW, Shape.RAW)
    journal.append(quiver, producer="p", epoch=2)
    journal.append(quiver, level=WRITTEN)
    journal.append(quiver, level=WRITTEN)
    stage.crash()
    return stage.disk.kill(), journal


def unclean() -> tuple[SimulatedDisk, Journal]:
    """Return that store after a power cut, with damage of every sort on top."""
    disk, journal = _unclean_store()
    disk, journal = disk.kill(), copy.deepcopy(journal)
    damage_wal_frame(disk, journal, journal.entries[4])
    segments = ROOT / names.SEGMENTS_DIR
    second = disk.list(segments)[1].name
    disk.put(segments / second / names.MANIFEST, b"garbage")
    journal.damaged.add(journal.entries[1].contents[0].token)
    tear_tail(disk, journal)
    wal = ROOT / names.WAL_DIR
    disk.put(wal / names.wal_file(1_000), b"a header that was never")
    disk.put(wal / "notes.txt", b"foreign")
    disk.make_dir(segments / names.building_dir(9, 1), "test")
    disk.put(segments / names.building_dir(9, 1) / names.BUNDLES, b"half a table")
    disk.put(ROOT / names.FORMAT, b"damaged")
    return disk, journal


def damage_wal_frame(disk: SimulatedDisk, journal: Journal, entry: Entry) -> None:
    """Flip a byte in the middle of a raw bundle."""
    (content,) = entry.contents
    path, place = next(
        (path, place)
        for path in wal_paths(disk)
        if (place := disk.read(path).find(content.filler)) >= 0
    )
    disk.overwrite(path, place + content.size_bytes // 2, b"\xff")
    journal.damaged.add(content.token)


def tear_tail(disk: SimulatedDisk, journal: Journal) -> None:
    """Cut the last bundle short: it was only written, and the power went."""
    path = wal_paths(disk)[-1]
    disk.put(path, disk.read(path)[:-10])
    journal.entries[-1].fate = "maybe"


def wal_paths(disk: SimulatedDisk) -> list[PurePath]:
    folder = ROOT / names.WAL_DIR
    return [folder / e.name for e in disk.list(folder) if names.parse_wal_file(e.name) is not None]


UNCLEAN = Script(
    "unclean",
    unclean,
    (append(), repeat_epochs, append(Shape.ARROW, level=WRITTEN), flush, append(), close),
)

RECYCLING = Script(
    "recycling",
    nothing_yet,
    (
        append(size_bytes=30_000),
        append(size_bytes=30_000),
        append(size_bytes=30_000),
        flush,
        let_sealed_files_go,
        append(Shape.ARROW),
        flush,  # the next file is written over the first
        let_sealed_files_go,
        append(size_bytes=3_000),
        append(size_bytes=3_000, level=WRITTEN),
        transaction(Shape.RAW, Shape.ARROW),
        epoch("p", 1),
        append(level=WRITTEN),
        append(size_bytes=50_000, level=WRITTEN),
        append(size_bytes=30_000),  # this file is full, and the next one is written over a spare
        repeat_epochs,
        append(Shape.TWO_SLOTS),
        flush,
        let_sealed_files_go,
        append(level=WRITTEN),
        flush,
        let_sealed_files_go,
        append(size_bytes=20_000),
        transaction(Shape.RAW, Shape.RAW),
        append(size_bytes=20_000, level=WRITTEN),
        append(level=MEMORY),
        append(level=WRITTEN),
        close,
    ),
    spare_files=2,
)

SCRIPTS = (FRESH, FAILING, UNCLEAN, RECYCLING)


# ---------------------------------------------------------------------- running


@dataclass
class Run:
    """One run of a script, up to its end or to a crash."""

    stage: Stage
    journal: Journal


def run(
    script: Script,
    faults: Sequence[Fault] = (),
    *,
    cut: bool = False,
    config: QuiverConfig = CONFIG,
) -> Run:
    """Run a script with faults. With `cut` the process dies after the step in which they struck."""
    disk, journal = script.before()
    config = replace(config, wal=replace(config.wal, spare_files=script.spare_files))
    stage = Stage(disk, [*faults, *script.base_faults], config)
    with contextlib.suppress(SimulatedCrash):
        if opens(stage):
            for step in script.steps:
                if cut and struck(stage, faults):
                    break
                step(journal, stage.quiver)
    stage.crash()
    return Run(stage, journal)


def opens(stage: Stage) -> bool:
    """Open; a fault that strikes here must be a typed error, and the next try is a new one."""
    try:
        stage.open()
    except HoldfastError:
        return False
    return True


def struck(stage: Stage, faults: Sequence[Fault]) -> bool:
    calls = stage.faulty.calls()
    return all(calls.get(fault.at, 0) >= fault.nth for fault in faults)
