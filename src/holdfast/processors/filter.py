"""`filter`: lets an event through to a destination, or not."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from holdfast.processors.document import document_of
from holdfast.processors.match import Condition, Matcher
from holdfast.settings import Settings
from holdfast.signals.event import Event

CONDITIONS_MAX = 1000


class Config(Settings):
    """Which events a destination gets. What it does not get is counted as `filtered`."""

    keep: tuple[Condition, ...] = Field(default=(), max_length=CONDITIONS_MAX)
    """An event goes on if one of these holds. Empty: all do."""
    drop: tuple[Condition, ...] = Field(default=(), max_length=CONDITIONS_MAX)
    """An event goes no further if one of these holds, whatever `keep` says."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.keep and not self.drop:
            raise ValueError("give keep, drop, or both")
        return self


class EventFilter:
    """Lets events through by conditions."""

    def __init__(self, config: Config) -> None:
        self._keep = [Matcher(condition) for condition in config.keep]
        self._drop = [Matcher(condition) for condition in config.drop]

    def process(self, event: Event) -> Event | None:
        """Return the event, or None: this destination does not get it."""
        document = document_of(event)
        # Conditions speak of OpenLineage; whatever else is in the quiver is let through. To keep
        # signals apart there is `delivery.signals`, which needs no look at the payload.
        if document is None:
            return event
        wanted = not self._keep or any(matcher.holds(document) for matcher in self._keep)
        unwanted = any(matcher.holds(document) for matcher in self._drop)
        return event if wanted and not unwanted else None


def make(config: Config) -> EventFilter:
    """Return a filter."""
    return EventFilter(config)
