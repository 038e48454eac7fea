"""Whether a port is free. gRPC would not tell: it shares a port with whoever else listens there.

Two servers on one port would each get some of the calls: plans here, commits there.
"""

from __future__ import annotations

import socket

from holdfast.errors import BadConfig


def require_free(host: str, port: int) -> None:
    """Raise unless nobody listens on a port, and this machine has the address."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As a server would: connections of before that are still fading do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadConfig(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            hint="stop the other process, or choose another port or an address of this machine",
        ) from error
