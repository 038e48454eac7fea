"""The ports of a gateway's Flight server: each worker has its own, one behind the other."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.graph.document import TreePath
from holdfast.graph.model import Graph
from holdfast.receive.listening import Address
from holdfast.remote.settings import FlightSettings, split_address


def of_worker(settings: FlightSettings, worker: int) -> FlightSettings:
    """Return the settings of one of several workers."""
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
