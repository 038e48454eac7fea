"""Who watches Holdfast's own work, if anybody does: spans of requests and of sends.

As with a log, those who do the work do not know who listens. A gateway with `telemetry:` in its
file installs a watch (operate/telemetry.py); without one, a call here is a look at a None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class OwnSpan(NamedTuple):
    """A piece of our own work that is over."""

    name: str
    # Somebody asked us for it; else we asked somebody.
    is_served: bool
    began_ns: int
    attributes: Mapping[str, str | int]
    # Empty: it went well. Never a payload or a secret.
    failure: str


class SelfWatch(Protocol):
    """What is told about our own work."""

    def begin(self) -> int:
        """Return the time if the work that begins is to be told, else 0."""

    def end(self, span: OwnSpan) -> None:
        """Take a span that is over."""

    def look(self, body: bytes) -> None:
        """See what was received: it may be what this gateway told of itself."""


installed: SelfWatch | None = None


def begin() -> int:
    """Return the time at which a piece of work begins; 0: nobody wants to know of it."""
    return 0 if installed is None else installed.begin()


def end(span: OwnSpan) -> None:
    """Tell of work that `begin` gave a time for."""
    if installed is not None and span.began_ns:
        installed.end(span)
