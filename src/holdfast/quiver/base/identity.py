"""FORMAT: which version wrote a data directory, and which quiver it is.

The file is one line of JSON and one line with its checksum. A damaged FORMAT does not lock anyone
out: the WAL files and manifests name the quiver too, and it is written again from them.
"""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from holdfast.errors import UnknownFormat
from holdfast.quiver.base import names
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.disk import Disk, read_pages, write_file

VERSION = 1


class QuiverIdentity(NamedTuple):
    """What FORMAT says."""

    quiver_id: str
    created_ns: int
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
    disk.rename(temporary, root / names.FORMAT, QuiverPoint.FORMAT_RENAME)
    disk.sync_dir(root, QuiverPoint.FORMAT_SYNC_DIR)


def unknown_format(path: PurePath, found: str) -> UnknownFormat:
    """Return the error for data that another version wrote."""
    return UnknownFormat(
        f"the data is of {found}, this program reads version {VERSION}",
        hint="open it with the program that wrote it, or let that drain it first",
        path=str(path),
    )
