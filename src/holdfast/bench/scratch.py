"""A folder for the data of one benchmark that is gone afterwards, however the benchmark ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import FrameType

PREFIX = "holdfast-bench-"


def default_directory() -> Path:
    """Return where large temporary files go: /var/tmp, because /tmp may live in memory."""
    large = Path("/var/tmp")
    return large if os.access(large, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def scratch(directory: PurePath | None) -> Iterator[Path]:
    """Yield a new folder, and remove it on return, on an error, on ^C and on SIGTERM."""
    parent = default_directory() if directory is None else Path(directory)
    parent.mkdir(parents=True, exist_ok=True)
    with _terminate_by_exception():
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _terminate_by_exception() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
