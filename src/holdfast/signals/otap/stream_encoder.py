"""A stream of OTAP, written: tables that stand for themselves become messages that build on others.

Each table has a stream of Arrow IPC within the stream. Its dictionaries hold what was sent before,
and a batch sends only what is new. Where a dictionary would outgrow its indices, or a table comes
with other columns, the table begins anew under the next schema_id; ids differ between tables,
because the reference implementation looks nothing else up.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hpack import Encoder

from holdfast.signals.otap.dictionaries import GrowingDictionary, index_dtype, own_dictionary
from holdfast.signals.otap.ids import with_encoded_ids
from holdfast.signals.otap.messages import BatchArrowRecords
from holdfast.signals.otap.numpy_columns import column_of, numbers_of, present
from holdfast.signals.otap.payloads import PayloadType, number_of
from holdfast.signals.otap.problem import NotOtap

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# What the dictionaries of a stream may have before all tables begin anew; a receiver holds as much.
DICTIONARY_BYTES_MAX = 16 * 1024 * 1024
PayloadCompression = Literal["zstd"]
_KNOWN = frozenset(PayloadType)


class StreamEncoder:
    """Writes the batches of one stream."""

    def __init__(
        self,
        *,
        compression: PayloadCompression | None = None,
        dictionary_bytes_max: int = DICTIONARY_BYTES_MAX,
    ) -> None:
        self._options = pa.ipc.IpcWriteOptions(
            compression=compression, emit_dictionary_deltas=True, use_threads=False
        )
        self._dictionary_bytes_max = dictionary_bytes_max
        self._tables: dict[int, _TableWriter] = {}
        self._next_schema_id = 0
        self._headers = Encoder()

    @property
    def dictionary_bytes(self) -> int:
        """What the dictionaries hold that were sent."""
        return sum(table.dictionary_bytes for table in self._tables.values())

    def encode(
        self,
        batch_id: int,
        tables: Mapping[str, pa.RecordBatch],
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the message of a batch. Messages have to be sent in the order of these calls.

        Tables are those of a `StreamDecoder`, or of `otap_of`; slots that are not OTAP's are
        refused with `NotOtap`.
        """
        if self.dictionary_bytes > self._dictionary_bytes_max:
            self._tables.clear()
        message = BatchArrowRecords(batch_id=batch_id)
        for slot, batch in tables.items():
            number = number_of(slot)
            if number is None:
                raise NotOtap(f"slot {slot!r} holds no table of OTAP")
            sent = with_encoded_ids(PayloadType(number), batch) if number in _KNOWN else batch
            schema_id, record = self._record(number, sent)
            message.arrow_payloads.add(schema_id=schema_id, type=number, record=record)
        if headers:
            message.headers = self._headers.encode(list(headers.items()))
        written: bytes = message.SerializeToString()
        return written

    def _record(self, number: int, batch: pa.RecordBatch) -> tuple[str, bytes]:
        table = self._tables.get(number)
        if table is not None and table.schema.equals(batch.schema, check_metadata=True):
            written = table.write(batch)
            if written is not None:
                return table.schema_id, written
        table = _TableWriter(str(self._next_schema_id), batch.schema, self._options)
        self._next_schema_id += 1
        self._tables[number] = table
        written = table.write(batch)
        assert written is not None, "BUG: a batch does not fit its own dictionaries"
        return table.schema_id, written


class _RecordSink(io.RawIOBase):
    """Takes what is written, until somebody takes it away."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, part: ReadableBuffer, /) -> int:
        taken = bytes(part)
        self._parts.append(taken)
        self._position += len(taken)
        return len(taken)

    def take(self) -> bytes:
        written = b"".join(self._parts)
        self._parts.clear()
        return written


@dataclass(eq=False)
class _TableWriter:
    """The stream of one table."""

    schema_id: str
    schema: pa.Schema
    options: pa.ipc.IpcWriteOptions
    _sink: _RecordSink = field(default_factory=_RecordSink)
    # By the way to the column, or to the field of a struct: all values that were sent.
    _dictionaries: dict[tuple[int, ...], pa.Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._writer = pa.ipc.new_stream(self._sink, self.schema, options=self.options)

    @property
    def dictionary_bytes(self) -> int:
        return sum(values.nbytes for values in self._dictionaries.values())

    def write(self, batch: pa.RecordBatch) -> bytes | None:
        """Return the messages of a batch; None if a dictionary would be too large."""
        grown: dict[tuple[int, ...], pa.Array] = {}
        columns = [
            self._with_known(column, (place,), grown) for place, column in enumerate(batch.columns)
        ]
        if any(column is None for column in columns):
            return None
        self._dictionaries.update(grown)
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return self._sink.take()

    def _with_known(
        self, column: pa.Array, path: tuple[int, ...], grown: dict[tuple[int, ...], pa.Array]
    ) -> pa.Array | None:
        """Return a column whose dictionary is the one that was sent, and what is new behind it."""
        kind = column.type
        if pa.types.is_dictionary(kind):
            values = GrowingDictionary(column.dictionary)
            own = own_dictionary(column.indices, values, kind)
            known = self._dictionaries.get(path)
            made = own if known is None else _grown(own, known)
            if made is not None:
                grown[path] = made.dictionary
            return made
        if not pa.types.is_struct(kind) or not any(
            pa.types.is_dictionary(kind.field(place).type) for place in range(kind.num_fields)
        ):
            return column
        children = [
            self._with_known(column.field(place), (*path, place), grown)
            for place in range(kind.num_fields)
        ]
        if any(child is None for child in children):
            return None
        fields = [kind.field(place) for place in range(kind.num_fields)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _grown(own: pa.Array, known: pa.Array) -> pa.Array | None:
    """Return a column with the known values first in its dictionary; None if there are too many."""
    kind, values = own.type, own.dictionary
    index_type = kind.index_type
    places = pc.index_in(values, value_set=known)
    flags = present(places)
    mapping = numbers_of(places, "<i4").astype("<i8")
    if flags is not None:
        added = np.flatnonzero(~flags)
        mapping[added] = len(known) + np.arange(len(added))
        new = values.take(column_of(added.astype("<i8"), pa.int64()))
        known = pa.concat_arrays([known, new])
        if len(known) - 1 > np.iinfo(index_dtype(index_type)).max:
            return None
    indices = own.indices
    rows, row_flags = numbers_of(indices, index_dtype(indices.type)), present(indices)
    safe = rows if row_flags is None else np.where(row_flags, rows, 0)
    renumbered = mapping[safe] if len(mapping) else np.zeros(len(rows), "<i8")
    written = column_of(renumbered.astype(index_dtype(index_type)), index_type, row_flags)
    return pa.DictionaryArray.from_arrays(written, known, ordered=kind.ordered)
