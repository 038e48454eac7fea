"""An exporter of the tests: keeps what it is sent in memory, under its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from holdfast.deliver.exporter import (
    ALL_DELIVERED,
    Answer,
    ExporterContext,
    Failure,
    FailureClass,
    all_failed,
)
from holdfast.settings import Settings
from holdfast.signals.event import Event

# What was delivered, by destination; tests look here.
DELIVERED: defaultdict[str, list[bytes]] = defaultdict(list)
# Destinations that refuse everything for good.
REFUSING: set[str] = set()


class Config(Settings):
    """What the exporter may be told."""

    url: str = "http://backend.example:1234"
    """Where to, as it were."""
    directory: str | None = None
    """Where on disk, as it were."""
    mark: str = ""
    """Put before every payload."""


class MemoryExporter:
    """Takes everything, unless it refuses."""

    max_batch_events = 10
    max_batch_bytes = 1024 * 1024

    def __init__(self, name: str, mark: bytes) -> None:
        self._name = name
        self._mark = mark

    async def start(self) -> None:
        pass

    async def send(self, events: Sequence[Event]) -> Answer:
        if self._name in REFUSING:
            return all_failed(len(events), Failure(FailureClass.PERMANENT, "no", code="418"))
        DELIVERED[self._name] += [self._mark + event.payload for event in events]
        return ALL_DELIVERED

    async def close(self) -> None:
        pass


def make(config: Config, context: ExporterContext) -> MemoryExporter:
    return MemoryExporter(context.name, config.mark.encode())
