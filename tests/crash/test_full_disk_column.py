"""The crash matrix's column "stays full until something is unlinked", over every point.

At the point somebody else takes every free block, and the process lives on, or dies. Whoever comes
next opens what is there, reads it, delivers it and frees it with the reserve alone; then there is
room again. Only a directory that was never finished may refuse to be opened.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import pytest
from tests.crash.journal import Journal
from tests.crash.scripts import SCRIPTS, Script, run
from tests.crash.stage import CONFIG, ROOT, check_survivor, opened, survivors
from tests.crash.test_matrix import calls_of

from holdfast.errors import CannotOpen
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base import names
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedDisk

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"
ROOM_BYTES = 4 * MB
# What is refused is refused soon.
IMPATIENT = replace(CONFIG, append=replace(CONFIG.append, timeout_s=0.02))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("point", list(QuiverPoint))
def test_a_disk_that_stays_full_at(point: QuiverPoint) -> None:
    for script in SCRIPTS:
        times = calls_of(script).get(point, 0)
        for nth in sorted({1, times} - {0} if THOROUGH else {times} - {0}):
            for cut in (True, False) if THOROUGH else (True,):
                check_cell(script, Fault(point, FaultKind.STAYS_FULL, nth), cut=cut)


def test_the_copies_of_a_first_wal_file_do_not_take_the_room_of_a_seal() -> None:
    """Both wanted what the reserve gave up, and whoever came second never got it."""
    (script,) = (script for script in SCRIPTS if script.name == "fresh")
    nth = calls_of(script)[QuiverPoint.WAL_CREATE]
    for _ in range(8):
        check_cell(script, Fault(QuiverPoint.WAL_CREATE, FaultKind.STAYS_FULL, nth), cut=True)


def check_cell(script: Script, fault: Fault, *, cut: bool) -> None:
    done = run(script, [fault], cut=cut, config=IMPATIENT)
    for ending, disk, promised in survivors(done.stage.disk, seed=fault.nth):
        try:
            check_full(disk.snapshot(), done.journal, promised)
            disk.capacity_bytes = None
            check_survivor(disk, done.journal, promised)
        except BaseException as error:
            error.add_note(f"script {script.name}, {fault}, cut={cut}, then {ending}")
            raise


def check_full(disk: SimulatedDisk, journal: Journal, promised: AckLevel) -> None:
    """Live on the full disk: twice, because a start must not use up what the next one needs."""
    if disk.capacity_bytes is None:
        return  # the point was not reached: threads are not equally fast in every run
    reserved = has_reserve(disk)
    journal = copy.deepcopy(journal)
    for _ in range(2):
        try:
            with opened(disk, seed=1) as quiver:
                journal.verify(quiver, promised, restarted=True)
        except CannotOpen:
            assert not reserved, "a directory with a reserve is not opened"
            return
        disk = disk.kill()
    if reserved:
        with opened(disk, seed=2) as quiver:
            drain(quiver)
            quiver.flush()
            # What these small lives free is less than appends leave free beside the reserve.
            assert disk.capacity_bytes is not None
            disk.capacity_bytes += ROOM_BYTES
            journal.append(quiver)
            assert journal.entries[-1].fate == "acked"


def has_reserve(disk: SimulatedDisk) -> bool:
    """Whether both shares are there, or none was needed yet."""
    folder = ROOT / names.RESERVE_DIR
    if not disk.exists(folder):
        return False
    found = {names.parse_reserve_file(entry.name) for entry in disk.list(folder)}
    return found == {"headers", "segment"}


def drain(quiver: Quiver) -> None:
    """Deliver all there is to one who was not known before; that needs the ledger, too."""
    quiver.register("late")
    with quiver.lease("late") as lease:
        while (delivery := lease.poll(timeout_s=0)) is not None:
            delivery.ack()
