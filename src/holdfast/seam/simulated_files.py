"""What a simulated disk holds: files and folders, each as it is seen and as it is on the disk."""

from __future__ import annotations

import errno
import random
from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.seam.disk import DirEntry

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
# A directory needs another block for so many names.
NAMES_PER_BLOCK = 64


@dataclass(eq=False)
class SimulatedFile:
    """What readers see (`cached`), what the disk has (`durable`), and where the two may differ.

    Ranges are kept and not a flag: a power cut keeps some sectors of what was written since the
    last sync, and must never touch the others.
    """

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    cut: bool = False
    modified_ns: int = 0
    # Start and end of what cannot be read.
    unreadable: list[tuple[int, int]] = field(default_factory=list)

    def check_readable(self, start: int, end: int) -> None:
        end = min(end, len(self.cached))
        if any(first < end and start < last for first, last in self.unreadable):
            raise OSError(errno.EIO, "input/output error")

    def sync(self) -> None:
        for start, end in self.dirty:
            missing = end - len(self.durable)
            if missing > 0:
                self.durable.extend(bytes(missing))
            self.durable[start:end] = self.cached[start:end]
        self.dirty.clear()
        if self.cut:
            del self.durable[len(self.cached) :]
            self.cut = False

    def surviving(self, randomness: random.Random | None) -> bytearray:
        image = bytearray(self.durable)
        if randomness is None:
            return image
        for start, end in self.dirty:
            for sector in range(start - start % SECTOR_BYTES, end, SECTOR_BYTES):
                if randomness.random() < 0.5:  # noqa: PLR2004
                    low, high = max(start, sector), min(end, sector + SECTOR_BYTES)
                    image.extend(bytes(max(0, high - len(image))))
                    image[low:high] = self.cached[low:high]
        return image


@dataclass(eq=False)
class SimulatedDir:
    """The same for names. A file is one object in both: its bytes and its names are made durable
    independently, by `sync` and by `sync_dir`, and a synced file without a durable name is gone.
    """

    names: dict[str, SimulatedFile | SimulatedDir] = field(default_factory=dict)
    durable: dict[str, SimulatedFile | SimulatedDir] = field(default_factory=dict)
    # The most names it ever had: its blocks are not given back.
    names_max: int = 0


@dataclass
class NameChange:
    """One change of names that a power cut may undo; durable once `waits_for` is empty."""

    removed: tuple[SimulatedDir, str] | None
    added: tuple[SimulatedDir, str, SimulatedFile | SimulatedDir] | None
    waits_for: list[SimulatedDir]

    def put_down(self) -> None:
        if self.removed is not None:
            self.removed[0].durable.pop(self.removed[1], None)
        if self.added is not None:
            self.added[0].durable[self.added[1]] = self.added[2]


def files_below(node: SimulatedFile | SimulatedDir) -> set[SimulatedFile]:
    """Return all files below a node, each once, however many names it has."""
    if isinstance(node, SimulatedFile):
        return {node}
    return {file for child in node.names.values() for file in files_below(child)}


def dirs_below(node: SimulatedFile | SimulatedDir) -> list[SimulatedDir]:
    """Return a directory and all below it."""
    if isinstance(node, SimulatedFile):
        return []
    return [node, *(found for child in node.names.values() for found in dirs_below(child))]


def blocks_bytes(files: Collection[SimulatedFile], dirs: Collection[SimulatedDir]) -> int:
    """Return the bytes of the blocks that files and directories take, with their inodes."""
    blocks = len(files) + len(dirs)
    blocks += sum(-(-len(file.cached) // BLOCK_BYTES) for file in files)
    blocks += sum(-(-directory.names_max // NAMES_PER_BLOCK) for directory in dirs)
    return blocks * BLOCK_BYTES


def entry_of(name: str, node: SimulatedFile | SimulatedDir) -> DirEntry:
    if isinstance(node, SimulatedDir):
        return DirEntry(name, True, 0)
    return DirEntry(name, False, len(node.cached), node.modified_ns)


def surviving_names(
    directory: SimulatedDir,
    randomness: random.Random | None,
    files: dict[SimulatedFile, SimulatedFile],
) -> SimulatedDir:
    survivor = SimulatedDir()
    for name, child in directory.durable.items():
        if isinstance(child, SimulatedDir):
            survivor.names[name] = surviving_names(child, randomness, files)
            continue
        if child not in files:  # it may have two names
            image = child.surviving(randomness)
            files[child] = SimulatedFile(
                image,
                bytearray(image),
                modified_ns=child.modified_ns,
                unreadable=list(child.unreadable),
            )
        survivor.names[name] = files[child]
    survivor.durable = dict(survivor.names)
    survivor.names_max = directory.names_max
    return survivor
