"""Progress of long work, and its pace."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.operate.cli.consoles import stderr


class ThrottledProgress:
    """Told of every piece of work in bytes: shows how far it is, and slows it down if asked to."""

    def __init__(self, what: str, total_bytes: int, *, max_mb_s: float | None, quiet: bool) -> None:
        self._max_bytes_s = None if max_mb_s is None else max_mb_s * 1e6
        self._done_bytes = 0
        self._started_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=stderr,
            transient=True,
            disable=quiet or not stderr.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total_bytes)

    def __call__(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress.advance(self._task, size_bytes)
        if self._max_bytes_s is not None:
            due_s = self._started_s + self._done_bytes / self._max_bytes_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()
