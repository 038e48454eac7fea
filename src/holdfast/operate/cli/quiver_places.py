"""Which quivers are meant: by a directory, a root of several, a gateway's data or its file."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import NamedTuple

from holdfast.dead_letters.stored import STORES
from holdfast.graph.loader import load
from holdfast.graph.paths import DEAD_LETTERS_DIR, dead_letters_directory, plan
from holdfast.quiver.base import names
from holdfast.quiver.cores import core_ids
from holdfast.seam import Seam
from holdfast.seam.disk import Disk


class NamedQuiver(NamedTuple):
    """The directory of a quiver; the name is for whoever has several."""

    name: str
    directory: PurePath


def quivers_at(seam: Seam, where: PurePath) -> list[NamedQuiver]:
    """Return the quivers of a graph file, of a data directory, under a root; none: look here."""
    disk = seam.disk
    if Path(where).is_file():
        graph = load(where).graph
        return [
            place
            for one in plan(graph)
            for place in _cores(disk, one.name, PurePath(one.directory))
        ]
    if not disk.exists(where) or disk.exists(where / names.FORMAT):
        return []
    folders = [where / entry.name for entry in disk.list(where) if entry.is_dir]
    return _cores(disk, where.name, where) or [
        place for folder in sorted(folders) for place in _cores(disk, folder.name, folder)
    ]


def dead_letters_at(seam: Seam, where: PurePath) -> list[NamedQuiver]:
    """Return the quivers of dead letters, of all workers, of a graph file or a data directory."""
    is_file = Path(where).is_file()
    letters = (
        dead_letters_directory(load(where).graph) if is_file else Path(where, DEAD_LETTERS_DIR)
    )
    offices = [letters, *sorted(letters.parent.glob(f"{letters.name}-[0-9][0-9]"))]
    places = [
        NamedQuiver(f"{office.name}/{store}", PurePath(office) / store)
        for office in offices
        for store in STORES
    ]
    return [place for place in places if seam.disk.exists(place.directory)]


def _cores(disk: Disk, name: str, root: PurePath) -> list[NamedQuiver]:
    found = core_ids(disk, root) if disk.exists(root) else []
    return [
        NamedQuiver(f"{name}/{names.core_dir(one)}", root / names.core_dir(one)) for one in found
    ]
