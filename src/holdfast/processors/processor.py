"""What a processor is: a function from an event to an event, or to nothing."""

from __future__ import annotations

from typing import Any, Protocol


class Processor(Protocol):
    """Stateless and quick: it runs on the event loop, once per unit and destination.

    It is given what its module's `takes(config)` names: events of raw slots if there is no such
    function.
    """

    def process(self, event: Any) -> Any | None:
        """Return the event, changed or not, or None: this destination does not get it."""


class Router(Protocol):
    """A processor with several ways out, named by their ports."""

    def port(self, event: Any) -> str | None:
        """Return the port by which the event leaves, or None: nobody behind it gets it."""
