"""A ledger on its own, without a quiver around it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from holdfast.quiver import LedgerConfig
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.ledger.recovery import RecoveredLedger, recover_ledger
from holdfast.quiver.ledger.subscriber import Outcome, Position, Resolution, Subscriber
from holdfast.seam import Seam
from holdfast.seam.clock import Clock, JumpingClock
from holdfast.seam.faulty import Fault, FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data")
LEDGER = ROOT / "ledger"
QUIVER_ID = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
NOON_NS = 1_700_000_000_000_000_000
# Nothing is synced, rotated or removed unless a test asks for it.
PATIENT = LedgerConfig(flush_interval_s=3600.0)


def empty_disk() -> SimulatedDisk:
    """Return a disk with an empty ledger folder, durably."""
    disk = SimulatedDisk()
    for folder in (ROOT, LEDGER):
        disk.make_dir(folder, "test")
        disk.sync_dir(folder.parent, "test")
    return disk


def begin(
    disk: SimulatedDisk,
    faults: Iterable[Fault] = (),
    config: LedgerConfig = PATIENT,
    clock: Clock | None = None,
    through: FaultyDisk | None = None,
) -> Ledger:
    """Return a ledger that goes on with what is on a disk."""
    faulty = through or FaultyDisk(disk, faults, disk.die)
    old = recover(disk)
    seam = Seam(faulty, clock or JumpingClock(NOON_NS), seeded_randomness(old.next_number))
    ledger = Ledger(seam, ROOT, QUIVER_ID, config, old.state)
    ledger.start(old.next_number, old.files, old.newest, old.last)
    return ledger


def recover(disk: SimulatedDisk) -> RecoveredLedger:
    """Return what the next process would read."""
    return recover_ledger(disk, LEDGER, {QUIVER_ID})


def subscriber(name: str, start_seq: int = 0) -> Subscriber:
    """Return a subscriber as it is registered."""
    return Subscriber(name, start_seq, NOTHING, NOON_NS)


def line(
    name: str,
    start: int,
    end: int,
    outcome: Outcome = Outcome.ACKED,
    *,
    end_row: int = 0,
    generation: int = 0,
) -> Resolution:
    """Return a line that resolves the bundles of a range, each with two events."""
    counts = Totals(end - start, 2 * (end - start) + end_row)
    positions = Position(start), Position(end, end_row)
    return Resolution(NOON_NS, name, generation, *positions, outcome, counts, "because")
