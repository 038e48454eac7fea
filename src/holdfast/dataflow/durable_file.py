"""Small files that are there as a whole, or as they were before, also after a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_durably(path: Path, text: str) -> None:
    """Write a file anew, synced before and after it gets its name; its folder is made."""
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
