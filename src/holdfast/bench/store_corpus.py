"""A real corpus: a sample of the files of the Python environment that runs this, and a later state.

The sample is drawn by the hash of each path, so that it has the environment's own mix of large and
small, text and binary, and is the same in each run on the same environment.
"""

from __future__ import annotations

import os
import random
import shutil
import sysconfig
from pathlib import Path

from blake3 import blake3

_SEED = 7


class Corpus:
    """A folder of files that can be changed and changed back, and how much it holds.

    It is changed in place: programs skip files by size, time and inode, and in a changed copy all
    inodes are others.
    """

    def __init__(self, folder: Path, corpus_bytes: int, changed_every: int) -> None:
        self.folder = folder / "corpus"
        self._kept = folder / "kept"
        self.files, self.size_bytes = _sample(self.folder, corpus_bytes)
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        chosen = random.Random(_SEED)
        sample = chosen.sample(paths, max(3, 3 * len(paths) // changed_every))
        self._edited, self._doubled, self._removed = (sample[kind::3] for kind in range(3))

    def change(self) -> None:
        """Edit some files in the middle, add some, remove some."""
        self._kept.mkdir()
        for number, path in enumerate((*self._edited, *self._removed)):
            shutil.copy2(path, self._kept / str(number))
        for path in self._edited:
            data = path.read_bytes()
            middle = len(data) // 2
            path.write_bytes(data[:middle] + b"changed " + data[middle:])
        for path in self._doubled:
            _double(path).write_bytes(path.read_bytes()[::-1])
        for path in self._removed:
            path.unlink()

    def change_back(self) -> None:
        """Make everything as it was."""
        for number, path in enumerate((*self._edited, *self._removed)):
            shutil.copy2(self._kept / str(number), path)
        for path in self._doubled:
            _double(path).unlink(missing_ok=True)
        shutil.rmtree(self._kept)


def _double(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _sample(folder: Path, corpus_bytes: int) -> tuple[int, int]:
    """Copy a sample of the environment; return how many files and bytes it has."""
    source = Path(sysconfig.get_paths()["purelib"])
    found = sorted(_files(source))
    total_bytes = sum(size_bytes for _, size_bytes in found)
    share = corpus_bytes / max(1, total_bytes)
    taken = [
        (path, size_bytes)
        for path, size_bytes in found
        if int.from_bytes(blake3(path.encode()).digest(8), "big") / 2**64 < share
    ]
    for path, _ in taken:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, target)
    return len(taken), sum(size_bytes for _, size_bytes in taken)


def _files(root: Path) -> list[tuple[str, int]]:
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                found.append((str(path.relative_to(root)), path.stat().st_size))
    return found
