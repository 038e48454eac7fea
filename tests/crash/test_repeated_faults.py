"""Faults that strike while an earlier one is being recovered from, and again after that."""

from __future__ import annotations

import copy
import os
import random

import pytest
from tests.crash.contents import Shape
from tests.crash.journal import Journal
from tests.crash.scripts import (
    SCRIPTS,
    WRITTEN,
    Script,
    append,
    close,
    flush,
    repeat_epochs,
    run,
    transaction,
)
from tests.crash.stage import check_survivor, survivors
from tests.crash.test_matrix import kinds_at

from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault
from holdfast.seam.simulated import SimulatedDisk

SEEDS = range(2_000 if os.environ.get("HOLDFAST_THOROUGH") == "1" else 60)
LIVES = 3


def recovering(disk: SimulatedDisk, journal: Journal, promised: AckLevel) -> Script:
    """Return a life that begins on what a fault left."""

    def verify(journal: Journal, quiver: Quiver) -> None:
        journal.verify(quiver, promised, restarted=True)

    steps = (
        verify,
        append(Shape.ARROW),
        repeat_epochs,
        transaction(Shape.RAW, Shape.TWO_SLOTS),
        append(level=WRITTEN),
        flush,
        append(level=WRITTEN),
        close,
    )
    return Script("recovering", lambda: (disk.snapshot(), copy.deepcopy(journal)), steps)


def random_fault(script: Script, choose: random.Random) -> Fault:
    """Return a fault at one of the calls that the script makes."""
    calls = run(script).stage.faulty.calls()
    at = choose.choice(sorted(calls))
    kind = choose.choice(list(kinds_at(QuiverPoint(at))))
    return Fault(at, kind, choose.randint(1, calls[at]), times=choose.choice((1, 1, 3)))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_three_lives_that_each_meet_a_fault(seed: int) -> None:
    choose = random.Random(seed)
    script, promised = choose.choice(SCRIPTS), AckLevel.MEMORY
    story: list[object] = []
    try:
        for life in range(1, LIVES + 1):
            fault = random_fault(script, choose)
            done = run(script, [fault], cut=choose.random() < 0.5)
            survivor = choose.choice(survivors(done.stage.disk, seed))
            story += [script.name, fault, survivor.ending]
            # A level promises what the worst of all endings leaves of it.
            promised = max(promised, survivor.promised)
            script = recovering(survivor.disk, done.journal, promised)
            if life == LIVES:
                check_survivor(survivor.disk, done.journal, promised)
    except BaseException as error:
        error.add_note(f"seed {seed}: {story}")
        raise
