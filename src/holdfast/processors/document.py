"""What processors share: an event as a JSON object, places in it by path, and a changed copy.

Processors look at OpenLineage events. Whatever else passes (another slot, bytes that are no JSON
object) is none of their business and passes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from holdfast.signals.event import Event
from holdfast.signals.openlineage.names import SLOT

# In a path: every member of an object, every item of an array.
ANY = "*"

Path = tuple[str, ...]


def document_of(event: Event) -> dict[str, Any] | None:
    """Return an OpenLineage event as it was parsed, not to be changed; None if it is none."""
    if event.slot != SLOT:
        return None
    try:
        document = event.document
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def changed(event: Event, change: Callable[[dict[str, Any]], None]) -> Event | None:
    """Return the event with a copy of its document changed; None if it cannot be written again.

    That is so for what is nested deeper than JSON writers go, which receivers do not accept.
    """
    # Parsed once more instead of copied: `event.document` is shared by all chains of an event, and
    # a deep copy of a parsed document costs more than parsing it again.
    document = orjson.loads(event.payload)
    change(document)
    try:
        return event.with_document(document)
    except TypeError:
        return None


def values_at(document: object, path: Path) -> Iterator[object]:
    """Yield what stands at a path, wherever it leads.

    Level by level and not recursively: a path is as long as the configuration says, while how
    deeply an event is nested is its producer's choice.
    """
    found = [document]
    for step in path:
        found = [value for container in found for _, value in _members(container, step)]
    yield from found


def places_at(document: object, path: Path) -> Iterator[tuple[Any, str | int]]:
    """Yield the containers that a path leads into, each with the key or index it ends at."""
    for container in values_at(document, path[:-1]):
        for step, _ in _members(container, path[-1]):
            yield container, step


def _members(container: object, step: str) -> list[tuple[str | int, object]]:
    """Return what one step of a path leads to, each with its key or index."""
    if isinstance(container, dict):
        if step == ANY:
            return list(container.items())
        return [(step, container[step])] if step in container else []
    if isinstance(container, list):
        if step == ANY:
            return list(enumerate(container))
        index = int(step) if step.isdecimal() else len(container)
        return [(index, container[index])] if index < len(container) else []
    return []
