"""Readers in as few words as a test about something else wants to spend on them."""

from __future__ import annotations

from pathlib import PurePath

from holdfast.quiver import Quiver
from holdfast.quiver.log.replay import WalContent, read_wal_file
from holdfast.seam.simulated import SimulatedDisk


def wal_content(path: PurePath, view: memoryview) -> WalContent:
    """Return a WAL file that holds this."""
    disk = SimulatedDisk()
    for folder in reversed(path.parents[:-1]):
        disk.make_dir(folder, "test")
    disk.put(path, bytes(view))
    return read_wal_file(disk, path)


def acknowledge(quiver: Quiver, subscriber: str, count: int = 1) -> None:
    """Take the next bundles of a subscriber, and say that they arrived."""
    with quiver.lease(subscriber) as deliveries:
        for _ in range(count):
            delivery = deliveries.poll()
            assert delivery is not None
            assert delivery.ack()


def reject(quiver: Quiver, subscriber: str, reason: str) -> None:
    """Take the next bundle of a subscriber, and say that it never will."""
    with quiver.lease(subscriber) as deliveries:
        delivery = deliveries.poll()
        assert delivery is not None
        assert delivery.reject(reason)
