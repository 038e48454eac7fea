"""What systemd wants to hear: ready, stopping, reloading, still alive, and a line for `status`.

The protocol is a datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names. Without
that variable nothing is sent, and nothing here ever fails or blocks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

# systemctl shows one line of it.
STATUS_CHARACTERS_MAX = 200


class Notifier:
    """Speaks to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        path = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with "@" is one in the abstract namespace.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._watchdog_s = _watchdog_s(environment)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    @property
    def watchdog_s(self) -> float | None:
        """How often to say `alive`: half of what systemd waits; None if it does not."""
        return self._watchdog_s

    def ready(self, status: str) -> None:
        """Say that the service works."""
        self._tell("READY=1", _status(status))

    def reloading(self) -> None:
        """Say that a reload began; `ready` ends it."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Say that the service goes down."""
        self._tell("STOPPING=1", _status(status))

    def alive(self, status: str) -> None:
        """Say that the service is not stuck, and how it is."""
        self._tell("WATCHDOG=1", _status(status))

    def _tell(self, *lines: str) -> None:
        """Send a datagram; nothing waits for it or fails: the service works without it."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError, ValueError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection,
        ):
            connection.setblocking(False)
            connection.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={text[:STATUS_CHARACTERS_MAX]}".replace("\n", " ")


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return half of the interval that systemd expects, if it expects it of this process."""
    wanted, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID")
    if not wanted.isdecimal() or process not in (None, str(os.getpid())):
        return None
    return int(wanted) / 2e6 or None
