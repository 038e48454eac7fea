"""Replay: what the WAL files still hold that no segment covers.

Every file is walked, oldest first. Bundles that a segment covers are skipped, bundles seen before
(a group rewritten after a failed sync) too, so replaying twice changes nothing.

Holes. `synced_through` in the frames, and `previous_synced` in the next file's header, say how far
a file certainly was on stable storage. A hole before that point is damage: the bytes go to
quarantine, the missing seqs are reported, and reading goes on at the next sound frame. A hole
beyond it is a torn tail: it was never acknowledged, so it is dropped and only counted. Sound frames
beyond a torn hole are kept: they may have been acknowledged at level `written`.

Transactions. Staged bundles count only with the COMMIT behind them, and only all together. There is
one exception: if a hole that is damage swallowed the COMMIT or some of the bundles, what is sound
is kept, because all of it had been acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from holdfast.quiver.buffer import Held
from holdfast.quiver.frame import (
    BUNDLE_KINDS,
    NOTHING,
    STAGED,
    Frame,
    Kind,
    Totals,
    holds_after,
)
from holdfast.quiver.group import COUNT
from holdfast.quiver.quarantine import Damage
from holdfast.quiver.wal import Hole, WalHeader, walk


@dataclass(frozen=True)
class WalContent:
    """One readable WAL file."""

    path: PurePath
    view: memoryview
    header: WalHeader


class UnknownFrame(Exception):
    """A sound frame of a kind, or with a flag, that this program does not know."""


@dataclass
class Replay:
    """Walks WAL files and gathers what they still hold."""

    # Whether a segment holds the bundle with this seq.
    covered: Callable[[int], bool]
    bundles: dict[int, Held] = field(default_factory=dict)
    damages: list[tuple[WalContent, Damage]] = field(default_factory=list)
    torn_bytes: int = 0
    skipped_bundles: int = 0
    dropped_transactions: int = 0
    last_seq: int = -1
    # The number to go on with, if the newest file ends with a clean shutdown.
    closed_at_seq: int | None = None
    # What was ever accepted into these files, damaged or not.
    accepted: Totals = NOTHING
    # How far the newest file is sound, and what it holds up to there.
    sound_through: int = 0
    sound_holds: Totals = NOTHING
    _seen: set[int] = field(default_factory=set)
    _staged: list[Held] = field(default_factory=list)
    _staged_damaged: bool = False

    def walk_all(self, files: Sequence[WalContent]) -> dict[PurePath, int]:
        """Replay all files in order; return the highest seq each one still holds (-1: none)."""
        left = {later.header.previous_number: later.header for later in files}
        return {file.path: self._walk(file, left.get(file.header.number)) for file in files}

    def _walk(self, file: WalContent, later: WalHeader | None) -> int:
        items = list(walk(file.view, file.header.salt))
        synced = [item.synced_through for item in items if isinstance(item, Frame)]
        synced_through = max([later.previous_synced if later else 0, *synced])
        self.closed_at_seq = None
        self.sound_through, self.sound_holds = len(file.view), NOTHING
        known_before = set(self.bundles)
        for place, item in enumerate(items):
            if isinstance(item, Frame):
                self._take(item)
                if item.end <= self.sound_through:
                    self.sound_holds = holds_after(item.kind, item.before, item.events)
            elif item.start < synced_through:
                self._damage(file, item, items, place, later)
            else:
                self.torn_bytes += item.end - item.start
                self.sound_through = min(self.sound_through, item.start)
                self.closed_at_seq = None
        self._end_transaction(complete=False)
        return max((seq for seq in self.bundles if seq not in known_before), default=-1)

    # ------------------------------------------------------------------ frames

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if frame.flags & ~STAGED:
            raise UnknownFrame(f"a frame with flags {frame.flags:#04x}")
        if kind in BUNDLE_KINDS:
            self.last_seq = max(self.last_seq, frame.seq)
            if frame.flags & STAGED:
                self._staged.append(_held(frame))
                return
            if self._staged:
                self._end_transaction(complete=False)
            self._accept(_held(frame))
        elif kind == Kind.COMMIT:
            (count,) = COUNT.unpack_from(frame.payload)
            members = [held for held in self._staged if held.seq > frame.seq - count]
            self._end_transaction(complete=len(members) == count)
        elif kind == Kind.CLOSE:
            self.closed_at_seq = frame.seq
        else:
            raise UnknownFrame(f"a frame of kind {kind}")

    def _accept(self, held: Held) -> None:
        if held.seq not in self._seen:
            self._seen.add(held.seq)
            self.accepted = self.accepted.plus(1, held.events)
        if held.seq in self.bundles or self.covered(held.seq):
            self.skipped_bundles += 1
        else:
            self.bundles[held.seq] = held

    def _end_transaction(self, *, complete: bool) -> None:
        if not self._staged:
            return
        if complete or self._staged_damaged:
            for held in self._staged:
                self._accept(held)
        else:
            self.dropped_transactions += 1
        self._staged = []
        self._staged_damaged = False

    # ------------------------------------------------------------------- holes

    def _damage(
        self,
        file: WalContent,
        hole: Hole,
        items: Sequence[Frame | Hole],
        place: int,
        later: WalHeader | None,
    ) -> None:
        """Note a hole, with the seqs it may have held and the number of bundles it swallowed."""
        first_seq = last_seq = hole.seq
        if first_seq is None:
            first_seq = self.last_seq + 1
            following = (_lowest_seq(item) for item in items[place + 1 :])
            after = next((seq for seq in following if seq is not None), None)
            last_seq = None if after is None else max(first_seq, after - 1)
        else:
            self.last_seq = max(self.last_seq, first_seq)
        start, end = hole.holds or _around(items, place, later)
        lost = Totals(max(0, end.bundles - start.bundles), max(0, end.events - start.events))
        self.accepted = self.accepted.plus(*lost)
        self._staged_damaged = True
        damage = Damage(
            source=file.path.name,
            reason=hole.reason,
            offset=hole.start,
            size_bytes=hole.end - hole.start,
            first_seq=first_seq,
            last_seq=last_seq,
            bundles=lost.bundles,
            events=lost.events,
        )
        self.damages.append((file, damage))

    def real_damages(self) -> list[tuple[WalContent, Damage]]:
        """Return the damages that cost something: not those whose bundles exist elsewhere."""
        return [found for found in self.damages if not self._harmless(found[1])]

    def _harmless(self, damage: Damage) -> bool:
        if damage.first_seq is None or damage.last_seq is None:
            return False
        seqs = range(damage.first_seq, damage.last_seq + 1)
        return all(seq in self.bundles or self.covered(seq) for seq in seqs)


def _lowest_seq(item: Frame | Hole) -> int | None:
    """Return a number that no bundle before this item reaches."""
    is_commit = isinstance(item, Frame) and item.kind == Kind.COMMIT
    return item.seq + 1 if item.seq is not None and is_commit else item.seq


def _around(
    items: Sequence[Frame | Hole], place: int, later: WalHeader | None
) -> tuple[Totals, Totals]:
    """Return what the file holds before and after a hole, by the headers on both sides."""
    before = next((known[1] for i in reversed(items[:place]) if (known := _holds(i))), NOTHING)
    after = next((known[0] for i in items[place + 1 :] if (known := _holds(i))), None)
    left = later.previous_holds if later else before
    return before, left if after is None else after


def _holds(item: Frame | Hole) -> tuple[Totals, Totals] | None:
    """Return what the file holds before and after a frame whose header is sound."""
    if isinstance(item, Hole):
        return item.holds
    return item.before, holds_after(item.kind, item.before, item.events)


def _held(frame: Frame) -> Held:
    return Held(
        frame.seq,
        Kind(frame.kind),
        frame.ingestion_ns,
        frame.watermark_ns,
        frame.producer,
        frame.epoch,
        frame.events,
        frame.payload,
    )
