"""Sessions of processes: a driver leads one, and everything that it started is found by it."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

# A process that waits for its disk is gone a little after it was killed.
END_PATIENCE_S = 60.0
_POLL_S = 0.01

log = logging.getLogger("holdfast.prove")


def end_session(session: int) -> None:
    """Kill every process of a session, the own one last."""
    mine, give_up_s = os.getpid(), time.monotonic() + END_PATIENCE_S
    while others := [pid for pid in processes() if pid != mine and session_of(pid) == session]:
        if time.monotonic() > give_up_s:
            log.error("processes %s were killed %g s ago, and are there", others, END_PATIENCE_S)
            break
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_S)
    if session_of(mine) == session:
        os.kill(mine, signal.SIGKILL)


def processes() -> list[int]:
    """Return all processes that run; one that was killed and is not reaped does not."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _runs(name)]


def session_of(pid: int) -> int | None:
    """Return the session of a process, None if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def sessions_with(name: str, value: str) -> set[int]:
    """Return the sessions of the processes that have a variable in their environment."""
    found = map(session_of, _processes_with(name, value))
    return {session for session in found if session is not None}


def commands_with(name: str, value: str) -> dict[int, list[str]]:
    """Return the command lines of the processes that have a variable in their environment."""
    return {
        pid: [os.fsdecode(part) for part in _proc_fields(pid, "cmdline")]
        for pid in _processes_with(name, value)
    }


def _processes_with(name: str, value: str) -> list[int]:
    wanted = f"{name}={value}".encode()
    return [pid for pid in processes() if wanted in _proc_fields(pid, "environ")]


def _proc_fields(pid: int, what: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except OSError:
        return []


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
