"""A stopwatch for wall time and for the CPU time of the whole process, all threads included."""

from __future__ import annotations

import time
from typing import Self


class Stopwatch:
    """Measures the block it guards."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def __enter__(self) -> Self:
        self._cpu_began_s = time.process_time()
        self._wall_began_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall_began_s
        self.cpu_s = time.process_time() - self._cpu_began_s
