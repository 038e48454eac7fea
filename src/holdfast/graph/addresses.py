"""Whether two addresses mean one place: two listeners that clash, an exporter that calls us."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from holdfast.receive.listening import Address

_WILDCARDS = {"0.0.0.0", "::"}
_LOCAL = {"localhost", "127.0.0.1", "::1"} | _WILDCARDS
_DEFAULT_PORTS = {"http": 80, "https": 443}


def clash(one: Address, other: Address) -> bool:
    """Whether two listeners cannot have both; port 0 is a different one each time."""
    if one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or bool({one.host, other.host} & _WILDCARDS)


def reaches(target: Address, listening: Address) -> bool:
    """Whether a client on this machine that calls `target` arrives at `listening`."""
    if target.port != listening.port or target.port == 0:
        return False
    return target.host == listening.host or {target.host, listening.host} <= _LOCAL


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
