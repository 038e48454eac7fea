"""Sessions of processes, and the traps that end them.

A driver leads a session, and everything that it started is found by it. A trap is a file with the
name of a moment; whoever reaches that moment first renames the file and dies, so a trap strikes
once. For a driver the moment is one of `dataflow/base/points.py`, reached in any of its processes,
and all of them die. For the gateway it is a step of its disk (gateway_victim.py).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from holdfast.dataflow.base.points import BatchPoint

# A process that waits for its disk is gone a little after it was killed.
END_PATIENCE_S = 60.0
_POLL_S = 0.01

log = logging.getLogger("holdfast.prove")


def end_session(session: int) -> None:
    """Kill every process of a session; if it is the caller's own, the caller last."""
    mine, give_up_s = os.getpid(), time.monotonic() + END_PATIENCE_S
    while others := [pid for pid in processes() if pid != mine and session_of(pid) == session]:
        if time.monotonic() > give_up_s:
            log.error("processes %s still run %g s after they were killed", others, END_PATIENCE_S)
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


# The folder in which traps lie.
TRAPS = "HOLDFAST_PROVE_TRAPS"
DRIVER, GATEWAY = "driver", "gateway"


def set_trap(folder: Path, victim: str, point: str) -> None:
    """Let the next one who comes to a point die."""
    fresh = folder / f"{victim}.new"
    fresh.write_text(point)
    os.replace(fresh, folder / victim)


def take_trap(folder: Path, victim: str) -> str | None:
    """Return where a trap lies, and take it away; None if there is none (any more)."""
    try:
        point = (folder / victim).read_text()
        os.rename(folder / victim, folder / f"{victim}.sprung")
    except FileNotFoundError:
        return None
    return point


def reached(point: BatchPoint, checkpoint: str) -> None:
    """Kill the whole driver if the trap lies here."""
    folder = Path(os.environ[TRAPS])
    try:
        is_here = (folder / DRIVER).read_text() == point
    except FileNotFoundError:
        return
    if is_here and take_trap(folder, DRIVER) == point:
        end_session(os.getsid(0))
