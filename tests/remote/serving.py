"""Quivers that are served on loopback, with the reading process or without one of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from tests.patience import PATIENCE_S

from holdfast.errors import OwnerGone
from holdfast.quiver import (
    ColumnExtractor,
    Position,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
)
from holdfast.quiver.base.config import MB
from holdfast.remote import ClientSettings, FlightSettings, QuiverServer, RemoteQuiver
from holdfast.remote.reader import ReaderService, ServedQuivers
from holdfast.remote.reader_process import serve

NEVER_S = 3600.0

_Result = TypeVar("_Result")


def config(**retention: Any) -> QuiverConfig:
    """Return a configuration under which data is sealed when a reader waits, or on request."""
    return QuiverConfig(
        segment=SegmentConfig(
            target_size_bytes=MB, max_open_duration_s=NEVER_S, min_open_duration_s=0.0
        ),
        retention=RetentionConfig(tick_s=0.02, **retention),
        extractors={"events": ColumnExtractor("at")},
    )


def patient(config: QuiverConfig) -> QuiverConfig:
    """Return a configuration under which nothing is sealed but on request."""
    return replace(config, segment=replace(config.segment, min_open_duration_s=NEVER_S))


class ReaderInside:
    """Serves sealed data from the tests' own process: quick to start."""

    pid = None
    starts = 0

    def __init__(self, orders: ServedQuivers) -> None:
        self._orders = orders
        self._service: ReaderService | None = None

    def start(self) -> None:
        self._service = serve(self._orders)

    def port(self, patience_s: float = PATIENCE_S) -> int:
        assert self._service is not None
        return int(self._service.port)

    def stop(self) -> None:
        assert self._service is not None
        self._service.shutdown()


@dataclass
class Served:
    """A quiver, its server, and clients that are hung up in the end."""

    quiver: Quiver
    server: QuiverServer
    closing: contextlib.ExitStack
    settings: dict[str, Any] = field(default_factory=dict)

    def connect(self, **changes: Any) -> RemoteQuiver:
        """Return another client."""
        settings = ClientSettings(**{"timeout": PATIENCE_S, **self.settings, **changes})
        return self.closing.enter_context(RemoteQuiver.open(self.server.location, "main", settings))


@contextlib.contextmanager
def serving(
    directory: Path,
    quiver_config: QuiverConfig | None = None,
    *,
    own_process: bool = False,
    client: dict[str, Any] | None = None,
    **flight: Any,
) -> Iterator[Served]:
    """Open a quiver and serve it."""
    settings = FlightSettings(**{"listen": "127.0.0.1:0", **flight})
    with contextlib.ExitStack() as closing:
        quiver = closing.enter_context(Quiver.open(directory, quiver_config or config()))
        server = QuiverServer({"main": quiver}, settings)
        if not own_process:
            server.reader = ReaderInside(server.reader._orders)  # type: ignore[assignment]
        closing.enter_context(server)
        yield Served(quiver, server, closing, client or {})


def again(work: Callable[[], _Result]) -> _Result:
    """Do something until the server is there, as a client that reconnects would."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except OwnerGone:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def numbers(*values: int) -> pa.RecordBatch:
    """Return a batch with one column of whole numbers."""
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run something beside the test; its result, or what it raised, is put into the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


END = Position(2**62)
