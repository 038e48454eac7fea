"""Events as processors meet them, and documents of all shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from hypothesis import strategies as st
from tests.signals.events import full_event

from holdfast.quiver import Position
from holdfast.signals.event import Event

# Texts that orjson can write: no lone surrogates.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS
# Keys that mean something to processors, and any others.
_KNOWN_KEYS = """
    namespace name facets job run inputs outputs dataset parent root columnLineage fields
    inputFields symlinks identifiers lineage value key producer eventType
"""
KEYS = st.sampled_from(_KNOWN_KEYS.split()) | TEXTS
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def made(module: Any, **fields: Any) -> Any:
    """Return a processor of a module, configured as in a file."""
    return module.make(module.Config.model_validate(fields))


def event_of(content: Any, slot: str = "openlineage") -> Event:
    """Return an event with this content: bytes as they are, anything else as JSON."""
    payload = content if isinstance(content, bytes) else orjson.dumps(content)
    return Event("quiver", Position(7, 1), slot, payload, {"tenant": "a"}, 5)


def spaced(document: Any) -> bytes:
    """Return JSON that no compact writer would write: whoever writes it again is found out."""
    return b" \n" + orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n "


def members(document: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield every container, key or index, and value of a document."""
    pairs = list(document.items()) if isinstance(document, dict) else list(enumerate(document))
    for step, value in pairs:
        yield document, step, value
        if isinstance(value, dict | list):
            yield from members(value)


def whole_event() -> dict[str, Any]:
    """Return an event with every standard facet."""
    return full_event()
