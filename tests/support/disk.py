"""Simulated disks that hold a step up, or remember what was synced."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import PurePath

from tests.patience import PATIENCE_S

from holdfast.seam.disk import Handle
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk
from holdfast.seam.simulated_files import BLOCK_BYTES


class AllocatingDisk(SimulatedDisk):
    """Gives a file its blocks before its bytes are written, all or none."""

    def allocate(self, handle: Handle, size_bytes: int, at: str) -> bool:
        with self._writing():
            self._need_blocks(-(-size_bytes // BLOCK_BYTES))
            return self.write(handle, [bytes(size_bytes)], at) == size_bytes

    def _successor(self) -> SimulatedDisk:
        disk = AllocatingDisk(self.capacity_bytes)
        disk.full_errno = self.full_errno
        return disk


class GatedDisk(FaultyDisk):
    """Holds every call of one step until the gate is opened."""

    def __init__(self, inner: SimulatedDisk, at: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(inner, faults, inner.die)
        self.at = at
        self.reached = threading.Event()
        self.gate = threading.Event()

    @property
    def has_faults(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        """Prepare one more fault; its `nth` counts from the beginning."""
        with self._lock:
            self._faults.append(fault)

    def _enter(self, at: str) -> FaultKind | None:
        if at == self.at:
            self.reached.set()
            assert self.gate.wait(PATIENCE_S), "nobody opened the gate"
        return super()._enter(at)


class WatchedDisk(FaultyDisk):
    """Remembers, by file, at which steps it was synced."""

    def __init__(self, inner: SimulatedDisk, faults: Iterable[Fault] = ()) -> None:
        super().__init__(inner, faults, inner.die)
        self.syncs: dict[str, list[str]] = {}
        self._names: dict[Handle, str] = {}

    def create(self, path: PurePath, at: str) -> Handle:
        handle = super().create(path, at)
        self._names[handle] = path.name
        return handle

    def sync(self, handle: Handle, at: str) -> None:
        self.syncs.setdefault(self._names[handle], []).append(at)
        super().sync(handle, at)
