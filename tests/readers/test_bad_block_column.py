"""The matrix of ledger and trash, column "this block cannot be read".

After the call of the step the page that was written last is lost: of the ledger, the log or a
segment. The next process starts, the equation holds for everyone, and all is delivered or has an
outcome; what the ledger had in that page comes again.
"""

from __future__ import annotations

import pytest
from tests.readers.test_matrix import POINTS, RETENTION, THOROUGH, run, struck

from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("point", POINTS)
def test_a_page_that_cannot_be_read_any_more_at(point: QuiverPoint) -> None:
    calls = struck(point)
    for nth in calls if THOROUGH else sorted({calls[0], calls[len(calls) // 2], calls[-1]}):
        for cut in (True, False):
            check_cell(Fault(point, FaultKind.BAD_BLOCK, nth), cut=cut)


def check_cell(fault: Fault, *, cut: bool) -> None:
    world = run((fault,), cut=cut)
    try:
        for how in ("kill", "forget"):
            survivor = world.survivor(how, 0)
            try:
                survivor.start_damaged()
                survivor.keep()
                survivor.check()
                survivor.settle()
                survivor.restart("forget", 0, RETENTION)
            except BaseException as error:
                error.add_note(f"{fault}, cut={cut}, then {how}")
                raise
            finally:
                survivor.close()
    finally:
        world.close()
