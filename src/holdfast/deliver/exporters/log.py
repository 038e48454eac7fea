"""The exporter `log`: one line in Holdfast's own log per event, without its payload.

Made for rejected events: it says why each one was not accepted, and where it is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.exporter import ALL_DELIVERED, Answer, ExporterContext
from holdfast.settings import Settings
from holdfast.signals.event import ArrowData, Unit
from holdfast.signals.signal import EVERYTHING, Takes

BATCH_EVENTS_MAX = 100
BATCH_BYTES_MAX = 16 * 1024 * 1024
# Of the problems of one letter.
PROBLEMS_MAX = 3

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}

log = logging.getLogger("holdfast.events")


class Config(Settings):
    """Where the lines go."""

    level: Literal["debug", "info", "warning"] = "warning"
    """The severity of the lines."""


def takes(config: Config) -> Takes:
    """Return what it can be given: it looks at no payload."""
    return EVERYTHING


def make(config: Config, context: ExporterContext) -> LogExporter:
    """Return the exporter."""
    return LogExporter(context.name, LEVELS[config.level])


class LogExporter:
    """Tells of events, and never fails."""

    max_batch_events = BATCH_EVENTS_MAX
    max_batch_bytes = BATCH_BYTES_MAX

    def __init__(self, name: str, level: int) -> None:
        self._name = name
        self._level = level

    async def start(self) -> None:
        """Nothing to get ready."""

    async def send(self, events: Sequence[Unit]) -> Answer:
        """Write one line for each event."""
        for event in events:
            log.log(self._level, "%s", _line(event), extra={"destination": self._name})
        return ALL_DELIVERED

    async def close(self) -> None:
        """Nothing to close."""


def _line(event: Unit) -> str:
    seq, row = event.position
    where = f"{event.quiver_id}/{seq}/{row}, {event.size_bytes} bytes"
    if event.damaged_slots:
        return f"event {where}, without {', '.join(event.damaged_slots)}: damaged"
    if isinstance(event, ArrowData) or "letter" not in event.headers:
        return f"event {where}"
    letter = Letter.from_event(event)
    problems = "; ".join(
        f"{problem.get('pointer', '')} {problem.get('message', '')}".strip()
        for problem in letter.problems[:PROBLEMS_MAX]
    )
    return f"event {where}, was not accepted by {letter.origin}: {letter.reason}; {problems}"
