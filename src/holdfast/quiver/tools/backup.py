"""Backup and restore.

A backup is a directory with the layout of a quiver: segments byte by byte, what is not sealed yet
as one WAL file, the ledger as a checkpoint (with the closed files, for the account), who its data
nodes are, FORMAT, and BACKUP with the checksum of every file. All tools that look read it like any
data directory; opening it is refused.

Consistent means that every subscriber's equation holds in it. With an owner: it seals what is open
and writes a checkpoint of the ledger; whatever is appended or resolved after that moment is pending
in the copy, or not in it. While the copy is made the owner keeps segments that nobody needs any
more, unless it needs the room; then the copy begins again with a newer checkpoint.

A restored quiver is another quiver. It gets a new quiver_id (the old one is a former id, so its
segments stay readable) and generations that nobody had before. Whoever holds a position, a receipt
or an attachment of the original gets `WrongQuiver` or `Fenced`, and is never given other data under
the same number. Subscribers keep their progress as of the backup: what they resolved after it is
handed out again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from holdfast.errors import CannotOpen, Damaged, HoldfastError, Overloaded
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.identity import CopiedFile, QuiverIdentity, read_marker, refuse_backup
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.ledger.log import read_ledger_file
from holdfast.quiver.ledger.recovery import recover_ledger
from holdfast.quiver.log.wal import SEQ_BLOCK
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.assemble import Assembly, OnRead, check_apart, fenced, hash_file
from holdfast.quiver.tools.changes import ask_owner, balances, directory_lock, require_identity
from holdfast.quiver.tools.inspect import Inventory, QuiverFinding, inspect, require_quiver
from holdfast.quiver.tools.scrub import scrub
from holdfast.seam import Seam
from holdfast.seam.disk import Disk
from holdfast.seam.randomness import random_uuid

# The owner keeps still for so long; renewed at this interval while copying.
HOLD_S = 60
RENEW_S = 15.0
# How often a copy begins again because the owner had to delete what was being copied.
ATTEMPTS_MAX = 5


@dataclass
class Copied:
    """What a backup or a restore made."""

    quiver_id: str
    segments: int = 0
    bundles: int = 0
    events: int = 0
    files: int = 0
    size_bytes: int = 0
    # Damage that was in the original already: copied as it was, byte by byte.
    findings: list[QuiverFinding] = field(default_factory=list)
    # The accounts of all subscribers in the copy.
    balances: list[dict[str, Any]] = field(default_factory=list)


# ------------------------------------------------------------------------ backup


def backup(seam: Seam, source: PurePath, target: PurePath, on_read: OnRead) -> Copied:
    """Copy a quiver, beside its owner or without one."""
    require_quiver(seam.disk, source)
    refuse_backup(seam.disk, source)
    check_apart(source, target)
    # The owner first, the lock second: with an owner there is no lock to be had, and without one
    # nobody answers.
    answer = ask_owner(seam, source, "checkpoint", timeout_s=120.0, seconds=HOLD_S)
    if answer is not None:
        return _OnlineBackup(seam, source, target, on_read).run(answer["ledger_file"])
    with directory_lock(seam, source):
        inventory = inspect(seam.disk, source)
        assembly = Assembly(seam, target, require_identity(inventory))
        for segment in _wanted(inventory, inventory.ledger.state):
            assembly.copy_segment(segment.path, on_read)
        return _finish_backup(seam, assembly, inventory, inventory.ledger.state, on_read)


class _OnlineBackup:
    """Copies beside a running owner."""

    def __init__(self, seam: Seam, source: PurePath, target: PurePath, on_read: OnRead) -> None:
        self._seam = seam
        self._source = source
        self._target = target
        self._on_read = on_read
        self._copied: set[str] = set()

    def run(self, ledger_file: str) -> Copied:
        done = threading.Event()
        renewing = threading.Thread(target=self._renew, args=[done], name="hold", daemon=True)
        renewing.start()
        try:
            return self._run(ledger_file)
        finally:
            done.set()
            # The hold is lifted only when nobody renews it any more, or the last renewal would
            # outlive it.
            renewing.join()
            self._hold(0)

    def _run(self, ledger_file: str) -> Copied:
        """Copy while the owner works.

        It holds back removals, and what vanishes all the same is copied again.
        """
        assembly = None
        for _ in range(ATTEMPTS_MAX):
            state = self._checkpoint(ledger_file)
            inventory = inspect(self._seam.disk, self._source)
            # Once: what was copied in an earlier attempt stays, since segments never change.
            assembly = assembly or Assembly(self._seam, self._target, require_identity(inventory))
            if self._nothing_went(inventory, state) and self._copy(assembly, inventory, state):
                # Lines that the owner wrote since are about a future that the copy does not have.
                inventory.ledger.files[:] = _files_before(inventory, ledger_file)
                return _finish_backup(self._seam, assembly, inventory, state, self._on_read)
            answer = ask_owner(
                self._seam, self._source, "checkpoint", timeout_s=120.0, seconds=HOLD_S
            )
            if answer is None:
                raise CannotOpen(
                    "the owner ended while its quiver was copied",
                    hint="remove the copy and start over",
                    path=str(self._target),
                )
            ledger_file = answer["ledger_file"]
        raise Overloaded(
            "the owner deletes what is being copied, because the quiver is at its size cap",
            hint="let its readers catch up or raise retention.size_cap_bytes; remove the copy, and "
            "begin again",
            path=str(self._source),
        )

    def _checkpoint(self, ledger_file: str) -> LedgerState:
        path = self._source / names.LEDGER_DIR / ledger_file
        checkpoint = read_ledger_file(self._seam.disk, path).checkpoint
        assert checkpoint is not None, "BUG: the owner wrote no checkpoint"
        return LedgerState.from_fields(checkpoint)

    def _nothing_went(self, inventory: Inventory, state: LedgerState) -> bool:
        """Whether all that was there at the checkpoint was there when we looked.

        A segment that went between the checkpoint and the listing would be missing from the copy
        although the checkpoint counts it as there: pending, and lost. The ledger is read again to
        see that.
        """
        folder = self._source / names.LEDGER_DIR
        now = recover_ledger(self._seam.disk, folder, set(inventory.own_ids)).state
        return list(now.deleted_segments) == list(state.deleted_segments)

    def _copy(self, assembly: Assembly, inventory: Inventory, state: LedgerState) -> bool:
        """Copy what is missing; False if something of it went meanwhile."""
        wanted = {segment.path.name: segment for segment in _wanted(inventory, state)}
        for name in self._copied - set(wanted):
            assembly.remove_segment(name)
            self._copied.remove(name)
        for name in sorted(set(wanted) - self._copied):
            try:
                assembly.copy_segment(wanted[name].path, self._on_read)
            except FileNotFoundError:
                assembly.remove_segment(name)
                return False
            self._copied.add(name)
        return True

    def _renew(self, done: threading.Event) -> None:
        # Beside the copy, not within it: to list a large quiver alone may take longer than a hold.
        while not done.wait(RENEW_S):
            self._hold(HOLD_S)

    def _hold(self, seconds: int) -> None:
        # An owner that is gone deletes nothing.
        with contextlib.suppress(HoldfastError):
            ask_owner(self._seam, self._source, "hold", seconds=seconds)


def _wanted(inventory: Inventory, state: LedgerState) -> list[Segment]:
    return [s for s in inventory.segments if s.summary.segment_seq not in state.deleted_segments]


def _finish_backup(
    seam: Seam, assembly: Assembly, inventory: Inventory, state: LedgerState, on_read: OnRead
) -> Copied:
    number = _copy_rest(assembly, inventory, on_read)
    assembly.write_ledger(state, number)
    stored = _stored(inventory, state)
    assembly.finish(stored)
    copied = _describe(seam, assembly, stored)
    copied.findings = scrub(seam.disk, assembly.root, on_read).findings
    return copied


def _copy_rest(assembly: Assembly, inventory: Inventory, on_read: OnRead) -> int:
    """Write the WAL, copy the closed ledger files; return the number for the next one."""
    unsealed = inventory.unsealed
    total = Totals(len(unsealed), sum(held.events for held in unsealed))
    limit = max((c.header.seq_limit for c in inventory.wal), default=inventory.last_seq + SEQ_BLOCK)
    assembly.write_wal(unsealed, total, inventory.accepted, limit)
    assembly.copy_members(inventory.root, on_read)
    for path, _, _ in inventory.ledger.files:
        try:
            assembly.copy_file(path, PurePath(names.LEDGER_DIR) / path.name, on_read)
        except FileNotFoundError:
            continue  # past its time
    return inventory.ledger.next_number


def _files_before(inventory: Inventory, name: str) -> list[tuple[PurePath, int, int]]:
    """Return the ledger files before one: lines behind its checkpoint are not in the copy."""
    number = names.parse_ledger_file(name)
    assert number is not None, "BUG: the owner named no ledger file"
    files = inventory.ledger.files
    return [f for f in files if (names.parse_ledger_file(f[0].name) or 0) < number]


def _stored(inventory: Inventory, state: LedgerState) -> Totals:
    wanted = _wanted(inventory, state)
    return Totals(
        sum(s.summary.bundles for s in wanted) + len(inventory.unsealed),
        sum(s.summary.events for s in wanted) + sum(held.events for held in inventory.unsealed),
    )


def _describe(seam: Seam, assembly: Assembly, stored: Totals) -> Copied:
    made = inspect(seam.disk, assembly.root)
    return Copied(
        quiver_id=assembly.identity.quiver_id,
        segments=len(made.segments),
        bundles=stored.bundles,
        events=stored.events,
        files=len(assembly.files),
        size_bytes=sum(file.size_bytes for file in assembly.files),
        balances=balances(seam, made),
    )


# ----------------------------------------------------------------------- restore


def restore(seam: Seam, source: PurePath, target: PurePath, on_read: OnRead) -> Copied:
    """Make a quiver of a backup, under a new id."""
    check_apart(source, target)
    marker = read_marker(seam.disk, source)
    if not marker.complete:
        raise CannotOpen(
            "the backup is not complete: making it was interrupted",
            hint="take another one; `holdfast quiver salvage` reads what there is of this",
            path=str(source),
        )
    # All of it before the first byte is written: half a restore of a damaged backup helps nobody.
    _verify(seam.disk, source, marker.files, on_read)
    inventory = inspect(seam.disk, source)
    old = require_identity(inventory)
    identity = QuiverIdentity(
        random_uuid(seam.randomness),
        seam.clock.wall_ns(),
        tuple(sorted({old.quiver_id, *old.former_ids})),
    )
    assembly = Assembly(seam, target, identity)
    for segment in inventory.segments:
        assembly.copy_segment(segment.path, on_read)
    number = _copy_rest(assembly, inventory, on_read)
    assembly.write_ledger(fenced(inventory.ledger.state, seam.clock.wall_ns()), number)
    assembly.finish(None)
    return _describe(seam, assembly, _stored(inventory, inventory.ledger.state))


def _verify(
    disk: Disk, root: PurePath, files: tuple[CopiedFile, ...], on_read: Callable[[int], None]
) -> None:
    """Raise unless every file of a backup is what was written."""
    for file in files:
        path = root / file.path
        try:
            found = hash_file(disk, path)
        except OSError as error:
            raise _damaged_backup(path, f"cannot be read: {error.strerror}") from error
        if found != (file.size_bytes, file.checksum):
            raise _damaged_backup(path, "does not match its checksum")
        on_read(file.size_bytes)


def _damaged_backup(path: PurePath, what: str) -> Damaged:
    return Damaged(
        f"a file of the backup {what}",
        hint="nothing was restored; use another backup, or read what is sound of this one with "
        "`holdfast quiver salvage`",
        path=str(path),
    )
