"""What a directory is: FORMAT names the quiver and the version, BACKUP makes it a copy.

Each file is one line of JSON and one line with its xxh3-64. A damaged FORMAT does not lock anyone
out: the WAL files and manifests name the quiver too, and it is written again from them.

A copy has the quiver_id and the numbers of its original. If it were opened and appended to, there
would be two bundles under one name. So BACKUP is there from the first moment of a backup or restore
to its last; what it holds says whether the copy is complete, and what every file must hash to.

Files hold numbers as little-endian machines have them, and are read by no other.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from holdfast.errors import CannotOpen, Damaged, UnknownFormat
from holdfast.quiver.base import names
from holdfast.quiver.base.points import QuiverPoint, ToolPoint
from holdfast.seam.disk import Disk, read_pages, write_file

VERSION = 1


class QuiverIdentity(NamedTuple):
    """What FORMAT says."""

    quiver_id: str
    created_ns: int
    # A new id is taken when the last number given out is no longer known: otherwise the same pair
    # of id and number could name two bundles.
    # Ids this store had before its sequence floor was lost; its older segments still carry them.
    former_ids: tuple[str, ...] = ()


class FormatFault(Exception):
    """FORMAT is not what was written."""


def read_identity(disk: Disk, root: PurePath) -> QuiverIdentity | None:
    """Return the identity, None if there is none yet; raise `FormatFault` if it is damaged."""
    path = root / names.FORMAT
    if not disk.exists(path):
        return None
    line, _, checksum = bytes(read_pages(disk, path).view).rstrip(b"\n").rpartition(b"\n")
    if not line or xxh3_64_hexdigest(line).encode() != checksum:
        raise FormatFault("FORMAT does not match its checksum")
    fields = json.loads(line)
    if fields["version"] != VERSION:
        raise unknown_format(path, f"version {fields['version']}")
    return QuiverIdentity(fields["quiver_id"], fields["created_ns"], tuple(fields["former_ids"]))


def identity_or_none(disk: Disk, root: PurePath) -> QuiverIdentity | None:
    """Return what FORMAT says; None if it is missing or damaged."""
    try:
        return read_identity(disk, root)
    except FormatFault:
        return None


def write_identity(disk: Disk, root: PurePath, identity: QuiverIdentity) -> None:
    """Write FORMAT durably: all of it, or none."""
    fields = {"version": VERSION, **identity._asdict()}
    line = json.dumps(fields, separators=(",", ":")).encode()
    temporary = root / names.FORMAT_TEMPORARY
    if disk.exists(temporary):
        disk.unlink(temporary, QuiverPoint.RECOVER_SWEEP)
    content = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
    write_file(disk, temporary, [content], "format")
    # Written and synced under another name first: a crash leaves the old FORMAT or the new one,
    # never half. The directory's sync comes last, because without it the rename itself may be
    # forgotten.
    disk.rename(temporary, root / names.FORMAT, QuiverPoint.FORMAT_RENAME)
    disk.sync_dir(root, QuiverPoint.FORMAT_SYNC_DIR)


def unknown_format(path: PurePath, found: str) -> UnknownFormat:
    """Return the error for data that another version wrote."""
    return UnknownFormat(
        f"the data is of {found}, this program reads version {VERSION}",
        hint="open it with the program that wrote it, or let that drain it first",
        path=str(path),
    )


MARKER_VERSION = 1
_MARKER_TEMPORARY = names.BACKUP + ".tmp"


class CopiedFile(NamedTuple):
    """One file of a copy, by its path below the copy's root."""

    path: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class BackupMarker:
    """What BACKUP says."""

    version: int
    # False while the copy is being made.
    complete: bool
    quiver_id: str
    time_ns: int
    bundles: int = 0
    events: int = 0
    files: tuple[CopiedFile, ...] = ()


def write_marker(disk: Disk, root: PurePath, marker: BackupMarker) -> None:
    """Write BACKUP durably: all of it, or none."""
    line = json.dumps(asdict(marker), separators=(",", ":")).encode()
    content = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
    write_file(disk, root / _MARKER_TEMPORARY, [content], "backup.marker")
    disk.rename(root / _MARKER_TEMPORARY, root / names.BACKUP, ToolPoint.MARKER_RENAME)
    disk.sync_dir(root, ToolPoint.MARKER_SYNC_DIR)


def read_marker(disk: Disk, root: PurePath) -> BackupMarker:
    """Return what BACKUP says."""
    path = root / names.BACKUP
    if not disk.exists(path):
        raise CannotOpen(
            "there is no backup here", hint="name a directory that `holdfast quiver backup` made",
            path=str(root),
        )  # fmt: skip
    line, _, checksum = disk.read(path).rstrip(b"\n").rpartition(b"\n")
    if not line or xxh3_64_hexdigest(line).encode() != checksum:
        raise Damaged(
            "BACKUP does not match its checksum",
            hint="take another backup; `holdfast quiver salvage` reads what is sound of this one",
            path=str(path),
        )
    fields = json.loads(line)
    fields["files"] = tuple(CopiedFile(*file) for file in fields["files"])
    return BackupMarker(**fields)


def refuse_backup(disk: Disk, root: PurePath) -> None:
    """Raise if a directory is a copy that must not be opened."""
    if disk.exists(root / names.BACKUP):
        raise CannotOpen(
            "this directory is a backup, or a restore that was interrupted",
            hint="`holdfast quiver restore` makes a quiver of a backup; remove a restore that was "
            "interrupted, and begin again",
            path=str(root),
        )


BYTE_ORDER = "little"


def machine_order() -> str:
    """Return this machine's byte order: "little" or "big"."""
    return sys.byteorder


def check_machine(root: PurePath) -> None:
    """Raise `CannotOpen` on a machine that would write and read other numbers."""
    if machine_order() != BYTE_ORDER:
        raise CannotOpen(
            f"this machine is {machine_order()}-endian",
            hint="data directories are for little-endian machines, as almost all are",
            path=str(root),
        )
