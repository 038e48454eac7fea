"""The folders of a data node, and the two small files that it writes itself.

    DIR/NODE                              node_id and format
    DIR/LOCK                              held by the process that serves DIR
    DIR/replicas/<quiver_id>/segments/…   adopted parts, as their sender had them
    DIR/replicas/<quiver_id>/seen         what it had and removed, and what is not its own
    DIR/replicas/<quiver_id>/staging/     parts that come in, or go; swept at every start
    DIR/replicas/<quiver_id>/quarantine/  damaged parts, until a sound copy of each came

Both files hold one line of JSON and its checksum, twice (as a manifest does), and are replaced as a
whole. docs/format/replica.md describes them.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import PurePath
from typing import Any

from holdfast.errors import DirectoryLocked, UnknownFormat
from holdfast.node.points import NodePoint
from holdfast.quiver.segments.manifest import in_copies, sound_lines
from holdfast.seam.disk import Disk, Handle, LockHeld, read_pages, write_file

FORMAT_VERSION = 1
NODE = "NODE"
NODE_TEMPORARY = "NODE.tmp"
LOCK = "LOCK"
REPLICAS_DIR = "replicas"
SEGMENTS_DIR = "segments"
STAGING_DIR = "staging"
QUARANTINE_DIR = "quarantine"
SEEN = "seen"
SEEN_TEMPORARY = "seen.tmp"


def make_folders(disk: Disk, root: PurePath) -> None:
    """Make a node's directory, durably.

    A folder that is there may still go with the power, if the process that made it died before it
    synced its name. So all names are synced until there is a NODE, which is written after them.
    """
    begun = disk.exists(root / NODE)
    for folder in (*reversed(root.parents), root, root / REPLICAS_DIR):
        if folder.name and not disk.exists(folder):
            make_folder(disk, folder)
        elif folder.name and not begun:
            with contextlib.suppress(PermissionError):  # then somebody else made it
                disk.sync_dir(folder.parent, NodePoint.ROOT_SYNC_DIR)


def make_folder(disk: Disk, folder: PurePath) -> None:
    """Make one folder, durably; one that is there is synced, too."""
    if not disk.exists(folder):
        disk.make_dir(folder, NodePoint.ROOT_MAKE_DIR)
    disk.sync_dir(folder.parent, NodePoint.ROOT_SYNC_DIR)


def take_lock(disk: Disk, root: PurePath) -> Handle:
    """Own a node's directory, as long as this process lives."""
    try:
        return disk.lock(root / LOCK, f"process {os.getpid()}")
    except LockHeld as held:
        raise DirectoryLocked(
            f"the directory is served by {held.owner or 'another process'}",
            hint="a data node is one process; stop the other one, or use another directory",
            path=str(root),
        ) from None


def read_record(disk: Disk, path: PurePath) -> dict[str, Any] | None:
    """Return what a file of ours says; None if it is missing, or no copy in it is sound."""
    try:
        data = bytes(read_pages(disk, path).view)
    except FileNotFoundError:
        return None
    for line in sound_lines(data):
        fields = json.loads(line)
        if fields.get("version") != FORMAT_VERSION:
            raise UnknownFormat(
                f"the file is of version {fields.get('version')}, this program reads "
                f"{FORMAT_VERSION}",
                hint="serve it with the program that wrote it",
                path=str(path),
            )
        return dict(fields)
    return None


def write_record(
    disk: Disk, path: PurePath, temporary: PurePath, fields: dict[str, Any], at: str
) -> None:
    """Replace a file durably: all of it, or none.

    The steps are named `at` + ".create", ".write", ".sync", ".rename" and ".sync_dir".
    """
    line = json.dumps({"version": FORMAT_VERSION, **fields}, separators=(",", ":")).encode()
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary, NodePoint.RECOVER_SWEEP)  # of a write that failed
    write_file(disk, temporary, [in_copies(line)], at)
    disk.rename(temporary, path, f"{at}.rename")
    for folder in {path.parent, temporary.parent}:
        disk.sync_dir(folder, f"{at}.sync_dir")
