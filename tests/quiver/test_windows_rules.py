"""A quiver on a disk with Windows' rules: no open file is renamed, renamed over, or unlinked.

What cannot go yet goes later, and holds up nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

import pytest
from tests.crash.journal import Journal
from tests.crash.scripts import SCRIPTS, Script, run
from tests.crash.stage import check_survivor, survivors
from tests.crash.test_matrix import calls_of
from tests.patience import until
from tests.quiver.machine import NO_SEAL, SEGMENTS, WAL, Machine, payloads
from tests.readers.setting import StillMachine, append, check_books, drain, keep

from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.tools.backup import backup, restore
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"
COPY, AGAIN = PurePath("/copy"), PurePath("/again")


def windows_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.windows = True
    return disk


@pytest.fixture
def still() -> Iterator[StillMachine]:
    with StillMachine(windows_disk()) as machine:
        yield machine


def names_in(machine: Machine, folder: PurePath) -> list[str]:
    return [entry.name for entry in machine.disk.list(folder)]


def test_a_life_leaves_nothing_behind(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("reader")
    append(quiver, 20, size_bytes=10_000)  # several files of the log
    quiver.flush()
    until(lambda: len(names_in(still, WAL)) == 1)  # they go after the answer
    assert list(drain(quiver.lease("reader"))) == list(range(20))
    keep(quiver)
    assert names_in(still, SEGMENTS) == []
    append(quiver, 5)
    quiver._engine.ledger.checkpoint()
    still.stop()
    assert len(names_in(still, WAL)) == 1
    seam = Seam(still.disk, still.clock, seeded_randomness(9))
    backup(seam, PurePath("/data"), COPY, lambda _: None)
    restore(seam, COPY, AGAIN, lambda _: None)
    quiver = still.start()
    assert list(payloads(quiver)) == list(range(20, 25))
    assert list(drain(quiver.lease("reader"))) == list(range(20, 25))
    check_books(quiver)


@pytest.mark.parametrize("end", ["flush", "stop"])
def test_files_that_a_start_replayed_go_when_they_are_sealed(still: StillMachine, end: str) -> None:
    """They were kept open for good, with the memory of what was in them, and with their blocks."""
    append(still.start(faults=[NO_SEAL]), 20, size_bytes=10_000)
    still.kill()
    quiver = still.start()
    append(quiver, 1)
    quiver.flush() if end == "flush" else still.stop()
    still.stop()
    assert len(names_in(still, WAL)) == 1
    assert len(payloads(still.start())) == 21


def test_one_file_that_cannot_go_holds_up_no_other(still: StillMachine) -> None:
    quiver = still.start(faults=[Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO)])
    append(quiver, 20, size_bytes=10_000)
    assert len(names_in(still, WAL)) > 2
    quiver.flush()
    still.stop()
    assert len(names_in(still, WAL)) == 1


def test_a_file_of_the_log_that_is_held_goes_with_a_later_seal(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 20, size_bytes=10_000)
    (held, *_), handle = names_in(still, WAL), still.disk.open_read(WAL / names_in(still, WAL)[0])
    quiver.flush()
    until(lambda: len(names_in(still, WAL)) == 2)
    assert names_in(still, WAL)[0] == held
    still.disk.close(handle)
    append(quiver, 1)
    quiver.flush()
    still.stop()
    assert len(names_in(still, WAL)) == 1


def test_a_segment_that_somebody_has_mapped_goes_later(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("reader")
    append(quiver, 5)
    quiver.flush()
    table = quiver.scan(["payload"], zero_copy=True).read_all()
    list(drain(quiver.lease("reader")))
    keep(quiver)
    assert len(names_in(still, SEGMENTS)) == 1
    assert table.num_rows == 5
    del table
    keep(quiver)
    assert names_in(still, SEGMENTS) == []
    check_books(quiver)


def on_windows(script: Script) -> Script:
    def before() -> tuple[SimulatedDisk, Journal]:
        disk, journal = script.before()
        disk.windows = True
        return disk, journal

    return replace(script, before=before)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_kill_at_any_step_costs_nothing(script: Script) -> None:
    calls = sorted(calls_of(script).items())
    for point, times in calls if THOROUGH else calls[::10]:
        fault = Fault(point, FaultKind.KILL_AFTER, times)
        done = run(on_windows(script), [fault])
        for ending, disk, promised in survivors(done.stage.disk, seed=1):
            try:
                check_survivor(disk, done.journal, promised)
            except BaseException as error:
                error.add_note(f"{fault}, then {ending}")
                raise
