"""BACKUP: the file that makes a directory a copy, to be restored and not to be opened.

A copy has the quiver_id and the numbers of its original. If it were opened and appended to, there
would be two bundles under one name. The file is there from the first moment of a backup or restore
to its last; what it holds says whether the copy is complete, and what every file must hash to.

One line of JSON and one line with its xxh3-64, as in FORMAT.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from holdfast.errors import CannotOpen, Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.points import ToolPoint
from holdfast.seam.disk import Disk, write_file

VERSION = 1
_TEMPORARY = names.BACKUP + ".tmp"


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
    write_file(disk, root / _TEMPORARY, [content], "backup.marker")
    disk.rename(root / _TEMPORARY, root / names.BACKUP, ToolPoint.MARKER_RENAME)
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
