"""Addresses as people write them, `host:port`, and whether two of them mean one place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

_WILDCARDS = {"", "0.0.0.0", "::", "*"}
_LOCAL = {"localhost", "127.0.0.1", "::1"} | _WILDCARDS
_DEFAULT_PORTS = {"http": 80, "https": 443}
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]/\s]*)):(?P<port>\d{1,5})")


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def clashes_with(self, other: Address) -> bool:
        """Whether two listeners cannot have both; port 0 is a different one each time."""
        if self.port != other.port or self.port == 0:
            return False
        return self.host == other.host or bool({self.host, other.host} & _WILDCARDS)

    def reaches(self, listening: Address) -> bool:
        """Whether a client of this address arrives at that listener on the same machine."""
        if self.port != listening.port or self.port == 0:
            return False
        return self.host == listening.host or {self.host, listening.host} <= _LOCAL


def parse_address(text: str) -> Address | None:
    """Return the address in `host:port`, `:port` or `[::1]:port`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:  # noqa: PLR2004
        return None
    return Address((found["six"] or found["host"] or "").lower(), int(found["port"]))


def addresses_in(value: object) -> Iterator[Address]:
    """Yield the addresses of every URL in a tree of settings."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from addresses_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from addresses_in(inner)
    elif isinstance(value, str) and "://" in value:
        try:
            parts = urlsplit(value)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            return
        if parts.hostname is not None and port is not None:
            yield Address(parts.hostname, port)
