"""fsck: everything about a data directory that can be checked without reading all of it.

It reads names, sizes, summaries, the write-ahead log and the ledger, never the data of a segment
(that is scrub), and changes nothing. Beside a running owner it sees what comes and goes: what would
be a leftover without an owner is then work in progress, and is not reported.

**What is an error.** An error is a loss, or a loss to come; it makes the command fail. A warning
asks for a look. A note is what any crash leaves and the next start repairs: reported, because an
operator who sees a strange folder should learn that it is expected.

Where an owner runs, everything that may be its work in progress is left out. The price is that
real leftovers of that kind are found only when it is stopped; the other way round, a check of a
healthy system would hardly ever be clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from holdfast.errors import Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.identity import read_marker
from holdfast.quiver.log.wal import HEADER_BYTES
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.changes import ask_owner, balances
from holdfast.quiver.tools.inspect import (
    Inventory,
    QuiverFinding,
    Report,
    Severity,
    format_findings,
    inspect,
    seqs_of,
    wal_damage_findings,
)
from holdfast.seam import Seam
from holdfast.seam.disk import DirEntry, Disk, entries_of

_KNOWN_NAMES = {
    names.FORMAT,
    names.LOCK,
    names.CONTROL_SOCKET,
    names.CONTROL_PATH,
    names.BACKUP,
    names.WAL_DIR,
    names.SEGMENTS_DIR,
    names.LEDGER_DIR,
    names.TRASH_DIR,
    names.QUARANTINE_DIR,
    names.RESERVE_DIR,
    names.HANDOFF_DIR,
}
_SALVAGE = "`holdfast quiver salvage` reads what is sound of it into a new quiver"
_SET_ASIDE = "the next start moves it to quarantine; if it is yours, move it elsewhere"


def fsck(seam: Seam, root: PurePath) -> Report:
    """Check a data directory."""
    inventory = inspect(seam.disk, root)
    # After the inventory: an owner that started in between makes findings vanish that are its own
    # work.
    owner = ask_owner(seam, root, "ping")
    checks = _FsckChecks(seam.disk, root, inventory, owner)
    report = Report(
        findings=[
            *format_findings(inventory),
            *wal_damage_findings(inventory),
            *checks.all(),
            *_check_balances(balances(seam, inventory), owner),
        ],
        files=len(inventory.wal_files) + len(inventory.segments) + len(inventory.ledger.files),
    )
    report.findings.sort(key=lambda finding: list(Severity).index(finding.severity))
    return report


def _check_balances(
    accounts: list[dict[str, Any]], owner: dict[str, Any] | None
) -> Iterator[QuiverFinding]:
    """Yield the subscribers whose account does not add up: accepted = outcomes + pending.

    The one check that needs no idea of what may go wrong: accepted, outcomes and pending are
    counted by three different parts of the program, and every lost or doubled bundle shows as a
    difference.
    """
    for account in accounts:
        if account["holds"]:
            continue
        counted = [account["pending"], *account["outcomes"].values()]
        missing = {
            unit: account["accepted"][unit] - sum(counts[unit] for counts in counted)
            for unit in ("bundles", "events")
        }
        repair = "the next start records what is missing as damaged"
        if owner is not None:
            repair = "restart the owner, which records what is missing as damaged; and report it"
        yield QuiverFinding(
            Severity.ERROR,
            f"subscriber {account['subscriber']}",
            f"accepted is not the sum of outcomes and pending: {missing['bundles']} bundles, "
            f"{missing['events']} events are unaccounted for",
            repair,
        )


@dataclass(frozen=True)
class _FsckChecks:
    """What is compared with what: names with what they may be, then sizes with manifests, then
    ranges with each other. Each check stands alone, so that damage in one place hides none in
    another.
    """

    disk: Disk
    root: PurePath
    inventory: Inventory
    owner: dict[str, Any] | None

    def all(self) -> Iterator[QuiverFinding]:
        yield from self._root_names()
        yield from self._backup()
        yield from self._wal()
        yield from self._segment_names()
        yield from self._segments()
        yield from self._overlaps()
        yield from self._ledger()
        yield from self._leftovers()
        yield from self._quarantine()

    def _list(self, folder: str) -> list[DirEntry]:
        return entries_of(self.disk, self.root / folder)

    # -------------------------------------------------------------------- root

    def _root_names(self) -> Iterator[QuiverFinding]:
        for entry in self.disk.list(self.root):
            if entry.name == names.FORMAT_TEMPORARY:
                yield QuiverFinding(
                    Severity.NOTE, entry.name, "it was being written", "the next start removes it"
                )
            elif entry.name not in _KNOWN_NAMES:
                yield QuiverFinding(
                    Severity.NOTE, entry.name, "no name of a quiver's", "it is left alone; move it"
                )

    def _backup(self) -> Iterator[QuiverFinding]:
        if not self.disk.exists(self.root / names.BACKUP):
            return
        try:
            marker = read_marker(self.disk, self.root)
        except Damaged as damage:
            yield QuiverFinding(Severity.ERROR, names.BACKUP, damage.message, damage.hint)
            return
        if not marker.complete:
            yield QuiverFinding(
                Severity.ERROR,
                names.BACKUP,
                "the copy was interrupted",
                "remove the directory and start over",
            )

    # --------------------------------------------------------------------- WAL

    def _wal(self) -> Iterator[QuiverFinding]:
        for file in self.inventory.wal_files:
            where = f"{names.WAL_DIR}/{file.name}"
            if names.parse_wal_file(file.name) is None:
                yield QuiverFinding(Severity.WARNING, where, "not a WAL file's name", _SET_ASIDE)
            # Nothing stands behind the header, so no bundle can have been in it: a crash while the
            # file was begun, and no loss.
            elif file.fault is not None and file.size_bytes <= HEADER_BYTES:
                if self.owner is None:
                    yield QuiverFinding(
                        Severity.NOTE, where, "it was being made", "the next start removes it"
                    )
            elif file.fault is not None:
                what = f"it cannot be read: {file.fault}"
                yield QuiverFinding(Severity.ERROR, where, what, _SALVAGE)
        # By the id in the header. Somebody copied a file here; reading it would add another
        # quiver's bundles under numbers of this one.
        own = {content.path.name for content in self.inventory.wal}
        for file in self.inventory.wal_files:
            if file.fault is None and file.name not in own:
                what = "it belongs to another quiver"
                yield QuiverFinding(
                    Severity.WARNING, f"{names.WAL_DIR}/{file.name}", what, _SET_ASIDE
                )
        if not self.inventory.wal and self.inventory.segments:
            yield QuiverFinding(
                Severity.ERROR,
                names.WAL_DIR,
                "no WAL file is readable, so it is not known which numbers were given out",
                "restore the folder; else the next start takes a new quiver_id, and positions of "
                "the old one end",
            )

        if self.inventory.torn_bytes and self.owner is None:
            yield QuiverFinding(
                Severity.NOTE,
                names.WAL_DIR,
                f"{self.inventory.torn_bytes} bytes at the end were never acknowledged",
                "nothing is lost; the next start drops them",
            )

    # ---------------------------------------------------------------- segments

    def _segment_names(self) -> Iterator[QuiverFinding]:
        for entry in self._list(names.SEGMENTS_DIR):
            where = f"{names.SEGMENTS_DIR}/{entry.name}"
            if names.is_building_dir(entry.name):
                if self.owner is None:
                    what = "a segment that was being built; its bundles are in the WAL"
                    yield QuiverFinding(Severity.NOTE, where, what, "the next start removes it")
            elif names.parse_segment_dir(entry.name) is None:
                yield QuiverFinding(Severity.WARNING, where, "not a segment's name", _SET_ASIDE)
        for name in self.inventory.unreadable:
            parsed = names.parse_segment_dir(name)
            assert parsed is not None, "BUG: only segments are listed as unreadable"
            yield QuiverFinding(
                Severity.ERROR,
                f"{names.SEGMENTS_DIR}/{name}",
                f"the manifest cannot be read: {parsed.bundles} bundles, {parsed.events} events",
                _SALVAGE,
                ((parsed.first_seq, parsed.last_seq),),
            )

    def _segments(self) -> Iterator[QuiverFinding]:
        # Nothing is expected of a segment that the ledger has as deleted: a power cut may have
        # brought back its folder, and not all of its files.
        deleted = self.inventory.ledger.state.deleted_segments
        for segment in self.inventory.segments:
            summary, where = segment.summary, f"{names.SEGMENTS_DIR}/{segment.path.name}"
            seqs = ((summary.first_seq, summary.last_seq),)
            if names.segment_dir(summary.name) != segment.path.name:
                what = "its name and its manifest disagree"
                yield QuiverFinding(Severity.ERROR, where, what, _SALVAGE, seqs)
            if summary.quiver_id not in self.inventory.own_ids:
                what = f"it belongs to quiver {summary.quiver_id}"
                yield QuiverFinding(Severity.WARNING, where, what, _SET_ASIDE, seqs)
            if summary.segment_seq in deleted:
                if self.owner is None:
                    what = "the ledger says that it was deleted, and a power cut brought it back"
                    yield QuiverFinding(
                        Severity.NOTE, where, what, "the next start removes it", seqs
                    )
            else:
                yield from self._files(segment)

    def _files(self, segment: Segment) -> Iterator[QuiverFinding]:
        """By names and sizes alone. That finds what people and failed copies do (a file moved, cut
        short, put beside); what disks do is found by scrub, which reads every byte.
        """
        summary, where = segment.summary, f"{names.SEGMENTS_DIR}/{segment.path.name}"
        sizes = {entry.name: entry.size_bytes for entry in self._list(where)}
        seqs = ((summary.first_seq, summary.last_seq),)
        for file in summary.files:
            found = sizes.pop(file.name, None)
            # The second look is for a segment that its owner removed since it was listed.
            if found == file.size_bytes or not self.disk.exists(segment.path):
                continue
            what = f"it has {found} bytes, not {file.size_bytes}"
            yield QuiverFinding(
                Severity.ERROR,
                f"{where}/{file.name}",
                "it is missing" if found is None else what,
                "restore it from a backup; " + _SALVAGE,
                seqs,
            )
        if sizes.pop(names.BUNDLES, None) is None and self.disk.exists(segment.path):
            yield QuiverFinding(
                Severity.WARNING,
                f"{where}/{names.BUNDLES}",
                "it is missing; readers are served from the rows, without producers",
                "restore it from a backup",
                seqs,
            )
        sizes.pop(names.MANIFEST, None)
        for file in summary.files:
            if file.ids_checksum:
                sizes.pop(names.ids_file(file.name), None)  # it may be missing: data nodes get none
        for name in sizes:
            yield QuiverFinding(
                Severity.NOTE, f"{where}/{name}", "no file of this segment", "it is never read"
            )

    def _overlaps(self) -> Iterator[QuiverFinding]:
        """Yield segments that claim the same seqs: a reader would see bundles twice.

        They come by their first seq. Each is compared with the one before it that reaches furthest:
        its neighbour may end early within a longer one that goes on.
        """
        segments = self.inventory.segments
        furthest = None
        for segment in segments:
            found = segment.summary
            if furthest is not None and found.first_seq <= furthest.summary.last_seq:
                yield QuiverFinding(
                    Severity.ERROR,
                    f"{names.SEGMENTS_DIR}/{segment.path.name}",
                    f"it has seqs that {furthest.path.name} has too",
                    "one of them was put there by hand; move it elsewhere",
                    ((found.first_seq, min(furthest.summary.last_seq, found.last_seq)),),
                )
            if furthest is None or found.last_seq > furthest.summary.last_seq:
                furthest = segment
        known = {segment.path.name for segment in segments} | set(self.inventory.unreadable)
        for entry in self._list(names.SEGMENTS_DIR):
            parsed = names.parse_segment_dir(entry.name)
            if parsed is not None and entry.name not in known and self.owner is None:
                yield QuiverFinding(
                    Severity.WARNING,
                    f"{names.SEGMENTS_DIR}/{entry.name}",
                    "another segment has the same seqs, and is read instead",
                    "the next start removes it, or sets it aside if it may hold more",
                    ((parsed.first_seq, parsed.last_seq),),
                )

    # ------------------------------------------------------------------ ledger

    def _ledger(self) -> Iterator[QuiverFinding]:
        ledger = self.inventory.ledger
        for path, reason in ledger.unreadable:
            yield QuiverFinding(
                Severity.ERROR,
                f"{names.LEDGER_DIR}/{path.name}",
                f"it cannot be read: {reason}",
                "the next start goes back to the newest checkpoint before it: readers may get "
                "again what they had acknowledged since",
            )
        for damage in ledger.damages:
            what = f"{damage.size_bytes} bytes at {damage.offset} do not match their checksum"
            yield QuiverFinding(
                Severity.ERROR,
                damage.source,
                what if damage.size_bytes else "it is missing or empty",
                "outcomes in it are forgotten: readers may get those bundles again",
            )
        folders = (names.LEDGER_DIR, names.TRASH_DIR)  # older quivers have neither
        had_one = any(self.disk.exists(self.root / name) for name in folders)
        if had_one and not ledger.files and self.inventory.accepted.bundles:
            yield QuiverFinding(
                Severity.ERROR,
                names.LEDGER_DIR,
                "there is no ledger that can be read, although bundles were accepted",
                "the next start knows no subscribers; restore the files if they were moved away",
            )
        if ledger.torn_bytes and self.owner is None:
            yield QuiverFinding(
                Severity.NOTE,
                names.LEDGER_DIR,
                f"{ledger.torn_bytes} bytes at the end were being written",
                "the next start drops them",
            )

    # --------------------------------------------------------------- the rest

    def _leftovers(self) -> Iterator[QuiverFinding]:
        for entry in self._list(names.WAL_DIR):
            if names.is_spare_wal_file(entry.name) and self.owner is None:
                where = f"{names.WAL_DIR}/{entry.name}"
                what = "an old WAL file that was kept to be written over"
                yield QuiverFinding(Severity.NOTE, where, what, "the next start removes it")
        for entry in self._list(names.TRASH_DIR):
            if self.owner is None:
                where = f"{names.TRASH_DIR}/{entry.name}"
                what = "a segment that was being removed"
                yield QuiverFinding(Severity.NOTE, where, what, "the next start removes it")

    def _quarantine(self) -> Iterator[QuiverFinding]:
        for damage in self.inventory.quarantined:
            what = f"set aside: {damage.reason}"
            if damage.bundles:
                what += f" ({damage.bundles} bundles, {damage.events} events)"
            where = f"{names.QUARANTINE_DIR}/ {damage.source}"
            act = f"{_SALVAGE}; remove it when you are done"
            yield QuiverFinding(Severity.WARNING, where, what, act, seqs_of(damage))
