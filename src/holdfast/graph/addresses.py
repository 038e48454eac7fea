"""The addresses of a gateway: where Flight listens, what clashes, and which exporter calls us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from holdfast.graph.document import TreePath
from holdfast.graph.model import Graph
from holdfast.receive.listening import Address
from holdfast.remote.settings import FlightSettings, split_address

_WILDCARDS = {"0.0.0.0", "::"}
_LOCAL = {"localhost", "127.0.0.1", "::1"} | _WILDCARDS
_DEFAULT_PORTS = {"http": 80, "https": 443}


def listeners_of(config: object) -> Mapping[str, str]:
    """Return where a receiver listens, by the setting that says so.

    One that listens in several places has a property `listening`, others a setting `listen`, or
    `listening_addr` as in OpenTelemetry.
    """
    listening: Mapping[str, str] | None = getattr(config, "listening", None)
    if listening is not None:
        return listening
    keys = ("listen", "listening_addr")
    return {key: value for key in keys if (value := getattr(config, key, None)) is not None}


def clash(one: Address, other: Address) -> bool:
    """Whether two listeners cannot have both; port 0 is a different one each time.

    By text alone: a name and the address it resolves to are taken for two hosts. What is missed
    here is an error at the start, from the operating system.
    """
    if one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or bool({one.host, other.host} & _WILDCARDS)


def reaches(target: Address, listening: Address) -> bool:
    """Whether a client on this machine that calls `target` arrives at `listening`."""
    if target.port != listening.port or target.port == 0:
        return False
    return target.host == listening.host or {target.host, listening.host} <= _LOCAL


def addresses_in(value: object) -> Iterator[Address]:
    """Yield the addresses of every URL in a tree of settings.

    Looks at every text of an exporter's settings, since no key says that it is the address:
    third-party exporters call theirs what they like.
    """
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


def of_worker(settings: FlightSettings, worker: int) -> FlightSettings:
    """Return the settings of one of several workers.

    Flight cannot share a port among processes as receivers do (a client must reach the worker that
    owns a given quiver), so each worker takes the next one. Port 0 stays 0: the system chooses.
    """
    if worker == 0:
        return settings
    host, _, port = settings.listen.rpartition(":")
    ports = {
        "listen": f"{host}:{_later(int(port), worker)}",
        "reader_port": _later(settings.reader_port, worker),
    }
    return settings.model_copy(update=ports)


def _later(port: int, worker: int) -> int:
    return port + worker if port else 0


def flight_addresses(graph: Graph) -> Iterator[tuple[TreePath, str, Address]]:
    """Yield where Flight will listen: the setting, its text for that worker, and the address."""
    flight = graph.settings.flight
    if flight is None:
        return
    for worker in range(graph.settings.workers):
        settings = of_worker(flight, worker)
        host, port = split_address(settings.listen)
        yield ("flight", "listen"), settings.listen, Address(host, port)
        if settings.reader_port:
            at: TreePath = ("flight", "reader_port")
            yield at, f"{host}:{settings.reader_port}", Address(host, settings.reader_port)
