"""What a processor is: a function from an event to an event, or to nothing."""

from __future__ import annotations

from typing import Protocol

from holdfast.signals.event import Event


class Processor(Protocol):
    """Stateless and quick: it runs on the event loop, once per event and destination."""

    def process(self, event: Event) -> Event | None:
        """Return the event as it goes on, or None: this destination does not get it."""


class Router(Protocol):
    """A processor with several ways out, named by their ports."""

    def port(self, event: Event) -> str | None:
        """Return the port by which the event leaves, or None: nobody behind it gets it."""
