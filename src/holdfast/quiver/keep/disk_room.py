"""Whether the disk has room for an append: the cap that the disk sets, whatever is configured.

Nothing is appended unless the reserve is as large as it must be afterwards, and some space is left
beside it. So whoever delivers and frees what is stored never needs space that is gone.

What was refused last is remembered: room for something smaller says little to those who append as
much again. It is forgotten as soon as that fits; the keeper looks, too.

Two ways to be full are told apart because their cure differs. When the disk says that it has too
little left, waiting for readers helps, and so does freeing space elsewhere. When it has room by
its own figures and still refuses (a quota, no inodes), `statvfs` never shows the cure, and the
only test is to write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import PurePath

from holdfast.errors import DiskFull
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.log.reserve import FREE_BYTES_MIN, ReserveShare, headers_bytes, segment_bytes
from holdfast.seam.disk import Disk


class DiskRoom:
    """Asks the disk, and keeps the reserve whole. Safe to use from many threads."""

    def __init__(
        self,
        disk: Disk,
        root: PurePath,
        config: QuiverConfig,
        ledger: Ledger,
        unsealed_bytes: Callable[[], tuple[int, int]],
    ) -> None:
        self._disk = disk
        self._root = root
        self._full_buffer_bytes = config.segment.target_size_bytes
        self._free_bytes_min = max(FREE_BYTES_MIN, config.retention.min_free_bytes)
        self._ledger = ledger
        self._reserve = ledger.reserve
        self._unsealed_bytes = unsealed_bytes
        # Bytes of what was refused last; 0: nothing, or it fits by now.
        self.refused_bytes = 0
        # Whether there was room for it by our account: a quota is not announced.
        self._is_denied = False

    def wanted_bytes(self, size_bytes: int) -> int:
        """Return how large the reserve must be after an append of this size."""
        return sum(self._wanted(size_bytes).values())

    def _wanted(self, size_bytes: int) -> dict[ReserveShare, int]:
        """Return how large each share must be once this much more is in the open buffer."""
        _, to_seal_bytes = self._unsealed_bytes()
        # The sealer takes one buffer at a time, and each seal frees its WAL before the next
        # begins. So the reserve has to cover one buffer, however many are queued.
        buffer_bytes = min(to_seal_bytes, self._full_buffer_bytes) + size_bytes
        wanted = {ReserveShare.HEADERS: headers_bytes(self._ledger.checkpoint_bytes)}
        if buffer_bytes:
            wanted[ReserveShare.SEGMENT] = segment_bytes(buffer_bytes, self._full_buffer_bytes)
        return wanted

    def make_reserve(self, size_bytes: int = 0) -> None:
        """Make the reserve as large as it must be after an append; an OSError if it cannot be."""
        self._reserve.make(self._wanted(size_bytes))

    def is_full(self, size_bytes: int) -> bool:
        """Whether there is no room for an append, also without the spare files of the log.

        Without an append, nothing is asked of the disk.
        """
        if not size_bytes or not self._lacks(size_bytes):
            return False
        return not self._reserve.give_up_spares() or self._lacks(size_bytes)

    def _lacks(self, size_bytes: int) -> bool:
        try:
            self.make_reserve(size_bytes)
            # After the reserve, so that the free space looked at is what is left beside it.
            return self._disk.free_bytes(self._root) < size_bytes + self._free_bytes_min
        except OSError:
            return True

    def refused(self, size_bytes: int) -> None:
        """Remember that a producer was refused for want of room."""
        # The disk refused, and by our figures there is room: that is a quota.
        self._is_denied = not self.is_full(size_bytes)
        self.refused_bytes = size_bytes

    def look_again(self) -> int:
        """Return the bytes of what was refused last; 0 if nothing was, or as much fits now."""
        size_bytes = self.refused_bytes
        fits = size_bytes and not self.is_full(size_bytes)
        # Under a quota the figures always say that it fits. Then as many bytes are written, synced
        # and removed: dear, so the reserve limits how often (`RETRY_S`).
        if fits and (not self._is_denied or self._reserve.can_grow(size_bytes)):
            self.refused_bytes = 0
        return self.refused_bytes

    def tick(self) -> None:
        """Make the reserve whole, and forget what was refused, as soon as there is room."""
        self.look_again()
        with contextlib.suppress(OSError):
            self.make_reserve()
            self._reserve.write_out()

    def refusal(self) -> DiskFull:
        """Return the error for producers until there is room."""
        if self.refused_bytes and self._is_denied:
            return DiskFull(
                f"the disk refused to store {self.refused_bytes} bytes, although "
                f"{self._disk.free_bytes(self._root)} are free: a quota, or no inodes",
                hint="let readers catch up, or raise the quota: nothing stored is affected",
                path=str(self._root),
                retry_after_s=1.0,
            )
        return DiskFull(
            f"the disk has {self._disk.free_bytes(self._root)} bytes left beside a reserve of "
            f"{self._reserve.held_bytes}, with which what is stored is delivered and freed",
            hint="let readers catch up, or free space on the disk: nothing stored is affected",
            path=str(self._root),
            retry_after_s=1.0,
        )
