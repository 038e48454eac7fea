"""What a tool changes: through the owner where there is one, else in its place.

A tool does not know the configuration of the owner. Opened with any other one, a quiver would seal
without the owner's extractors and delete by other caps. So a tool without an owner (`Offline`)
takes the lock, reads, writes lines to the ledger, and leaves the rest as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from holdfast.errors import CannotOpen, DirectoryLocked
from holdfast.quiver.base import names
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.identity import QuiverIdentity, refuse_backup
from holdfast.quiver.engine.balance import balance, balance_fields
from holdfast.quiver.engine.control import ask
from holdfast.quiver.engine.decisions import replay_range, resolve_bundles
from holdfast.quiver.keep.retention import Retention
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.ledger.subscriber import Outcome
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.quiver.log.writer_state import OpenBuffer, WriterCounters
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.tools.inspect import Inventory, inspect, require_quiver
from holdfast.seam import Seam
from holdfast.seam.clock import Clock
from holdfast.seam.disk import LockHeld


@dataclass
class _FoundBundles:
    """What a directory holds in its log: nothing is added, nothing goes."""

    buffer: OpenBuffer
    synced_seq: int
    published: tuple[int, Totals]
    counters: WriterCounters = field(default_factory=WriterCounters)


def readable_of(seam: Seam, inventory: Inventory) -> ReadableBundles:
    """Return the bundles that a directory held when it was looked at."""
    buffer = OpenBuffer(seam.clock.monotonic_s())
    for held in inventory.unsealed:
        buffer.add(held)
    newest_seq = inventory.last_seq
    found = _FoundBundles(buffer, newest_seq, (newest_seq, inventory.accepted))
    return ReadableBundles(inventory.catalog, found)


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

    def let_go(self) -> None:
        """Nothing is removed here."""

    def seal_soon(self) -> None:
        """Nothing is sealed here."""

    def drop_subscriber(self, name: str, reason: str) -> Totals:
        """Forget a subscriber; what waited for it is given up.

        Retention with no caps and nothing leased: only `unregister` is used, which writes two
        lines. A second copy of that step here would drift from the owner's.
        """
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


# A seq has up to 19 digits; a request up to 64 kB.
SEQS_PER_REQUEST = 2000


def ask_owner(
    seam: Seam, root: PurePath, verb: str, *, timeout_s: float = 60.0, **fields: Any
) -> dict[str, Any] | None:
    """Ask the owner of a directory; None if nobody listens."""
    if not seam.disk.is_shared:
        return None
    return ask(root, verb, timeout_s=timeout_s, **fields)


def replay(seam: Seam, root: PurePath, subscriber: str, first_seq: int, end_seq: int) -> Totals:
    """Hand out again, to one subscriber, what is still there of a range; return how much."""
    require_quiver(seam.disk, root)
    answer = ask_owner(
        seam, root, "replay", subscriber=subscriber, first_seq=first_seq, end_seq=end_seq
    )
    if answer is not None:
        return Totals(**answer)
    with offline(seam, root) as held:
        return replay_range(held, subscriber, first_seq, end_seq)


def drop_subscriber(seam: Seam, root: PurePath, subscriber: str, reason: str) -> Totals:
    """Forget a subscriber; return what is given up with it."""
    require_quiver(seam.disk, root)
    answer = ask_owner(seam, root, "drop_subscriber", subscriber=subscriber, reason=reason)
    if answer is not None:
        return Totals(**answer)
    with offline(seam, root) as held:
        return held.drop_subscriber(subscriber, reason)


def resolve(
    seam: Seam, root: PurePath, subscriber: str, seqs: Sequence[int], outcome: Outcome, reason: str
) -> Totals:
    """Decide bundles by their seqs; return what was not decided before."""
    require_quiver(seam.disk, root)
    total = NOTHING
    for first in range(0, len(seqs), SEQS_PER_REQUEST):
        asked = list(seqs[first : first + SEQS_PER_REQUEST])
        answer = ask_owner(
            seam,
            root,
            "resolve",
            subscriber=subscriber,
            seqs=asked,
            outcome=outcome.name,
            reason=reason,
        )
        if answer is not None:
            total = total.plus(**answer)
            continue
        with offline(seam, root) as held:
            # The owner ended between two requests: the rest is done in its place, all at once, and
            # what it had done before counts.
            return total.plus(*resolve_bundles(held, subscriber, seqs[first:], outcome, reason))
    return total


def balances(seam: Seam, inventory: Inventory) -> list[dict[str, Any]]:
    """Return every subscriber's account: the owner's own, or counted from the files."""
    answer = ask_owner(seam, inventory.root, "balance")
    if answer is not None:
        accounts: list[dict[str, Any]] = answer["subscribers"]
        return accounts
    readable = readable_of(seam, inventory)
    known = inventory.ledger.state.subscribers.values()
    return [balance_fields(balance(subscriber, readable)) for subscriber in known]
