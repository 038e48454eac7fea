"""A statsd server that reads all that comes: a buffer that is full loses what comes last."""

from __future__ import annotations

import socket
import threading

BUFFER_BYTES = 4 * 1024 * 1024


class Statsd:
    """A statsd server: adds up counters, remembers gauges, whatever their labels."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # A few seconds in which this process does nothing fill the buffer that there is by default,
        # and what a counter grew by is told once.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        while datagram := self._socket.recv(65536):
            for line in datagram.decode().splitlines():
                name, _, rest = line.partition(":")
                value, kind = rest.split("|")[:2]
                before = self.figures.get(name, 0.0) if kind == "c" else 0.0
                self.figures[name] = before + float(value)

    def close(self) -> None:
        host, _, port = self.address.partition(":")
        self._socket.sendto(b"", (host, int(port)))
        self._thread.join()
        self._socket.close()
