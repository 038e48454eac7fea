"""A quiver without its owner: enough of one to change the ledger, and nothing more.

A tool does not know the configuration of the owner. Opened with any other one, a quiver would seal
without the owner's extractors and delete by other caps. So the tools take the lock, read, write
lines to the ledger, and leave the rest as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from holdfast.errors import CannotOpen, DirectoryLocked
from holdfast.quiver.base import names
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.identity import QuiverIdentity, refuse_backup
from holdfast.quiver.keep.retention import Retention
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.log.reserve import DiskReserve
from holdfast.quiver.log.sealer import Sealer
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.quiver.log.writer import Writer
from holdfast.quiver.log.writer_state import OpenBuffer
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.build import SegmentBuilder
from holdfast.quiver.tools.inspect import Inventory, inspect
from holdfast.seam import Seam
from holdfast.seam.clock import Clock
from holdfast.seam.disk import LockHeld


def readable_of(seam: Seam, inventory: Inventory) -> ReadableBundles:
    """Return the bundles that a directory held when it was looked at."""
    # A writer and a sealer that are never started: nothing is added, nothing goes.
    config, wal_dir = QuiverConfig(), inventory.root / names.WAL_DIR
    builder = SegmentBuilder(seam.disk, inventory.root / names.SEGMENTS_DIR, "", config)
    reserve = DiskReserve(seam, inventory.root)
    sealer = Sealer(seam, config, builder, inventory.catalog, wal_dir, reserve)
    writer = Writer(seam, wal_dir, config, sealer, Wakeup(), reserve)
    buffer = OpenBuffer(seam.clock.monotonic_s())
    for held in inventory.unsealed:
        buffer.add(held)
    writer.buffer = buffer
    writer.synced_seq = inventory.last_seq
    writer.accepted = inventory.accepted
    writer.published = (inventory.last_seq, inventory.accepted)
    return ReadableBundles(inventory.catalog, sealer, writer)


@contextmanager
def directory_lock(seam: Seam, root: PurePath) -> Iterator[None]:
    """Keep everyone else from opening a directory."""
    try:
        handle = seam.disk.lock(root / names.LOCK, f"process {os.getpid()}")
    except LockHeld as held:
        raise DirectoryLocked(
            f"the directory is in use by {held.owner or 'another process'}, "
            "which does not listen to tools",
            hint="it is starting or closing, or its configuration says control=False; "
            "try again, or stop it first",
            path=str(root),
        ) from None
    except OSError as error:
        raise CannotOpen(
            f"the directory cannot be locked: {error.strerror}",
            hint="run the command as the user the data belongs to",
            path=str(root),
        ) from error
    try:
        yield
    finally:
        seam.disk.unlock(handle)


class Offline:
    """A directory nobody owns, held by a tool. Has what readers have of a quiver (`Store`)."""

    def __init__(self, seam: Seam, inventory: Inventory, quiver_id: str) -> None:
        """Read the ledger, and begin a new file of it."""
        old = inventory.ledger
        self.arrivals = Wakeup()
        self.readable = readable_of(seam, inventory)
        self.ledger = Ledger(seam, inventory.root, quiver_id, QuiverConfig().ledger, old.state)
        self._seam = seam
        self._inventory = inventory
        self.ledger.reserve.find()
        try:
            self.ledger.start(old.next_number, old.files, last=old.last)
        except OSError as error:
            raise CannotOpen(
                f"the ledger cannot be written: {error.strerror}",
                hint="check that the disk is writable and not full",
                path=str(inventory.root / names.LEDGER_DIR),
            ) from error

    @property
    def clock(self) -> Clock:
        """The clock that dates the lines."""
        return self._seam.clock

    def freed(self) -> None:
        """Nobody waits for room here."""

    def hasten(self) -> None:
        """Nothing is sealed here."""

    def drop_subscriber(self, name: str, reason: str) -> Totals:
        """Forget a subscriber; what waited for it is given up."""
        retention = Retention(
            self._seam,
            self._inventory.root,
            QuiverConfig(),
            self._inventory.catalog,
            self.readable,
            self.ledger,
            lambda _: (),
            lambda: (0, 0),
        )
        return retention.unregister(name, reason)


@contextmanager
def offline(seam: Seam, root: PurePath) -> Iterator[Offline]:
    """Hold a directory that nobody owns."""
    refuse_backup(seam.disk, root)
    with directory_lock(seam, root):
        inventory = inspect(seam.disk, root)
        held = Offline(seam, inventory, require_identity(inventory).quiver_id)
        try:
            yield held
        finally:
            held.ledger.close()


def require_identity(inventory: Inventory) -> QuiverIdentity:
    """Return who a quiver is, as FORMAT says."""
    if inventory.identity is None:
        raise CannotOpen(
            "FORMAT is missing or damaged",
            hint="start the owner once, it repairs that; or use `holdfast quiver salvage`",
            path=str(inventory.root),
        )
    return inventory.identity
