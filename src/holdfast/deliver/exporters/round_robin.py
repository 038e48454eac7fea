"""Exporters that take turns: one destination, each send to the next of them.

A send that fails is tried again by the delivery loop, and so goes to the next one: while one is
down, the others get everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.deliver.exporter import Answer, Exporter
from holdfast.signals.event import Unit


class RoundRobin:
    """Several exporters as one."""

    def __init__(self, exporters: Sequence[Exporter]) -> None:
        self._exporters = exporters
        self._next = 0
        self.max_batch_events = min(one.max_batch_events for one in exporters)
        self.max_batch_bytes = min(one.max_batch_bytes for one in exporters)

    async def start(self) -> None:
        """Start all of them."""
        for exporter in self._exporters:
            await exporter.start()

    async def send(self, events: Sequence[Unit]) -> Answer:
        """Send with the one whose turn it is."""
        exporter = self._exporters[self._next]
        self._next = (self._next + 1) % len(self._exporters)
        return await exporter.send(events)

    async def close(self) -> None:
        """Close all of them, whatever happens to one."""
        failures = []
        for exporter in self._exporters:
            try:
                await exporter.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
