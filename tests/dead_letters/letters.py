"""Letters and offices for tests."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from hypothesis import strategies as st

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import DeadLetterQueue, DeadLettersSettings
from holdfast.quiver import Quiver
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Disk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/office")
START_NS = 1_767_323_045_678_901_000
MB = 1024 * 1024

TEXTS = st.text(max_size=40)
PROBLEMS = st.dictionaries(TEXTS, TEXTS, max_size=5)
LETTERS = st.builds(
    Letter,
    payload=st.binary(max_size=500),
    reason=st.sampled_from(["invalid", "too_large", "permanent", "poison"]) | TEXTS,
    origin=TEXTS,
    problems=st.lists(PROBLEMS, max_size=4).map(tuple),
    headers=st.dictionaries(TEXTS, TEXTS, max_size=4),
    destination=st.none() | TEXTS,
    position=st.none() | st.just("q-1/17/3"),
    attempts=st.integers(0, 1000),
    received_ns=st.integers(0, 2**62),
)


def invalid(payload: bytes = b"{", **fields: Any) -> Letter:
    """Return a letter of an event that was not accepted."""
    return Letter(payload, "invalid", "ingest", **fields)


def poison(number: int = 0, destination: str = "marquez", **fields: Any) -> Letter:
    """Return a letter of an event that a destination did not take."""
    return Letter(
        fields.pop("payload", b'{"n":%d}' % number),
        fields.pop("reason", "poison"),
        destination,
        destination=destination,
        position=f"quiver/{number}/0",
        attempts=fields.pop("attempts", 5),
        received_ns=START_NS,
        **fields,
    )


def seam_of(disk: Disk) -> Seam:
    """Return a world with this disk, and a wall clock that stands still."""
    return Seam(disk, JumpingClock(START_NS), seeded_randomness(1))


def open_office(
    disk: SimulatedDisk | Disk | None = None,
    *,
    directory: PurePath | Path = ROOT,
    rejected: dict[str, Any] | None = None,
    undelivered: dict[str, Any] | None = None,
) -> DeadLetterQueue:
    """Open an office, on a simulated disk if one is given."""
    settings = DeadLettersSettings.model_validate(
        {"rejected": rejected or {}, "undelivered": undelivered or {}}
    )
    seam = None if disk is None else seam_of(disk)
    return DeadLetterQueue.open(str(directory), settings, seam=seam)


def payloads(quiver: Quiver, name: str = "keeper") -> list[bytes]:
    """Return what waits for a subscriber of a quiver."""
    found = []
    for seq in quiver.waiting(name, limit=100_000):
        bundle = quiver.bundle(seq)
        assert bundle is not None
        found += bundle.payloads
    return found
