"""The trash: where segments go that nobody needs, before they are unlinked.

A segment is renamed into trash/ first, durably, so that nobody ever finds half of one. What cannot
be moved or unlinked now is tried again later, and its bytes count as used until then.
"""

from __future__ import annotations

from pathlib import PurePath

from holdfast.quiver.base import names
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.reserve import DiskReserve, ReserveShare
from holdfast.seam.disk import Disk, remove_tree


class Trash:
    """Removes segments. One thread at a time."""

    def __init__(self, disk: Disk, root: PurePath, reserve: DiskReserve | None = None) -> None:
        self._disk = disk
        self._folder = root / names.TRASH_DIR
        self._reserve = reserve
        # What could not be removed yet, where it is, and its size.
        self._left: dict[PurePath, int] = {}

    @property
    def left_bytes(self) -> int:
        """Bytes of what could not be removed yet."""
        return sum(self._left.values())

    def remove(self, segment: PurePath, size_bytes: int) -> None:
        """Remove the directory of a segment, now or later."""
        self._left[segment] = size_bytes
        self._try(segment)

    def empty(self) -> None:
        """Try again what could not be removed, also by an earlier process."""
        for path in [*self._left, *self._leftovers()]:
            self._try(path)

    def _leftovers(self) -> list[PurePath]:
        try:
            return [self._folder / entry.name for entry in self._disk.list(self._folder)]
        except OSError:
            return []

    def _try(self, path: PurePath) -> None:
        """Move a directory into the trash, durably, then unlink it.

        What fails is tried again later.
        """
        try:
            target = self._folder / path.name
            if path != target and self._disk.exists(path):
                self._move(path, target)
            # Synced also if the rename happened in an earlier try that failed right after it: a
            # name that a power cut can bring back into segments/ must not lose its files first.
            if path != target:
                self._disk.sync_dir(path.parent, QuiverPoint.TRASH_SYNC_DIR)
            if self._disk.exists(target):
                remove_tree(self._disk, target, QuiverPoint.TRASH_UNLINK)
        except OSError:
            return
        self._left.pop(path, None)

    def _move(self, path: PurePath, target: PurePath) -> None:
        def move() -> None:
            self._disk.rename(path, target, QuiverPoint.TRASH_MOVE)

        if self._reserve is None:
            move()
        else:
            self._reserve.lend(ReserveShare.HEADERS, move)
