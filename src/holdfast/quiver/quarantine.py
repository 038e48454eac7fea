"""Quarantine: damaged bytes are set aside with a note of what they were, never deleted silently."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath

from holdfast.quiver import names
from holdfast.quiver.points import Point
from holdfast.seam.disk import Disk, write_file


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
        self._note(target, damage)
        self._disk.rename(path, target, Point.QUARANTINE_MOVE)
        self._disk.sync_dir(self._folder, Point.QUARANTINE_SYNC_DIR)
        self._disk.sync_dir(path.parent, Point.QUARANTINE_SYNC_DIR)

    def copy(self, content: memoryview, damage: Damage) -> None:
        """Copy a damaged part of a file; once, however often it is found."""
        target = self._folder / f"{damage.source}@{damage.offset}"
        if self._disk.exists(target):
            return
        self._ready()
        if self._disk.exists(_note_of(target)):
            self._disk.unlink(_note_of(target), Point.RECOVER_SWEEP)
        self._note(target, damage)
        write_file(self._disk, target, [content], "quarantine")
        self._disk.sync_dir(self._folder, Point.QUARANTINE_SYNC_DIR)

    def used_bytes(self) -> int:
        """Return how much the folder holds."""
        return self._disk.used_bytes(self._folder) if self._disk.exists(self._folder) else 0

    def damages(self) -> Sequence[Damage]:
        """Return the notes of everything set aside."""
        if not self._disk.exists(self._folder):
            return []
        notes = [e.name for e in self._disk.list(self._folder) if e.name.endswith(".json")]
        return [Damage(**json.loads(self._disk.read(self._folder / name))) for name in notes]

    def _ready(self) -> None:
        if not self._disk.exists(self._folder):
            self._disk.make_dir(self._folder, Point.QUARANTINE_MAKE_DIR)
            self._disk.sync_dir(self._root, Point.QUARANTINE_SYNC_DIR)

    def _free_name(self, name: str) -> PurePath:
        self._ready()
        taken = {entry.name for entry in self._disk.list(self._folder)}
        number = 1
        while {f"{name}.{number}", f"{name}.{number}.json"} & taken:
            number += 1
        return self._folder / f"{name}.{number}"

    def _note(self, target: PurePath, damage: Damage) -> None:
        content = json.dumps(asdict(damage)).encode()
        write_file(self._disk, _note_of(target), [content], "quarantine")


def _note_of(target: PurePath) -> PurePath:
    return target.with_name(target.name + ".json")
