"""Faults at random steps, kills, power cuts and flipped bits in turns: what was answered holds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.quiver.machine import WAL, Machine, payloads

from holdfast.errors import CannotOpen, NotAccepted
from holdfast.quiver import Quiver
from holdfast.quiver.base.frame import Frame
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.wal import HEADER_BYTES
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash

ROUNDS = 8
BUNDLES_PER_TRANSACTION = 3


class Journal:
    """What the producers were told, and what a flipped bit may have cost."""

    def __init__(self) -> None:
        self.stored: dict[int, list[bytes]] = {}
        self.refused: set[bytes] = set()
        self.damaged: set[int] = set()
        self._together: dict[int, frozenset[int]] = {}

    def accepted(self, first_seq: int, events: list[bytes]) -> None:
        """Note an answered append; no number may be given twice."""
        seqs = frozenset(range(first_seq, first_seq + len(events)))
        assert not seqs & set(self.stored), "a number was given twice"
        for seq, event in zip(sorted(seqs), events, strict=True):
            self.stored[seq] = [event]
            self._together[seq] = seqs

    def hit(self, seq: int) -> None:
        """Note a damaged frame; beyond the last known sync it takes its transaction along."""
        self.damaged |= self._together.get(seq, frozenset({seq}))

    def check(self, quiver: Quiver, *, with_damage: bool) -> None:
        found = payloads(quiver)
        missing = set(self.stored) - set(found)
        assert missing <= self.damaged
        assert all(found[seq] == event for seq, event in self.stored.items() if seq in found)
        events = [event for bundle in found.values() for event in bundle]
        assert len(events) == len(set(events)), "nothing is there twice"
        assert not self.refused & set(events), "what was refused as not stored is not there"
        if not with_damage:
            assert quiver.recovery.damages == []
            staged = Counter(event.split(b"+")[0] for event in events if b"+" in event)
            assert set(staged.values()) <= {BUNDLES_PER_TRANSACTION}, "all or none"


def append_one(quiver: Quiver, journal: Journal, name: bytes, randomness: random.Random) -> None:
    event = name.ljust(randomness.choice([0, 30_000]), b".")
    events = [event]
    if randomness.random() < 0.3:
        events = [b"%s+%d" % (event, n) for n in range(BUNDLES_PER_TRANSACTION)]
    try:
        with quiver.transaction() as transaction:
            for one in events:
                transaction.append_raw(one)
    except NotAccepted as refused:
        if refused.stored == "no":
            journal.refused.update(events)
    else:
        assert transaction.receipt is not None
        journal.accepted(transaction.receipt.seq, events)


# The others strike beyond this life: a disk that stays full, a block that stays unreadable.
FAULT_KINDS = [k for k in FaultKind if k not in (FaultKind.STAYS_FULL, FaultKind.BAD_BLOCK)]


def live(machine: Machine, journal: Journal, name: bytes, randomness: random.Random) -> None:
    """Open with some faults, append, flush, and end well or not."""
    faults = [
        Fault(
            randomness.choice(list(QuiverPoint)),
            randomness.choice(FAULT_KINDS),
            nth=randomness.randint(1, 4),
            times=randomness.choice([1, 1, 2]),
        )
        for _ in range(randomness.randint(0, 3))
    ]
    try:
        quiver = machine.start(faults=faults)
        for n in range(randomness.randint(0, 8)):
            append_one(quiver, journal, b"%s/%d" % (name, n), randomness)
        if randomness.random() < 0.5:
            quiver.flush()
        if randomness.random() < 0.5:
            machine.stop()
    except (SimulatedCrash, NotAccepted, CannotOpen):
        pass
    end = randomness.choice(["kill", "power cut", "random power cut"])
    if end == "kill":
        machine.kill()
    else:
        machine.cut_power(randomness if end == "random power cut" else None)


def flip_somewhere(machine: Machine, journal: Journal, randomness: random.Random) -> None:
    """Flip one bit in the frames of some WAL file."""
    paths = machine.wal_paths() if machine.disk.exists(WAL) else []
    if not paths:
        return
    place = randomness.randrange(len(paths))
    size_bytes = len(machine.disk.read(paths[place]))
    if size_bytes <= HEADER_BYTES:
        return
    wal, bit = machine.wal(place), randomness.randrange(8 * HEADER_BYTES, 8 * size_bytes)
    for start, item in zip(wal.starts, wal.items, strict=True):
        if isinstance(item, Frame) and start <= bit // 8 < item.end:
            journal.hit(item.seq)
    machine.flip(paths[place], bit)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("with_damage", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_what_was_answered_holds_over_faults_crashes_and_damage(
    machine: Machine, seed: int, with_damage: bool
) -> None:
    randomness, journal = random.Random(seed), Journal()
    for number in range(ROUNDS):
        live(machine, journal, b"%d" % number, randomness)
        if with_damage and randomness.random() < 0.4:
            flip_somewhere(machine, journal, randomness)
    journal.check(machine.start(), with_damage=with_damage)
