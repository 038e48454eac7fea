"""Bundles as bytes: how record batches and raw events become one frame payload, and back.

Arrow payload: each slot's Arrow IPC stream, one after the other, then a table of
(name, offset, length, rows) and the table's length in the last four bytes. The table stands at the
end because the lengths are known only when the streams are written, and one buffer is written once.

Raw payload: `slot name`, the events' lengths, their headers' lengths, then all event bytes, then
all header bytes (each a JSON object or nothing). Event bytes are kept exactly as they came.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from holdfast.errors import BadInput, BundleTooLarge
from holdfast.quiver.base.arrow import check_readable, has_dictionary, has_extension, unify
from holdfast.quiver.base.frame import FrameKind
from holdfast.quiver.base.names import SLOT_PATTERN

SLOTS_MAX = 64
# Rows take memory when they are sealed (at least their envelope), however few bytes their columns
# need: a column of nulls, or one long run, has as many rows as its producer likes.
ROWS_MAX = 4 * 1024 * 1024
# What the columns of the envelope add to every row.
ENVELOPE_BYTES = 29
DEFAULT_SLOT = "events"
# Columns that a segment adds beside the user's own, and the one that a scan may add to these.
RESERVED_COLUMNS = frozenset(
    {"_seq", "_row", "_ingestion_time", "_event_time", "_event_time_flag", "_damaged_slots"}
)
# How the keys begin that a segment adds to the user's own schema metadata.
RESERVED_METADATA = b"holdfast."
# What a salvage notes with every slot that is left of a bundle: the names of the damaged ones, as a
# JSON list.
DAMAGED_SLOTS_KEY = RESERVED_METADATA + b"damaged_slots"

_TABLE_ENTRY = struct.Struct("<HQQQ")
_TABLE_LENGTH = struct.Struct("<I")
_RAW_HEAD = struct.Struct("<IH")
# What stands behind the slot of a raw bundle with one event: its length, and that of its headers.
EVENT_LENGTHS = struct.Struct("<II")
# Smaller parts are put together before they are copied.
_COPIED_ALONE_BYTES = 8 * 1024
# So many parts are copied one by one, whatever their size: to put them together would cost more.
_FEW_PARTS = 8
# More than this is copied without the interpreter's lock.
_COPIED_AT_ONCE_BYTES = 256 * 1024
# Behind the mark with which a stream begins: the length of its schema's metadata.
_SCHEMA_LENGTH = struct.Struct("<4xi")
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

# Schemas (as messages) that were checked before and have no dictionaries: a check takes as long as
# all the rest of an append. What has dictionaries is checked each time: its message does not tell
# a dictionary of dictionaries.
PLAIN_SCHEMAS_MAX = 256
_plain_schemas: set[bytes] = set()
# By slot: its last schema, if that is plain, and its message. To see that the same comes again is
# mostly one comparison of pointers; to write its message takes half as long as to write the rows.
# Bounded as the schemas are.
_last_schemas: dict[str, tuple[pa.Schema, bytes]] = {}

Headers = Mapping[str, str]
Payloads = bytes | Sequence[bytes]
# Copying more than this takes milliseconds.
LARGE_BYTES = 1024 * 1024
# One record batch or table, or one for each slot.
BundleData: TypeAlias = "pa.RecordBatch | pa.Table | Mapping[str, pa.RecordBatch | pa.Table]"


class Encoded(NamedTuple):
    """One bundle ready to be framed."""

    kind: FrameKind
    payload: bytes | pa.Buffer
    events: int

    @property
    def size_bytes(self) -> int:
        """What the bundle takes in memory until it is sealed."""
        return len(self.payload) + self.events * ENVELOPE_BYTES


class RawEvents(NamedTuple):
    """The events of a raw bundle, one after the other: bytes as received, and small headers."""

    lengths: array[int]
    payloads: memoryview
    # 0: the event has none.
    header_lengths: array[int]
    headers: memoryview


class ArrowSlot(NamedTuple):
    """One slot of an Arrow bundle, still as its IPC stream."""

    name: str
    stream: memoryview
    rows: int


def check_slot(name: object) -> str:
    """Return the name of a slot if it can be part of a file name."""
    if not isinstance(name, str) or not SLOT_PATTERN.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a slot name",
            hint="use 1 to 64 letters, digits, '_', '-' or '.', not beginning with '-' or '.'",
        )
    return name


def encode_arrow(
    data: BundleData, max_bytes: int, damaged_slots: Sequence[str] = (), *, trusted: bool = False
) -> Encoded:
    """Return the payload of a bundle of record batches, one per slot.

    With `damaged_slots` it is what is left of a bundle, and says so wherever it is read. What is
    `trusted` is not looked through value by value.
    """
    slots = data if isinstance(data, Mapping) else {DEFAULT_SLOT: data}
    if not 1 <= len(slots) <= SLOTS_MAX:
        raise BadInput(
            f"a bundle has 1 to {SLOTS_MAX} slots, not {len(slots)}",
            hint="give at least one record batch, or split the bundle",
        )
    parts: list[pa.Buffer | bytes] = []
    table = bytearray()
    position = events = 0
    for name, rows in slots.items():
        batch = _as_batch(rows)
        stream = _stream(check_slot(name), batch, damaged_slots, trusted)
        size_bytes = sum(map(len, stream))
        encoded_name = name.encode()
        table += _TABLE_ENTRY.pack(len(encoded_name), position, size_bytes, batch.num_rows)
        table += encoded_name
        parts += stream
        position += size_bytes
        events += batch.num_rows
    if events == 0:
        raise BadInput("the bundle has no rows", hint="append only batches that hold events")
    parts.append(bytes(table) + _TABLE_LENGTH.pack(len(table)))
    return _checked(Encoded(FrameKind.ARROW, joined(parts), events), max_bytes)


def joined(parts: Sequence[pa.Buffer | memoryview | bytes]) -> pa.Buffer:
    """Return the parts as one buffer, in memory that Arrow takes again when it is free.

    That memory matters more than the copy: Python's own comes fresh from the system, and its pages
    cost ten times what it takes to fill them.

    Other threads run while Arrow copies. For a few microseconds that is not worth giving up the
    interpreter's lock, which it may take milliseconds to get again.
    """
    size_bytes = sum(map(len, parts))
    whole = pa.allocate_buffer(size_bytes)
    if size_bytes >= _COPIED_AT_ONCE_BYTES:
        writer = pa.FixedSizeBufferWriter(whole)
        for piece in _pieces(parts):
            writer.write(piece)
        return whole
    view, position = memoryview(whole).cast("B"), 0
    for piece in parts if len(parts) <= _FEW_PARTS else _pieces(parts):
        end = position + len(piece)
        view[position:end] = piece if type(piece) is bytes else memoryview(piece).cast("B")
        position = end
    return whole


def _pieces(
    parts: Sequence[pa.Buffer | memoryview | bytes],
) -> Iterator[pa.Buffer | memoryview | bytes]:
    """Yield large parts alone, and small ones together: a thousand copies cost more than one."""
    small: list[pa.Buffer | memoryview | bytes] = []
    small_bytes = 0
    for part in parts:
        if len(part) >= _COPIED_ALONE_BYTES:
            if small:
                yield b"".join(small)
                small, small_bytes = [], 0
            yield part
            continue
        small.append(part)
        small_bytes += len(part)
        if small_bytes >= _COPIED_AT_ONCE_BYTES:
            yield b"".join(small)
            small, small_bytes = [], 0
    if small:
        yield b"".join(small)


def _as_batch(rows: object) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, pa.Table):
        try:
            return one_batch(unify(rows))
        except pa.ArrowException as error:
            raise _unwritable("a table", error) from error
    raise BadInput(
        f"a bundle is made of Arrow record batches or tables, not {type(rows).__name__}",
        hint="convert it with pyarrow, or use append_raw for bytes",
    )


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as a single record batch."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return empty_batch(table.schema)
    assert len(batches) == 1, "BUG: more rows than one record batch can hold"
    return batches[0]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return no rows; unlike pyarrow's own ways to say so, for nearly all types."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _checked(encoded: Encoded, max_bytes: int) -> Encoded:
    if encoded.events > ROWS_MAX:
        raise BundleTooLarge(
            f"the bundle has {encoded.events} rows, the limit is {ROWS_MAX}",
            hint="split it into several appends, or one transaction",
        )
    size_bytes = len(encoded.payload)
    if size_bytes > max_bytes:
        raise BundleTooLarge(
            f"the bundle has {size_bytes} bytes, the limit is {max_bytes} "
            "(append.max_bundle_bytes)",
            hint="split it into several appends, or one transaction",
        )
    return encoded


def _stream(
    slot: str, batch: pa.RecordBatch, damaged_slots: Sequence[str], trusted: bool
) -> list[pa.Buffer | bytes]:
    """Return the parts of the IPC stream of one batch, if it can be written and read back."""
    schema = batch.schema
    try:
        message, is_plain = _message(slot, schema)
        # Before the append is answered: offsets that point outside their buffer would be written
        # without complaint, and crash whoever reads them, at the latest the sealer. Looking at each
        # takes as long as all the rest; of a trusted batch it is the buffers' ends alone.
        batch.validate(full=not trusted)
        if batch.num_rows == 0:
            empty_batch(schema)  # what is read back where no row is stored
        if damaged_slots:
            batch = _noting(batch, damaged_slots)
        elif is_plain:
            # The same bytes as from a stream writer, in half the time and half the memory.
            return [message, batch.serialize(), _END_OF_STREAM]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return [sink.getvalue()]
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise _unwritable(f"slot {slot!r}", error) from error


def _message(slot: str, schema: pa.Schema) -> tuple[bytes, bool]:
    """Return the message of a schema that can be stored, and whether it has no dictionaries."""
    last = _last_schemas.get(slot)
    # With its metadata, down to fields of fields: what is equal then may only have keys in another
    # order.
    if last is not None and schema.equals(last[0], check_metadata=True):
        return last[1], True
    message = schema.serialize().to_pybytes()
    if message not in _plain_schemas:
        _check_schema(slot, schema, message)
    is_plain = message in _plain_schemas
    # Types of users are compared by their own code, which may find equal what is not.
    if is_plain and not any(has_extension(kind) for kind in schema.types):
        if len(_last_schemas) >= PLAIN_SCHEMAS_MAX:
            _last_schemas.clear()
        _last_schemas[slot] = schema, message
    return message, is_plain


def _check_schema(slot: str, schema: pa.Schema, message: bytes) -> None:
    """Raise if a batch of this schema cannot be stored; remember one without dictionaries."""
    if not schema.names:
        raise BadInput(f"slot {slot!r} has no columns", hint="append only batches that hold events")
    reserved = next((n for n in schema.names if n in RESERVED_COLUMNS), None)
    if reserved is not None:
        raise BadInput(
            f"slot {slot!r} has a column {reserved!r}, a name the quiver writes itself",
            hint=f"rename it; reserved are {', '.join(sorted(RESERVED_COLUMNS))}",
        )
    if len(set(schema.names)) != len(schema.names):
        raise BadInput(
            f"slot {slot!r} has two columns of one name", hint="give every column its own name"
        )
    taken = next((key for key in schema.metadata or () if key.startswith(RESERVED_METADATA)), None)
    if taken is not None:
        raise BadInput(
            f"slot {slot!r} has schema metadata {taken!r}, a key the quiver writes itself",
            hint="remove it with replace_schema_metadata",
        )
    for kind in schema.types:
        check_readable(kind)
    if not any(has_dictionary(kind) for kind in schema.types):
        # Cleared as a whole: a producer that invents schemas must not fill memory, and an order of
        # use would need a lock, which this set shared by all threads does without.
        if len(_plain_schemas) >= PLAIN_SCHEMAS_MAX:
            _plain_schemas.clear()
        _plain_schemas.add(message)


def _unwritable(what: str, error: Exception) -> BadInput:
    return BadInput(
        f"Arrow cannot store {what}: {error}",
        hint="cast the column to a type that the Arrow IPC format can hold",
    )


def decode_arrow(payload: memoryview) -> list[ArrowSlot]:
    """Return the slots of an Arrow payload without copying."""
    (table_bytes,) = _TABLE_LENGTH.unpack_from(payload, len(payload) - _TABLE_LENGTH.size)
    position = len(payload) - _TABLE_LENGTH.size - table_bytes
    slots = []
    while position < len(payload) - _TABLE_LENGTH.size:
        name_bytes, start, size, rows = _TABLE_ENTRY.unpack_from(payload, position)
        position += _TABLE_ENTRY.size
        name = bytes(payload[position : position + name_bytes]).decode()
        position += name_bytes
        slots.append(ArrowSlot(name, payload[start : start + size], rows))
    return slots


def without_reserved(schema: pa.Schema) -> pa.Schema:
    """Return a stored schema with the metadata that its user gave."""
    metadata = schema.metadata or {}
    own = {key: metadata[key] for key in metadata if not key.startswith(RESERVED_METADATA)}
    return schema.with_metadata(own) if own else schema.remove_metadata()


def read_stream(stream: memoryview | pa.Buffer) -> pa.RecordBatch:
    """Return the record batch of one IPC stream; its buffers point into the stream."""
    return pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch()


def read_streams(streams: Sequence[memoryview]) -> list[pa.RecordBatch]:
    """Return the record batches of IPC streams that begin with the same schema.

    It is read once, unless it has dictionaries: those stand in front of each batch.
    """
    (metadata_bytes,) = _SCHEMA_LENGTH.unpack_from(streams[0])
    batch_at = _SCHEMA_LENGTH.size + metadata_bytes
    schema = pa.ipc.read_schema(pa.py_buffer(streams[0]))
    if any(has_dictionary(field.type) for field in schema):
        return [read_stream(stream) for stream in streams]
    read = pa.ipc.read_record_batch
    return [read(pa.py_buffer(stream[batch_at:]), schema) for stream in streams]


def read_slot(stream: memoryview | pa.Buffer) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """Return a slot as it was appended, and which others of its bundle were damaged since."""
    batch = read_stream(stream)
    noted = noted_damage(batch.schema)
    return (_without_note(batch) if noted else batch), noted


def noted_damage(schema: pa.Schema) -> tuple[str, ...]:
    """Return the slots that a salvage found damaged in the bundles of stored rows."""
    found = (schema.metadata or {}).get(DAMAGED_SLOTS_KEY)
    return tuple(json.loads(found)) if found else ()


def _noting(batch: pa.RecordBatch, damaged_slots: Sequence[str]) -> pa.RecordBatch:
    note = {DAMAGED_SLOTS_KEY: json.dumps(list(damaged_slots))}
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), **note})


def _without_note(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.replace_schema_metadata(without_reserved(batch.schema).metadata)


def is_large(payloads: Payloads) -> bool:
    """Whether putting them together would make an event loop stand still."""
    if isinstance(payloads, bytes):
        return len(payloads) > LARGE_BYTES
    try:
        return sum(map(len, payloads)) > LARGE_BYTES
    except TypeError:
        return False  # `encode_raw` says what is wrong with them


def is_large_data(data: BundleData) -> bool:
    """Whether putting record batches together would make an event loop stand still."""
    if isinstance(data, pa.RecordBatch) and data.get_total_buffer_size() <= LARGE_BYTES:
        return False
    batches = data.values() if isinstance(data, Mapping) else (data,)
    rows = [one for one in batches if isinstance(one, pa.RecordBatch | pa.Table)]
    # What their buffers hold is known at once. What they themselves have may be less, if they are
    # slices, and takes half as long to find out as all the rest of an append.
    if sum([one.get_total_buffer_size() for one in rows]) <= LARGE_BYTES:
        return False
    return bool(sum(one.nbytes for one in rows) > LARGE_BYTES)


def encode_raw(
    slot: str, payloads: Payloads, headers: Sequence[Headers | None] | None, max_bytes: int
) -> Encoded:
    """Return the payload of a bundle of raw events."""
    if isinstance(payloads, bytes) and headers is None:
        known = _one_event if type(slot) is str else OneEvent  # others may have no hash
        return known(slot, max_bytes).encode(payloads, None)
    check_slot(slot)
    events = [payloads] if isinstance(payloads, bytes) else payloads
    if not events:
        raise BadInput("the bundle has no events", hint="append at least one payload")
    if headers is not None and len(headers) != len(events):
        raise BadInput(
            f"{len(events)} payloads came with {len(headers)} headers",
            hint="give one header mapping (or None) for each payload",
        )
    blobs = [_header_bytes(header) for header in headers] if headers else []
    try:
        lengths = array("I", map(len, events))
        lengths.extend(map(len, blobs) if blobs else bytes(len(events)))
        name = slot.encode()
        head = _RAW_HEAD.pack(len(events), len(name)) + name
        # The arrays of lengths are machine numbers as they are: `check_machine` refuses to open a
        # quiver where that would not be little-endian.
        # Of bytes alone, because many of them are then joined without the interpreter's lock.
        payload: bytes | pa.Buffer = b"".join((head, lengths.tobytes(), *events, *blobs))
        # `join` takes anything with a buffer. A view of wider items has fewer items than bytes,
        # and its length in the table would then be wrong for every event behind it.
        if len(payload) != len(head) + lengths.itemsize * len(lengths) + sum(lengths):
            raise TypeError("its length is not its size in bytes")
    except TypeError as error:
        raise BadInput(f"a payload is not bytes: {error}", hint="encode it first") from error
    if len(payload) >= _COPIED_ALONE_BYTES:
        payload = joined([payload])  # for the sake of the memory
    return _checked(Encoded(FrameKind.RAW, payload, len(events)), max_bytes)


class OneEvent:
    """Makes what `encode_raw` makes of one event and its headers, in a fraction of the time.

    A gateway's short path appends one event per request, so the head is packed once for all of
    them. Both ways write the same bytes: a reader cannot tell which one was taken.
    """

    def __init__(self, slot: str, max_bytes: int) -> None:
        name = check_slot(slot).encode()
        self._head = _RAW_HEAD.pack(1, len(name)) + name
        self._max_bytes = max_bytes

    def encode(self, payload: bytes, header: Headers | None) -> Encoded:
        """Return the payload of a bundle."""
        blob = _header_bytes(header) if header else b""
        lengths = EVENT_LENGTHS.pack(len(payload), len(blob))
        whole = b"".join((self._head, lengths, payload, blob))
        return _checked(Encoded(FrameKind.RAW, whole, 1), self._max_bytes)


# Of as many slots as a bundle may have: to check a name anew costs as much as the rest.
_one_event = lru_cache(maxsize=SLOTS_MAX)(OneEvent)


def _header_bytes(header: object) -> bytes:
    if not header:
        return b""
    if not isinstance(header, Mapping):
        raise BadInput(
            f"a header is {type(header).__name__}", hint="give a mapping of names to texts, or None"
        )
    try:
        return json.dumps(dict(header), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"headers cannot be written as JSON: {error}", hint="use texts as names and as values"
        ) from error


def raw_head(payload: memoryview) -> tuple[str, int, int]:
    """Return the slot of a raw payload, how many events it has, and where their lengths stand."""
    count, name_bytes = _RAW_HEAD.unpack_from(payload)
    position = _RAW_HEAD.size + name_bytes
    return str(payload[_RAW_HEAD.size : position], "utf-8"), count, position


def decode_events(payload: memoryview, count: int, position: int) -> RawEvents:
    """Return the events of a raw payload behind its head, without touching their bytes."""
    lengths, header_lengths = array("I"), array("I")
    lengths.frombytes(payload[position : position + 4 * count])
    header_lengths.frombytes(payload[position + 4 * count : position + 8 * count])
    position += 8 * count
    end = position + sum(lengths)
    return RawEvents(lengths, payload[position:end], header_lengths, payload[end:])


def is_readable(kind: int, payload: memoryview) -> bool:
    """Whether the payload has the structure of its kind; says nothing of the Arrow inside.

    Recovery asks this of frames whose checksum is right, so a no means that a program wrote it
    wrong, or another version did; not that the disk failed.
    """
    try:
        if kind == FrameKind.RAW:
            count, name_bytes = _RAW_HEAD.unpack_from(payload)
            lengths_start = _RAW_HEAD.size + name_bytes
            lengths = payload[lengths_start : lengths_start + 8 * count].cast("I")
            return bool(lengths_start + 8 * count + sum(lengths) == len(payload))
        if kind == FrameKind.ARROW:
            slots = decode_arrow(payload)
            return bool(slots) and all(len(slot.stream) for slot in slots)
    except (struct.error, ValueError, TypeError):
        return False
    return True
