"""One stored event on its way out: its bytes, its position, and its meaning when asked for."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from holdfast.quiver import Bundle, Position

NO_HEADERS: Mapping[str, str] = {}
_NAMESPACE = uuid.UUID("5b7e5f0c-6a3c-5d0a-9a55-0f1d3a4f7c11")


@dataclass(slots=True)
class Event:
    """An event of a raw slot. Not shared between destinations: its parsed form is cached."""

    quiver_id: str
    position: Position
    slot: str
    payload: bytes
    headers: Mapping[str, str]
    ingestion_ns: int
    _document: Any = field(default=None, repr=False, compare=False)

    @property
    def document(self) -> Any:
        """The payload as parsed JSON. Do not change it: make a new event with `with_document`."""
        if self._document is None:
            self._document = orjson.loads(self.payload)
        return self._document

    def with_document(self, document: Any) -> Event:
        """Return the event with another content; its position stays."""
        return replace(self, payload=orjson.dumps(document), _document=document)

    @property
    def idempotency_key(self) -> str:
        """The same UUID each time this event is sent, also after a restart."""
        seq, row = self.position
        return str(uuid.uuid5(_NAMESPACE, f"{self.quiver_id}/{seq}/{row}"))


def events_of(bundle: Bundle, quiver_id: str, first_row: int = 0) -> list[Event]:
    """Return the events of a bundle of raw payloads, from `first_row` on."""
    ((slot, batch),) = bundle.slots.items()
    rows = zip(
        batch.column("payload").to_pylist(), batch.column("headers").to_pylist(), strict=True
    )
    return [
        Event(
            quiver_id=quiver_id,
            position=Position(bundle.seq, row),
            slot=slot,
            payload=payload,
            headers=orjson.loads(headers) if headers else NO_HEADERS,
            ingestion_ns=bundle.ingestion_ns,
        )
        for row, (payload, headers) in enumerate(rows)
        if row >= first_row
    ]
