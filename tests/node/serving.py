"""Data nodes that are served on loopback, and the way to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tests.patience import PATIENCE_S
from tests.remote.serving import ReaderInside

from holdfast.node.data_node import DataNode
from holdfast.node.service import NodeServer
from holdfast.node.settings import DataNodeSettings
from holdfast.remote import ClientSettings, FlightSettings
from holdfast.remote.server import secrets_of
from holdfast.replica.flight import FlightTransport


@contextlib.contextmanager
def served(folder: Path, **given: Any) -> Iterator[tuple[DataNode, str]]:
    """Serve a data node on loopback, rows from this process."""
    given = {"listen": "127.0.0.1:0", **given}
    node = DataNode(folder / "node", DataNodeSettings(min_free=0, flight=FlightSettings(**given)))
    server = NodeServer(node, secrets_of(node.settings.flight, folder))
    server.reader = cast("Any", ReaderInside(server.reader._orders))
    try:
        with server:
            yield node, server.location
    finally:
        node.close()


@contextlib.contextmanager
def connected(location: str, **given: Any) -> Iterator[FlightTransport]:
    settings = ClientSettings(**{"timeout": PATIENCE_S, **given})
    transport = FlightTransport(location, settings, put_patience_s=PATIENCE_S)
    try:
        yield transport
    finally:
        transport.close()
