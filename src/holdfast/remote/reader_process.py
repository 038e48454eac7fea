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
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TextIO

from holdfast.remote.reader import Gate, ReaderService, ServedQuivers, require_free
from holdfast.seam.disk import RealDisk, entries_of
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
        _directories(orders),
        (orders.host, orders.port),
        Gate(orders.secrets.credentials, orders.max_calls, key),
        orders.secrets,
        orders.message_bytes,
    )


def _directories(orders: ServedQuivers) -> Mapping[str, PurePath]:
    if orders.replicas:
        return _Replicas(RealDisk(), PurePath(orders.replicas))
    return {name: PurePath(path) for name, path in orders.directories.items()}


class _Replicas(Mapping[str, PurePath]):
    """The replicas that a data node has at this moment: new ones come while this process runs."""

    def __init__(self, disk: RealDisk, folder: PurePath) -> None:
        self._disk = disk
        self._folder = folder

    def __getitem__(self, name: str) -> PurePath:
        # By looking: a name from afar must not lead anywhere else.
        if name not in set(self):
            raise KeyError(name)
        return self._folder / name

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in entries_of(self._disk, self._folder) if entry.is_dir)

    def __len__(self) -> int:
        return sum(1 for _ in self)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    threading.current_thread().name = "holdfast-reader"
    main(sys.stdin, sys.stdout)
