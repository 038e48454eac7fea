"""Ports that a test gives to a process before it listens, or while it is down."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that the kernel gives to connections: of two test processes, one makes thousands of
# them while a backend of the other is down, and would now and then take its port. Each process has
# a thousand of its own, and takes one after another. Those of one run are told apart by the number
# that xdist gives them: of two process numbers, one pair in twenty has the same remainder.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
_FIRST = 10_000 + (_RUN + _WORKER) % 20 * 1_000
_PORTS = itertools.cycle(range(_FIRST, _FIRST + 1_000))


def free_port() -> int:
    """Return a port of the loopback that nobody uses now, and that nobody is given."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
