"""Small files that are there as a whole, or as they were before, even after a power cut.

Also whether a write failed because the disk is full, in this process or in one of Spark's.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import DiskFull, PipelineDiskFull

# Staged files of drivers that died are removed at this age.
STALE_AFTER_S = 24 * 3600.0
# What Java, Python, Arrow and RocksDB say; the error itself is left behind in another process.
NO_ROOM = ("No space left on device", "Disk quota exceeded", "[Errno 28]", "[Errno 122]")


def replace_durably(path: Path, text: str) -> None:
    """Replace a file, synced before and after it gets its name; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".fresh-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make what was named in a folder, or removed from it, durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_stale(folder: Path, suffix: str) -> None:
    """Remove what tasks staged in a folder and no driver ever published, because it died.

    Only after a day: a task of a batch that runs now may have written it hours ago.
    """
    oldest_s = time.time() - STALE_AFTER_S
    for path in folder.glob(f"*{suffix}") if folder.is_dir() else ():
        if path.stat().st_mtime < oldest_s:
            path.unlink(missing_ok=True)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error is for want of room, on whatever disk and in whatever process."""
    if isinstance(error, DiskFull | PipelineDiskFull):
        return True
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(text in found for found in texts_of(error) for text in NO_ROOM)


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Yield what an error says, and those behind it; Spark's keep theirs elsewhere."""
    while error is not None:
        yield str(error)
        error = getattr(error, "_cause", None) or error.__cause__
