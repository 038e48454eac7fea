"""Who holds something: a process, told apart from all that had its number before, or will have it.

What is said here is for leases in a database that several machines may share. A process is called
dead only where that is certain: seen from the same boot of the same machine and the same process
namespace, its number is free, or belongs to one that started at another time. Where there is no
`/proc`, nothing is certain, and a lease ends by not being renewed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from typing import NamedTuple

# Of `/proc/<pid>/stat`, counted behind the name: when the process started, in ticks since boot.
_STARTED_FIELD = 19
# How far two readings of "now, less the time since boot" may lie apart without `/proc`.
_BOOT_TOLERANCE_S = 60.0


class Holder(NamedTuple):
    """A process of a machine; `boot` and `started` are empty where they cannot be known."""

    host: str
    pid: int
    boot: str
    started: str


def this_process() -> Holder:
    """Return who we are."""
    pid = os.getpid()
    return Holder(socket.gethostname(), pid, _boot(), _started(pid))


def is_dead(holder: Holder, *, one_machine: bool = False) -> bool:
    """Whether a process has certainly ended.

    With `one_machine`, all holders with our host's name run here: then those of another boot ended
    with it.
    """
    here = this_process()
    if not holder.boot or not here.boot or not holder.started:
        return False
    if holder.boot != here.boot:
        return one_machine and holder.host == here.host and _is_other_boot(holder, here)
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is somebody else's, and there
    started = _started(holder.pid)
    return bool(started) and started != holder.started


def monotonic_name() -> str:
    """Name the machine's monotonic clock: two readings can be compared if they bear one name."""
    boot = _boot()
    if boot:
        return boot
    since_s = time.time() - time.monotonic()
    return f"{socket.gethostname()} {round(since_s / _BOOT_TOLERANCE_S)}"


def _is_other_boot(holder: Holder, here: Holder) -> bool:
    """Whether the machine was started anew, and not only another namespace entered."""
    return holder.boot.partition(" ")[0] != here.boot.partition(" ")[0]


@functools.cache
def _boot() -> str:
    """Name this boot and the namespaces in which numbers and times of processes are valid."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        names = [os.readlink("/proc/self/ns/pid")]
    except OSError:
        return ""
    with contextlib.suppress(OSError):  # older kernels have no time namespaces
        names.append(os.readlink("/proc/self/ns/time"))
    return " ".join([boot, *names])


def _started(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[_STARTED_FIELD]
    except (OSError, IndexError):
        return ""
