"""The open buffer: the accepted bundles that are not yet in a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.quiver.base.bundle import ENVELOPE_BYTES
from holdfast.quiver.base.config import SegmentConfig
from holdfast.quiver.base.frame import HEADER_BYTES
from holdfast.quiver.base.held_bundle import HeldBundle

if TYPE_CHECKING:
    from holdfast.quiver.log.writer_interface import Room


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
