"""`route`: sends each event out by the port of the first rule that holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from holdfast.processors.document import document_of
from holdfast.processors.match import Condition, Matcher
from holdfast.settings import Settings
from holdfast.signals.event import Event

RULES_MAX = 1000

Port = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class RouteRule(Condition):
    """A condition, and the port of the events for which it holds."""

    port: Port
    """A name of `out_ports`."""


class Config(Settings):
    """Where events go. The first rule that holds decides."""

    rules: tuple[RouteRule, ...] = Field(min_length=1, max_length=RULES_MAX)
    """Looked at in order."""
    default: Port | None = None
    """The port of everything else, also of what is no OpenLineage event. None: it goes nowhere,
    and counts as `filtered`."""


class EventRouter:
    """Chooses the way out of each event."""

    def __init__(self, config: Config) -> None:
        self._rules = [(Matcher(rule), rule.port) for rule in config.rules]
        self._default = config.default
        ports = [rule.port for rule in config.rules]
        # Every port that an event may leave by.
        self.ports = frozenset(ports if config.default is None else [*ports, config.default])

    def port(self, event: Event) -> str | None:
        """Return the port by which the event leaves, or None: nobody behind it gets it."""
        document = document_of(event)
        if document is not None:
            for matcher, port in self._rules:
                if matcher.holds(document):
                    return port
        # For what no rule holds of, and for what is no OpenLineage event: a router must decide
        # about every unit.
        return self._default


def make(config: Config) -> EventRouter:
    """Return a router."""
    return EventRouter(config)
