"""Looking into a data directory without owning it: takes no lock, changes nothing.

It reads what is there at this moment, beside a running owner or without one. Bundles the owner has
not synced yet may be seen here; that is fine for looking, and the reason why readers that must not
err go through the owner.

Beside a running owner the order matters. The ledger comes first: what is resolved a moment later is
then seen as pending, not as resolved without ever having been accepted. The WAL comes before the
segments: a bundle sealed in between is then seen twice and skipped once.

What is not as it should be is a `QuiverFinding`: how bad it is, where, what, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import NamedTuple

from holdfast.errors import CannotOpen, Damaged, Overloaded
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.identity import QuiverIdentity, check_machine, identity_or_none
from holdfast.quiver.engine.balance import with_known_start
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.ledger.recovery import RecoveredLedger, recover_ledger
from holdfast.quiver.log.quarantine import Damage, Quarantine
from holdfast.quiver.log.replay import Replay, WalContent, read_wal_file
from holdfast.quiver.log.wal import SEQ_BLOCK, HeaderFault, NewerVersion
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.segment import Catalog, Segment, choices
from holdfast.seam.disk import Disk, entries_of


class Severity(StrEnum):
    """How bad a finding is."""

    # Something is lost, or will be if the operator does nothing.
    ERROR = "error"
    # Nothing is lost, but the operator should look.
    WARNING = "warning"
    # As it should be after a crash; the next start repairs it.
    NOTE = "note"


class QuiverFinding(NamedTuple):
    """One thing that is not as it should be."""

    severity: Severity
    where: str
    what: str
    next: str
    # Ranges of seqs, both ends included, that it concerns; not all of them need exist.
    seqs: tuple[tuple[int, int], ...] = ()


@dataclass
class Report:
    """What was checked, and what was found."""

    findings: list[QuiverFinding] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is lost or about to be."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def as_ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return numbers as ranges, both ends included."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if ranges and ranges[-1][1] + 1 == seq:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return tuple(ranges)


# How often files may vanish while they are listed, before that is taken for an error.
_LISTINGS_MAX = 100


@dataclass(frozen=True)
class WalFileInfo:
    """One WAL file from outside."""

    name: str
    size_bytes: int
    # Why it cannot be read, if so.
    fault: str | None


@dataclass(frozen=True)
class Inventory:
    """What a data directory holds."""

    root: PurePath
    # None if FORMAT is missing or damaged.
    identity: QuiverIdentity | None
    # The ids this store has or had, from wherever that is known.
    own_ids: frozenset[str]
    segments: tuple[Segment, ...]
    # Segment directories whose manifest cannot be read.
    unreadable: tuple[str, ...]
    wal_files: tuple[WalFileInfo, ...]
    # The readable WAL files of this store, oldest first.
    wal: tuple[WalContent, ...]
    # Accepted bundles that are in no segment yet, in order.
    unsealed: tuple[HeldBundle, ...]
    # What was ever accepted, as far as is known; and the highest seq anything tells of.
    accepted: Totals
    last_seq: int
    torn_bytes: int
    wal_damages: tuple[Damage, ...]
    ledger: RecoveredLedger
    quarantined: tuple[Damage, ...]

    @property
    def catalog(self) -> Catalog:
        """The segments, to be searched."""
        catalog = Catalog()
        for segment in self.segments:
            catalog.add(segment)
        return catalog


def removed_meanwhile(disk: Disk, damage: Damaged) -> Damaged | Overloaded:
    """Tell a segment that the owner removed while it was read from one that is damaged."""
    if damage.path is None or disk.exists(PurePath(damage.path).parent):
        return damage
    return Overloaded(
        "a segment was removed while it was read: every subscriber has its events",
        hint="try again",
        path=damage.path,
    )


def require_quiver(disk: Disk, root: PurePath) -> None:
    """Raise unless there is something in `root` that a quiver has."""
    check_machine(root)
    known = (names.FORMAT, names.WAL_DIR, names.SEGMENTS_DIR)
    if not disk.exists(root):
        raise CannotOpen(
            "there is no quiver here: no such file or directory",
            hint="name a graph file, the data directory of a gateway, or a quiver",
            path=str(root),
        )
    if not any(disk.exists(root / name) for name in known):
        _refuse_shared_root(disk, root)
        raise CannotOpen(
            "there is no quiver here",
            hint="name a graph file, the data directory of a gateway, or a quiver",
            path=str(root),
        )


def _refuse_shared_root(disk: Disk, root: PurePath) -> None:
    cores = [e.name for e in entries_of(disk, root) if names.parse_core_dir(e.name) is not None]
    if cores:
        raise CannotOpen(
            f"several quivers share this root: {', '.join(cores)}",
            hint=f"name one of them, such as {root / cores[0]}",
            path=str(root),
        )


def inspect(disk: Disk, root: PurePath) -> Inventory:
    """Return what is in `root`.

    Where a file vanished (of the log it was sealed, of the ledger it was past its time) what others
    say of it would not add up: then all is read again.
    """
    require_quiver(disk, root)
    for _ in range(_LISTINGS_MAX):
        try:
            return _inspect_once(disk, root)
        except FileNotFoundError:
            continue
    raise Overloaded(
        "the write-ahead log changes faster than it can be read",
        hint="try again when there is less to do",
        path=str(root),
    )


def _inspect_once(disk: Disk, root: PurePath) -> Inventory:
    """Read ledger, log and segments, in the order that the head of this file explains."""
    identity = identity_or_none(disk, root)
    own_ids = _own_ids(disk, root, identity)
    # In this order, see the head. Changed, a subscriber may seem to have resolved what was never
    # accepted.
    ledger = _read_ledger(disk, root / names.LEDGER_DIR, own_ids)
    contents, files = _read_wal(disk, root / names.WAL_DIR)
    contents = [content for content in contents if content.header.quiver_id in own_ids]
    catalog, unreadable = _read_segments(disk, root / names.SEGMENTS_DIR)
    replay = Replay(catalog, keeps_payloads=True)
    replay.walk_all(contents)
    sealed = catalog.snapshot()
    spans = [(s.summary.first_seq, s.summary.last_seq + 1) for s in sealed]
    spans += [(seq, seq + 1) for seq in replay.bundles]
    return Inventory(
        root=root,
        identity=identity,
        own_ids=frozenset(own_ids),
        segments=sealed,
        unreadable=tuple(unreadable),
        wal_files=tuple(files),
        wal=tuple(contents),
        unsealed=tuple(replay.bundles[seq] for seq in sorted(replay.bundles)),
        accepted=_accepted(contents, replay, sealed, ledger.state),
        last_seq=_last_seq(contents, replay, sealed, unreadable),
        torn_bytes=replay.torn_bytes,
        wal_damages=tuple(
            with_known_start(damage, spans, ledger.state) for _, damage in replay.real_damages()
        ),
        ledger=ledger,
        quarantined=tuple(Quarantine(disk, root).damages()),
    )


def _own_ids(disk: Disk, root: PurePath, identity: QuiverIdentity | None) -> set[str]:
    """Return the ids that data of this quiver may carry.

    Without FORMAT, whatever the files claim.
    """
    if identity is not None:
        return {identity.quiver_id, *identity.former_ids}
    contents, _ = _read_wal(disk, root / names.WAL_DIR)
    segments, _ = _read_segments(disk, root / names.SEGMENTS_DIR)
    claims = {content.header.quiver_id for content in contents}
    return claims | {segment.summary.quiver_id for segment in segments.snapshot()}


def _accepted(
    contents: list[WalContent],
    replay: Replay,
    sealed: tuple[Segment, ...],
    ledger: LedgerState,
) -> Totals:
    if contents:
        # The oldest file knows what came before it; what follows is counted.
        return contents[0].header.accepted_before.plus(*replay.accepted)
    bundles = sum(segment.summary.bundles for segment in sealed)
    return ledger.deleted.plus(bundles, sum(segment.summary.events for segment in sealed))


def _last_seq(
    contents: list[WalContent],
    replay: Replay,
    sealed: tuple[Segment, ...],
    unreadable: list[str],
) -> int:
    """Return the highest seq that anything tells of, stored or not."""
    parsed = [names.parse_segment_dir(name) for name in unreadable]
    return max(
        replay.last_seq,
        *(segment.summary.last_seq for segment in sealed),
        *(name.last_seq for name in parsed if name is not None),
        # What a header reserves begins at the number that was next when the file was begun.
        *(content.header.seq_limit - SEQ_BLOCK - 1 for content in contents),
        -1,
    )


def _read_ledger(disk: Disk, directory: PurePath, own_ids: set[str]) -> RecoveredLedger:
    if not disk.exists(directory):
        return RecoveredLedger(LedgerState({}))
    recovered = recover_ledger(disk, directory, own_ids)
    # A file past its time may be removed while we look.
    recovered.unreadable = [one for one in recovered.unreadable if disk.exists(one[0])]
    return recovered


def _read_segments(disk: Disk, directory: PurePath) -> tuple[Catalog, list[str]]:
    """Return the segments that a start would keep, and the names of those it could not read."""
    found, unreadable = [], []
    for entry in entries_of(disk, directory):
        if names.parse_segment_dir(entry.name) is None:
            continue
        path = directory / entry.name
        try:
            summary = manifest.read(disk, path)
        except (OSError, manifest.ManifestFault, manifest.NewerManifest):
            if disk.exists(path):
                unreadable.append(entry.name)
        else:
            found.append(Segment(disk, path, summary))
    catalog = Catalog()
    for choice in choices(found):
        catalog.add(choice.kept)
    return catalog, unreadable


def _read_wal(disk: Disk, directory: PurePath) -> tuple[list[WalContent], list[WalFileInfo]]:
    """Return the WAL files of one moment; raises FileNotFoundError if one goes meanwhile."""
    contents, files = [], []
    for entry in entries_of(disk, directory):
        if names.is_spare_wal_file(entry.name):
            continue
        path, fault = directory / entry.name, None
        try:
            contents.append(read_wal_file(disk, path))
        except FileNotFoundError:
            # A file that vanished was sealed meanwhile: its bundles are in a segment that this
            # listing may have missed or not, so everything is looked at once more.
            raise
        except (OSError, HeaderFault, NewerVersion) as error:
            # Raises FileNotFoundError, too: of one that became a spare, half may be a later header.
            disk.file_bytes(path)
            fault = str(error)
        files.append(WalFileInfo(entry.name, entry.size_bytes, fault))
    return sorted(contents, key=lambda content: content.header.number), files


def format_findings(inventory: Inventory) -> Iterator[QuiverFinding]:
    """Yield what is wrong with FORMAT."""
    if inventory.identity is None:
        act = "the next start writes it again from the write-ahead log, if that agrees on an id"
        yield QuiverFinding(Severity.ERROR, names.FORMAT, "it is missing or damaged", act)


def wal_damage_findings(inventory: Inventory) -> Iterator[QuiverFinding]:
    """Yield the damaged parts of WAL files, with what they cost."""
    for damage in inventory.wal_damages:
        where = f"{names.WAL_DIR}/{damage.source} at byte {damage.offset}"
        lost = f"{damage.bundles} bundles, {damage.events} events are lost"
        if damage.bundles is None:
            lost = "bundles whose number is not known may be lost"
        what = f"{damage.reason}: {lost}"
        act = "the next start sets the bytes aside and records the loss; restore from a backup"
        yield QuiverFinding(Severity.ERROR, where, what, act, seqs_of(damage))


def seqs_of(damage: Damage) -> tuple[tuple[int, int], ...]:
    if damage.first_seq is None:
        return ()
    last_seq = damage.first_seq if damage.last_seq is None else damage.last_seq
    return ((damage.first_seq, last_seq),)
