"""The crash matrix: every fault at every point, on a disk that knows what a power cut leaves.

After each fault the process restarts on what survived. It must start, everything acknowledged must
be there once and with its bytes, transactions whole, seqs not reused, and it must go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from tests.crash.scripts import SCRIPTS, Script, run
from tests.crash.stage import check_survivor, survivors

from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind

KILLS = (FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER)
WRITES = [point for point in QuiverPoint if point.endswith((".write", "_write", ".header"))]
SYNCS = [point for point in QuiverPoint if "sync" in point]


def kinds_at(point: QuiverPoint) -> Iterator[FaultKind]:
    """Return the faults that make sense at a point."""
    for kind in FaultKind:
        if kind in (FaultKind.KILL_MIDWAY, FaultKind.SHORT_WRITE) and point not in WRITES:
            continue
        if kind is FaultKind.FAILED_SYNC and point not in SYNCS:
            continue
        if kind in (FaultKind.BAD_BLOCK, FaultKind.STAYS_FULL):
            continue  # columns of their own: it may cost what lies in the block, or refuse
        yield kind


CELLS = [pytest.param(p, kind, id=f"{p}-{kind}") for p in QuiverPoint for kind in kinds_at(p)]


@cache
def calls_of(script: Script) -> dict[str, int]:
    """Return how often a script reaches each point when nothing (else) fails."""
    return run(script).stage.faulty.calls()


def test_the_scripts_reach_every_point_and_every_point_is_listed() -> None:
    reached = {at for script in SCRIPTS for at in calls_of(script)}
    # What deletes, and the ledger's own failures, are struck in tests/readers.
    elsewhere = {p for p in QuiverPoint if p.startswith(("trash.", "ledger."))} | {
        QuiverPoint.RESERVE_UNLINK
    }
    assert reached - elsewhere == set(QuiverPoint) - elsewhere


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_cell(point: QuiverPoint, kind: FaultKind) -> None:
    """The last time that a script reaches the point; a fault that does not kill is cut off then."""
    for script in SCRIPTS:
        if times := calls_of(script).get(point, 0):
            check_cell(script, Fault(point, kind, times), cut=kind not in KILLS)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_rest_of_cell(point: QuiverPoint, kind: FaultKind) -> None:
    """The first time as well, and a script that goes on after its fault."""
    for script in SCRIPTS:
        times = calls_of(script).get(point, 0)
        for nth in sorted({1, times} - {0}):
            for cut in (False,) if kind in KILLS else (True, False):
                if (nth, cut) != (times, kind not in KILLS):
                    check_cell(script, Fault(point, kind, nth), cut=cut)


def check_cell(script: Script, fault: Fault, *, cut: bool) -> None:
    done = run(script, [fault], cut=cut)
    for ending, disk, promised in survivors(done.stage.disk, seed=fault.nth):
        try:
            check_survivor(disk, done.journal, promised)
        except BaseException as error:
            error.add_note(f"script {script.name}, {fault}, cut={cut}, then {ending}")
            raise
