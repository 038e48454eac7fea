"""Dead letters on a disk that stays full, from any of their steps on, until something is unlinked.

What was filed is there, and can be settled, which frees the disk; what is not filed is told; and
when there is room again, letters are filed as before.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.dead_letters.letters import open_office, poison
from tests.patience import SCALE

from holdfast.dead_letters.queue import KEEPER, DeadLetterQueue
from holdfast.errors import HoldfastError
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

ROOMY_BYTES = 64_000_000
QUICK = {"timeout_s": 0.4 * SCALE}
# Only after a failure, or damage, or with more data.
ELSEWHERE = ("quarantine.", "recover.", "wal.undo", "wal.rotate", "ledger.undo", "ledger.unlink",
             "truncate.", "reserve.unlink", "ledger.continue")  # fmt: skip
STEPS = [point for point in QuiverPoint if not point.startswith(ELSEWHERE)]
IN_MAKE_TEST = (QuiverPoint.WAL_WRITE, QuiverPoint.LEDGER_CREATE, QuiverPoint.SEAL_RENAME)


def file(office: DeadLetterQueue, number: int) -> None:
    asyncio.run(office.undelivered([poison(number)]))


def settle(office: DeadLetterQueue, at_most: int = 1 << 30) -> list[int]:
    """Settle what waits; return the numbers of the letters."""
    settled: list[int] = []
    with office.undelivered_quiver.lease(KEEPER) as lease:
        while len(settled) < at_most and (delivery := lease.poll(timeout_s=0)) is not None:
            (payload,) = delivery.bundle.payloads
            delivery.ack()
            settled.append(int(payload[5:-1]))
    return settled


def play(disk: FaultyDisk, filed: set[int], settled: set[int]) -> None:
    """File letters and settle some of them; whatever fails is typed, and the rest goes on."""
    with contextlib.suppress(HoldfastError):
        office = open_office(disk, rejected=QUICK, undelivered=QUICK)
        for number in range(8):
            with contextlib.suppress(HoldfastError):
                file(office, number)
                filed.add(number)
            if number == 3:
                with contextlib.suppress(HoldfastError):
                    office.undelivered_quiver.flush(5.0)
                with contextlib.suppress(HoldfastError):
                    settled.update(settle(office, 4))
                with contextlib.suppress(HoldfastError):
                    office.undelivered_quiver._engine.retention.tick()
        office.close()


@pytest.mark.parametrize(
    "at", [pytest.param(p, marks=[] if p in IN_MAKE_TEST else [pytest.mark.slow]) for p in STEPS]
)
def test_the_disk_stays_full_from_any_step_on(at: QuiverPoint) -> None:
    disk = SimulatedDisk(ROOMY_BYTES)
    faulty = FaultyDisk(disk, [Fault(at, FaultKind.STAYS_FULL)], disk.die)
    filed: set[int] = set()
    settled: set[int] = set()
    play(faulty, filed, settled)
    assert faulty.calls().get(at), "it is reached"
    disk = disk.kill()
    was_made = bool(filed)
    if not was_made:  # there was no room for an office either
        disk.capacity_bytes = ROOMY_BYTES
    with open_office(disk, rejected=QUICK, undelivered=QUICK) as office:
        waiting = settle(office)
        # One that was refused in time may be stored all the same.
        assert filed - settled <= set(waiting) <= set(range(8))
        assert len(set(waiting)) == len(waiting)
        assert office.undelivered_quiver.recovery.damages == []
        disk.capacity_bytes = ROOMY_BYTES
        file(office, 8)
        assert settle(office) == [8]
