"""Ending a session of processes: a driver, its Java process, and the workers that one started.

The driver leads a session of its own, and none of them leaves it (Spark's Python workers have a
process group of their own, but not a session). So this finds all of them, also those whose parent
is gone.
"""

from __future__ import annotations

import os
import signal


def end_session(session: int) -> int:
    """Kill every process of a session but the own one; return how many there were."""
    mine, killed = os.getpid(), 0
    for pid in _processes():
        if pid != mine and _session_of(pid) == session:
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except (ProcessLookupError, PermissionError):
                continue
    return killed


def end_own_session() -> None:
    """Kill everything that this process started, if it leads a session."""
    if os.getsid(0) == os.getpid():
        end_session(os.getpid())


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []  # not Linux: the Java process ends with its standard input


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
