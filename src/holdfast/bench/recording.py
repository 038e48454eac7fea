"""A real disk that notes what it was asked to write: the groups of the WAL, and all bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.quiver.points import QuiverPoint
from holdfast.seam.disk import Handle, RealDisk

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RecordingDisk(RealDisk):
    """Passes everything on, and counts."""

    def __init__(self) -> None:
        # Bytes of the WAL that each sync made durable, in order.
        self.groups: list[int] = []
        # By the first word of the step ("wal", "seal", …).
        self.written_bytes: Counter[str] = Counter()
        self._group_bytes = 0

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        written = super().write(handle, buffers, at)
        self.written_bytes[at.partition(".")[0]] += written
        if at == QuiverPoint.WAL_WRITE:
            self._group_bytes += written
        return written

    def sync(self, handle: Handle, at: str) -> None:
        super().sync(handle, at)
        if at == QuiverPoint.WAL_SYNC:
            self.groups.append(self._group_bytes)
            self._group_bytes = 0
