"""The units of delivery: what of a bundle is sent, judged and counted as one.

An `Event` is one payload of a raw slot, byte for byte as it came. `ArrowData` is a whole bundle of
record batches, because its slots refer to each other. Both name their signal (`signal.py`), the
position at which they begin, and how many rows of the bundle they stand for: the ledger counts
rows.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha1
from typing import Any, ClassVar, Protocol, TypeAlias

import orjson
import pyarrow as pa

from holdfast.quiver import Bundle, Position

NO_HEADERS: Mapping[str, str] = {}
# Goes along with what is left of a bundle, whatever form it is sent in: the slots that it lacks.
DAMAGED_HEADER = "holdfast-damaged-slots"
# A larger unit is led through processors in a thread where others would wait for it.
INLINE_BYTES = 256 * 1024
# The signal of a raw slot that no registered signal claims.
RAW_SIGNAL = "raw"
# Counts the items of a payload, or of some slots (spans, data points, log records); 0 if it cannot
# be read.
ItemCounter: TypeAlias = Callable[[Any], int]
# Our own header beside an event: who sent it to us. It is nobody's business further on.
_OWN_HEADER = "client"
# The value of a header: no control characters, and no blanks at its ends.
_VALUE = re.compile(r"([^\x00-\x20\x7f]([^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")
_NAMESPACE = uuid.UUID("5b7e5f0c-6a3c-5d0a-9a55-0f1d3a4f7c11").bytes


class DocumentReader(Protocol):
    """Makes a JSON document of a payload that is not JSON."""

    def __call__(self, payload: bytes, items_max: int | None = None) -> Any:
        """Return the document; of a payload with more items, the first, if that is asked for."""


@dataclass(slots=True)
class Event:
    """An event of a raw slot. Not shared between destinations: its parsed form is cached."""

    quiver_id: str
    position: Position
    slot: str
    payload: bytes
    headers: Mapping[str, str]
    ingestion_ns: int
    signal: str = RAW_SIGNAL
    # What makes a document of a payload that is not JSON itself.
    read: DocumentReader | None = field(default=None, repr=False, compare=False)
    # What counts its items, if it stands for several.
    count: ItemCounter | None = field(default=None, repr=False, compare=False)
    # How many rows of its bundle it stands for.
    rows: ClassVar[int] = 1
    # It is whole, or it is not read at all.
    damaged_slots: ClassVar[tuple[str, ...]] = ()
    _document: Any = field(default=None, repr=False, compare=False)
    _items: int | None = field(default=None, repr=False, compare=False)

    @property
    def items(self) -> int | None:
        """How many items it holds; None where an event is not made of items."""
        if self._items is None and self.count is not None:
            self._items = self.count(self.payload)
        return self._items

    @property
    def document(self) -> Any:
        """The payload as parsed JSON. Do not change it: make a new event with `with_document`."""
        if self._document is None:
            self._document = (self.read or orjson.loads)(self.payload)
        return self._document

    @property
    def json_text(self) -> bytes:
        """The event as JSON: what its producer wrote, or what it means if that was not JSON."""
        return self.payload if self.read is None else orjson.dumps(self.document)

    @property
    def is_json(self) -> bool:
        """Whether the payload can be parsed, and so can stand between others in one document."""
        try:
            _ = self.document
        except orjson.JSONDecodeError:
            return False
        return True

    def with_document(self, document: Any) -> Event:
        """Return the event with another content; its position stays."""
        return replace(self, payload=orjson.dumps(document), _document=document)

    def with_payload(self, payload: bytes) -> Event:
        """Return the event with other bytes; its position stays."""
        return replace(self, payload=payload, _document=None, _items=None)

    @property
    def size_bytes(self) -> int:
        """What it brings to a send."""
        return len(self.payload)

    @property
    def idempotency_key(self) -> str:
        """The same UUID each time this event is sent, also after a restart."""
        return _idempotency_key(self.quiver_id, self.position)


@dataclass(frozen=True, slots=True)
class ArrowData:
    """A bundle of record batches, whole; or what is left of one, which then says what it lacks."""

    quiver_id: str
    position: Position
    slots: Mapping[str, pa.RecordBatch]
    ingestion_ns: int
    signal: str
    headers: Mapping[str, str] = field(default_factory=dict)
    # Slots of the bundle that cannot be read, and how many rows it had in them.
    damaged_slots: tuple[str, ...] = ()
    damaged_rows: int = 0
    # What counts its items, if it is made of some; else its rows are what is counted.
    count: ItemCounter | None = field(default=None, repr=False, compare=False)

    @property
    def items(self) -> int | None:
        """How many items it holds; None where it is not made of items."""
        return None if self.count is None else self.count(self.slots)

    @property
    def rows(self) -> int:
        """How many rows of the bundle it stands for: those of all slots, damaged ones too."""
        sound: int = sum(batch.num_rows for batch in self.slots.values())
        return sound + self.damaged_rows

    @property
    def size_bytes(self) -> int:
        """What it brings to a send."""
        return sum(batch.nbytes for batch in self.slots.values())

    @property
    def idempotency_key(self) -> str:
        """The same UUID each time this bundle is sent, also after a restart."""
        return _idempotency_key(self.quiver_id, self.position)


Unit: TypeAlias = Event | ArrowData


def events_of(
    bundle: Bundle,
    quiver_id: str,
    signal: str = RAW_SIGNAL,
    first_row: int = 0,
    read: DocumentReader | None = None,
    count: ItemCounter | None = None,
) -> list[Event]:
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
            signal=signal,
            read=read,
            count=count,
        )
        for row, (payload, headers) in enumerate(rows)
        if row >= first_row
    ]


def arrow_data_of(
    bundle: Bundle,
    quiver_id: str,
    signal: str,
    first_row: int = 0,
    count: ItemCounter | None = None,
) -> list[ArrowData]:
    """Return a bundle of record batches as one unit.

    All of it, also if `first_row` says that a part was recorded: it is taken whole or not at all.
    """
    slots, damaged_slots = bundle.sound_slots, bundle.damaged_slots
    return [
        ArrowData(
            quiver_id,
            Position(bundle.seq),
            slots,
            bundle.ingestion_ns,
            signal,
            {DAMAGED_HEADER: ", ".join(damaged_slots)} if damaged_slots else NO_HEADERS,
            damaged_slots=damaged_slots,
            damaged_rows=bundle.events - sum(batch.num_rows for batch in slots.values()),
            count=count,
        )
    ]


def headers_sent_on(unit: Unit) -> dict[str, str]:
    """Return the headers that were kept of a unit, to be sent on with it."""
    return {name: value for name, value in unit.headers.items() if name != _OWN_HEADER}


def unsendable_header(headers: Mapping[str, str]) -> str | None:
    """Return the name of a header whose value HTTP cannot carry; None if there is none.

    OTAP brings headers inside of its batches, where any bytes can be written.
    """
    return next((name for name, value in headers.items() if not _VALUE.fullmatch(value)), None)


def _idempotency_key(quiver_id: str, position: Position) -> str:
    """Return the UUID of version 5 of a place; `uuid.uuid5` takes twice as long for an object."""
    seq, row = position
    name = f"{quiver_id}/{seq}/{row}".encode()
    digest = bytearray(sha1(_NAMESPACE + name, usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x50  # the version
    digest[8] = digest[8] & 0x3F | 0x80  # the variant
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
