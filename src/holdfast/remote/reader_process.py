"""The process that serves sealed data: started by the owner, with its orders on stdin.

The first line of stdin is its orders, as JSON; secrets go this way and no other. It answers with
one line, its port. After that nothing is said, but stdin stays open as long as the owner lives:
when it ends, however it ends, this process does too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import PurePath
from typing import TextIO

from holdfast.remote.reader import Gate, ReaderService, ServedQuivers, require_free
from holdfast.seam.disk import RealDisk
from holdfast.seam.randomness import system_randomness


def main(orders_in: TextIO, port_out: TextIO) -> None:
    """Serve until the owner ends."""
    # Ctrl-C at a terminal goes to both; it is the owner who says when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = ServedQuivers.decode(orders_in.readline())
    service = serve(orders)
    port_out.write(f"{service.port}\n")
    port_out.flush()
    orders_in.read()
    # Not `shutdown`: it would wait for readers, and nobody is left to end them.
    os._exit(0)


def serve(orders: ServedQuivers) -> ReaderService:
    """Listen, and answer in threads of its own."""
    require_free(orders.host, orders.port)
    key = system_randomness().randbytes(32)
    return ReaderService(
        RealDisk(),
        {name: PurePath(path) for name, path in orders.directories.items()},
        (orders.host, orders.port),
        Gate(orders.secrets.credentials, orders.max_calls, key),
        orders.secrets,
        orders.message_bytes,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    threading.current_thread().name = "holdfast-reader"
    main(sys.stdin, sys.stdout)
