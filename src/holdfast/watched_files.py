"""Files that are replaced while they are in use: certificates, keys."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class WatchedFiles:
    """Tells when files are no longer what they were."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self._seen = self._look()

    def have_changed(self) -> bool:
        """Whether one of them is another than at the last look.

        Each change is told once, also of files that cannot be read: they are tried again when they
        change.
        """
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self.paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """The inode, too: certificates are usually replaced by a rename, which may keep size and even
    time.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
