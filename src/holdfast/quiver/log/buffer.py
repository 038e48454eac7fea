"""The open buffer: the accepted bundles that are not yet in a segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from holdfast.errors import Damaged, HoldfastError
from holdfast.quiver.base.bundle import ENVELOPE_BYTES
from holdfast.quiver.base.config import SegmentConfig
from holdfast.quiver.base.frame import HEADER_BYTES, FrameKind
from holdfast.quiver.log.unread import Unread

if TYPE_CHECKING:
    from holdfast.quiver.log.writer_interface import Room


class HeldBundle(NamedTuple):
    """One accepted bundle, in the bytes that are also in the WAL."""

    seq: int
    kind: FrameKind
    ingestion_ns: int
    watermark_ns: int
    producer: str | None
    epoch: int
    events: int
    # Unread: what a start found in the WAL stays there until it is wanted.
    payload: bytes | memoryview | pa.Buffer | Unread

    def content(self) -> memoryview:
        """Return the payload; raise `Damaged` if it can no longer be read."""
        payload = self.payload
        return payload.read() if isinstance(payload, Unread) else memoryview(payload)


def in_memory(
    bundles: Iterable[HeldBundle],
    on_damage: Callable[[HeldBundle, Damaged], None] = lambda *_: None,
) -> list[HeldBundle]:
    """Return the bundles with their payloads, without those that can no longer be read."""
    found = []
    for held in bundles:
        try:
            found.append(held._replace(payload=held.content()))
        except Damaged as damage:
            on_damage(held, damage)
    return found


@dataclass
class OpenBuffer:
    """Consecutive bundles on their way into one segment.

    Only the writer adds; a reader takes a snapshot of `bundles` (list slicing is atomic).
    """

    opened_at_s: float
    bundles: list[HeldBundle] = field(default_factory=list)
    size_bytes: int = 0
    # A reader waits for it to be sealed.
    is_wanted: bool = False
    # Called once the segment is durable, or with an error if it cannot be: answers appends that
    # asked for level `segment`, and `flush`.
    on_sealed: list[Callable[[HoldfastError | None], None]] = field(default_factory=list)

    def add(self, *bundles: HeldBundle) -> None:
        """Take the bundles of whole appends; seqs only grow, readers see all of them or none."""
        assert not self.bundles or bundles[0].seq > self.bundles[-1].seq, "BUG: seqs must grow"
        # Headers and rows count: a million empty bundles are not free, nor are as many null rows.
        self.size_bytes += sum(
            [len(held.payload) + HEADER_BYTES + held.events * ENVELOPE_BYTES for held in bundles]
        )
        self.bundles.extend(bundles)

    def due_s(self, config: SegmentConfig, room: Room | None) -> float:
        """Return when it is to be sealed, however small it is.

        Not as long as there would be too many segments; unless an append or a flush waits for it.
        """
        longest_s = config.max_open_duration_s
        wait_s = min(config.min_open_duration_s, longest_s) if self.is_wanted else longest_s
        if room is not None and not self.on_sealed:
            wait_s = max(wait_s, room.earliest_seal_s())
        return self.opened_at_s + wait_s

    def look_s(self, config: SegmentConfig, room: Room | None, now_s: float) -> float:
        """Return when to look whether it is to be sealed: segments may have gone by then."""
        return min(self.due_s(config, room), now_s + config.max_open_duration_s)

    @property
    def first_seq(self) -> int:
        """The seq of the oldest bundle."""
        return self.bundles[0].seq

    @property
    def last_seq(self) -> int:
        """The seq of the newest bundle."""
        return self.bundles[-1].seq
