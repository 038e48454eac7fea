"""Quarantine: damaged bytes are set aside with a note of what they were, never deleted silently."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import PurePath

from holdfast.quiver.base import names
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.disk import Disk, read_pages, write_file

_NOTE = ".json"
# The reason of a damage whose note is damaged.
NO_NOTE = "the note cannot be read"


@dataclass(frozen=True)
class Damage:
    """What was found damaged, and which bundles it cost."""

    source: str
    reason: str
    offset: int
    size_bytes: int
    # Inclusive; None when not known. Numbers in the range that were never given out cost nothing.
    first_seq: int | None
    last_seq: int | None
    bundles: int | None = None
    events: int | None = None


class Quarantine:
    """The folder for what must not be read and must not be lost."""

    def __init__(self, disk: Disk, root: PurePath) -> None:
        self._disk = disk
        self._root = root
        self._folder = root / names.QUARANTINE_DIR

    def move(self, path: PurePath, damage: Damage) -> None:
        """Move a whole file or directory into quarantine."""
        target = self._free_name(path.name)
        # The note first. A note without its file says that something was meant to be set aside and
        # is still where it was; a file without a note would be bytes of which nobody knows the
        # origin.
        self._note(target, damage)
        self._disk.rename(path, target, QuiverPoint.QUARANTINE_MOVE)
        self._disk.sync_dir(self._folder, QuiverPoint.QUARANTINE_SYNC_DIR)
        # Target before source: a power cut between the two may leave the name twice, never
        # nowhere.
        self._disk.sync_dir(path.parent, QuiverPoint.QUARANTINE_SYNC_DIR)

    def copy(self, content: memoryview, damage: Damage) -> None:
        """Copy a damaged part of a file; once, however often it is found.

        A name alone proves nothing: a crash may have cut the copy short, and where the WAL was
        emptied its files are numbered from 1 again.
        """
        name = f"{damage.source}@{damage.offset}"
        known = next((path for path in self._numbered(name) if self._holds(path, content)), None)
        if known is not None:
            self._disk.sync_path(known, QuiverPoint.QUARANTINE_SYNC)
        else:
            target = self._free_name(name)
            self._note(target, damage)
            write_file(self._disk, target, [content], "quarantine")
        self._disk.sync_dir(self._folder, QuiverPoint.QUARANTINE_SYNC_DIR)

    def used_bytes(self) -> int:
        """Return how much the folder holds."""
        return self._disk.used_bytes(self._folder) if self._disk.exists(self._folder) else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set aside."""
        return not self._names()

    def damages(self) -> Sequence[Damage]:
        """Return the notes of everything set aside."""
        return [self._read_note(name) for name in self._names() if name.endswith(_NOTE)]

    def _read_note(self, name: str) -> Damage:
        try:
            values = json.loads(bytes(read_pages(self._disk, self._folder / name).view))
            return Damage(**{field.name: values.get(field.name) for field in fields(Damage)})
        except (ValueError, AttributeError):
            # Its own writing was interrupted, or the disk lost it; what it describes may be there.
            return Damage(name.removesuffix(_NOTE), NO_NOTE, 0, 0, None, None)

    def _names(self) -> list[str]:
        if not self._disk.exists(self._folder):
            return []
        return [entry.name for entry in self._disk.list(self._folder)]

    def _numbered(self, name: str) -> list[PurePath]:
        """Return what is here under `name` and a number."""
        wanted = re.compile(re.escape(name) + r"\.\d+")
        return [self._folder / found for found in self._names() if wanted.fullmatch(found)]

    def _holds(self, path: PurePath, content: memoryview) -> bool:
        """Whether a copy is this one, and can be read, as well as its note."""
        found, note = read_pages(self._disk, path), _note_of(path)
        if self._disk.exists(note) and read_pages(self._disk, note).unreadable:
            return False
        return found.view == content and not found.unreadable

    def _ready(self) -> None:
        if not self._disk.exists(self._folder):
            self._disk.make_dir(self._folder, QuiverPoint.QUARANTINE_MAKE_DIR)
            self._disk.sync_dir(self._root, QuiverPoint.QUARANTINE_SYNC_DIR)

    def _free_name(self, name: str) -> PurePath:
        self._ready()
        taken = set(self._names())
        number = 1
        while {f"{name}.{number}", f"{name}.{number}{_NOTE}"} & taken:
            number += 1
        return self._folder / f"{name}.{number}"

    def _note(self, target: PurePath, damage: Damage) -> None:
        content = json.dumps(asdict(damage)).encode()
        write_file(self._disk, _note_of(target), [content], "quarantine")


def _note_of(target: PurePath) -> PurePath:
    return target.with_name(target.name + _NOTE)
