"""One table of a stream: its schema, its dictionaries, and the rows that build on them.

Only a dictionary's message changes what is kept. So rows that cannot be read are told to their
sender and forgotten; but if it is a schema or a dictionary that cannot be read, all that comes
behind refers to something unknown, and the stream is broken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.quiver.base.bundle import RESERVED_COLUMNS, RESERVED_METADATA
from holdfast.signals.otap.dictionaries import GrowingDictionary, own_dictionary
from holdfast.signals.otap.ipc import (
    IpcKind,
    IpcMessage,
    SchemaLayout,
    read_layout,
    read_messages,
    unpack_dictionary,
    unpack_rows,
)
from holdfast.signals.otap.limits import StreamLimits
from holdfast.signals.otap.problem import BatchCode, NotOtap, StreamTooLarge

# What Arrow raises for bytes that are not what they should be.
_ARROW_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    IndexError,
    OverflowError,
    struct.error,
)
_REASON_CHARACTERS_MAX = 200
_TAKEN_TYPES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_temporal,
    pa.types.is_decimal,
    pa.types.is_struct,
    pa.types.is_list,
    pa.types.is_large_list,
)
# Of these a message may have any number: nothing that it brings says how many.
_WITHOUT_BYTES = (pa.struct([]), pa.binary(0))


@dataclass
class BatchBudget:
    """What may still be unpacked for a batch."""

    limits: StreamLimits
    bytes_used: int = 0
    rows_used: int = 0

    def take(self, unpacked_bytes: int, rows: int, values: int = 0) -> None:
        """Count a message in before it is unpacked."""
        limits = self.limits
        if self.bytes_used + unpacked_bytes > limits.batch_bytes_max:
            raise StreamTooLarge(
                f"a batch would take {self.bytes_used + unpacked_bytes} bytes once unpacked",
                "batch_bytes_max",
                limits.batch_bytes_max,
            )
        if not 0 <= rows <= limits.rows_max - self.rows_used:
            raise StreamTooLarge(
                f"a batch has {self.rows_used + rows} rows", "rows_max", limits.rows_max
            )
        if not 0 <= values <= limits.values_max:
            raise StreamTooLarge(
                f"a column of a batch has {values} values", "values_max", limits.values_max
            )
        self.bytes_used += unpacked_bytes
        self.rows_used += rows


@dataclass
class DictionaryBudget:
    """What the dictionaries of all tables of a stream take."""

    limit_bytes: int
    used_bytes: int = 0

    def change(self, by_bytes: int, message_bytes: int) -> None:
        """Count a dictionary in before it is unpacked."""
        if self.used_bytes + by_bytes > self.limit_bytes:
            error = StreamTooLarge(
                f"the dictionaries of the stream would take {self.used_bytes + by_bytes} bytes",
                "dictionary_bytes_max",
                self.limit_bytes,
            )
            if message_bytes <= self.limit_bytes:
                # Not this batch is too large, but what came before: on a new stream it can be sent.
                error.code = BatchCode.UNAVAILABLE
            raise error
        self.used_bytes += by_bytes


@dataclass
class TableStream:
    """What is known of a table from what its stream has brought so far."""

    name: str
    schema_id: str
    limits: StreamLimits
    budget: DictionaryBudget
    _layout: SchemaLayout | None = None
    _dictionaries: dict[int, GrowingDictionary] = field(default_factory=dict)
    _dictionary_bytes: dict[int, int] = field(default_factory=dict)
    _is_broken: bool = False

    def close(self) -> None:
        """Forget the dictionaries."""
        self.budget.used_bytes -= sum(self._dictionary_bytes.values())
        self._dictionaries.clear()
        self._dictionary_bytes.clear()

    def read(self, record: bytes, budget: BatchBudget) -> pa.RecordBatch | None:
        """Return the rows of a record, which need nothing else; None if it brings none."""
        if self._is_broken:
            raise NotOtap(
                f"{self.name}: an earlier message of schema_id {self.schema_id!r} could not be "
                "read; begin a new stream",
                breaks=True,
            )
        found: list[pa.RecordBatch] = []
        failure: NotOtap | None = None
        try:
            for count, message in enumerate(read_messages(record)):
                self._check_count(count, message, found)
                try:
                    if message.kind is IpcKind.RECORD_BATCH:
                        found.append(self._rows(message, budget))
                    else:
                        self._keep(message, budget)
                except (NotOtap, *_ARROW_ERRORS) as error:
                    failure = failure or self._problem(error)
                    if message.kind is not IpcKind.RECORD_BATCH:
                        raise failure from error
                    # What comes behind may be a dictionary.
        except (NotOtap, *_ARROW_ERRORS) as error:
            failure = failure or self._problem(error)
            # Without dictionaries, nothing can have been missed that matters later.
            self._is_broken = self._layout is not None and bool(self._layout.dictionaries)
        if failure is None:
            return found[0] if found else None
        if self._is_broken:
            self.close()
        # Its sender believes that the schema has arrived, and sends it never again.
        failure.breaks_stream |= self._is_broken or self._layout is None
        raise failure

    def _check_count(self, messages: int, message: IpcMessage, found: list[pa.RecordBatch]) -> None:
        if messages >= self.limits.messages_max:
            raise StreamTooLarge(
                "a payload has more messages", "messages_max", self.limits.messages_max
            )
        if found and message.kind is IpcKind.RECORD_BATCH:
            raise NotOtap("a payload has more than one record batch")

    def _problem(self, error: Exception) -> NotOtap:
        if isinstance(error, NotOtap):
            error.reason = f"{self.name}: {error.reason}"
            error.args = (error.reason,)
            return error
        reason = " ".join(str(error).split())[:_REASON_CHARACTERS_MAX]
        return NotOtap(f"{self.name}: this is not a sound Arrow IPC message: {reason}")

    def _keep(self, message: IpcMessage, budget: BatchBudget) -> None:
        """Take a schema or a dictionary."""
        if message.kind is IpcKind.SCHEMA:
            self._keep_schema(message)
            return
        number, kind = message.dictionary_id, self._value_type(message.dictionary_id)
        before_bytes = self._dictionary_bytes.get(number, 0) if message.is_delta else 0
        after_bytes = before_bytes + message.unpacked_bytes
        budget.take(message.unpacked_bytes, message.rows, message.values)
        added_bytes = after_bytes - self._dictionary_bytes.get(number, 0)
        self.budget.change(added_bytes, message.unpacked_bytes)
        self._dictionary_bytes[number] = after_bytes
        values = unpack_dictionary(message.message, kind)
        known = self._dictionaries.get(number) if message.is_delta else None
        if known is None:
            self._dictionaries[number] = GrowingDictionary(values)
        else:
            known.add(values)

    def _keep_schema(self, message: IpcMessage) -> None:
        if message.unpacked_bytes > self.limits.schema_bytes_max:
            raise StreamTooLarge(
                f"a schema has {message.unpacked_bytes} bytes",
                "schema_bytes_max",
                self.limits.schema_bytes_max,
            )
        layout = read_layout(message.message)
        _check_types(layout, self.limits)
        if self._layout is not None and self._layout != layout:
            raise NotOtap("another schema is sent; that needs a new schema_id")
        self._layout = layout

    def _value_type(self, number: int) -> pa.DataType:
        for found in self._known_layout().dictionaries.values():
            if found.dictionary_id == number:
                return found.kind.value_type
        raise NotOtap("a dictionary belongs to no column")

    def _known_layout(self) -> SchemaLayout:
        if self._layout is None:
            raise NotOtap(f"no schema was sent for schema_id {self.schema_id!r}")
        return self._layout

    def _rows(self, message: IpcMessage, budget: BatchBudget) -> pa.RecordBatch:
        layout = self._known_layout()
        budget.take(message.unpacked_bytes, message.rows, message.values)
        batch = unpack_rows(message.message, layout)
        columns = [
            self._with_dictionaries(column, layout.schema.field(place).type, (place,), budget)
            for place, column in enumerate(batch.columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=layout.schema)

    def _with_dictionaries(
        self, column: pa.Array, kind: pa.DataType, path: tuple[int, ...], budget: BatchBudget
    ) -> pa.Array:
        """Return a column of indices with the values that they mean."""
        dictionaries = self._known_layout().dictionaries
        if path in dictionaries:
            values = self._values(dictionaries[path].dictionary_id, kind.value_type)
            made = own_dictionary(column, values, kind)
            # A few rows may use much of what earlier batches brought.
            budget.take(made.dictionary.nbytes, 0)
            return made
        if not any(one[: len(path)] == path for one in dictionaries):
            return column
        fields = [kind.field(place) for place in range(kind.num_fields)]
        children = [
            self._with_dictionaries(column.field(place), one.type, (*path, place), budget)
            for place, one in enumerate(fields)
        ]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _values(self, number: int, kind: pa.DataType) -> GrowingDictionary:
        known = self._dictionaries.get(number)
        # Where all rows are null, there need be no dictionary.
        return GrowingDictionary(pa.nulls(0, kind)) if known is None else known


_NO_FIELDS = pa.struct([])


def _check_types(layout: SchemaLayout, limits: StreamLimits) -> None:
    """Raise if a schema has more than it may have, or types that cannot be trusted."""
    names = layout.schema.names
    if len(set(names)) < len(names):
        raise NotOtap("two columns have one name")
    if not RESERVED_COLUMNS.isdisjoint(names):
        taken = ", ".join(sorted(RESERVED_COLUMNS.intersection(names)))
        raise NotOtap(f"a column is called {taken}, as one that is added where rows are kept")
    if any(key.startswith(RESERVED_METADATA) for key in layout.schema.metadata or ()):
        raise NotOtap(f"a schema has metadata that begins with {RESERVED_METADATA.decode()}")
    columns = 0
    for kind in layout.stored.types:
        # Breadth first; Arrow has bounded the depth of what it reads.
        level, depth = [kind], 0
        while level:
            depth += 1
            columns += len(level)
            for part in level:
                # The Collector sends the scope of spans that have none so; there are as many of
                # them as rows, which are counted.
                if depth == 1 and part == _NO_FIELDS:
                    continue
                if not any(is_kind(part) for is_kind in _TAKEN_TYPES) or part in _WITHOUT_BYTES:
                    raise NotOtap(f"a column of type {part} is not taken")
            inner = [part.field(at) for part in level for at in range(part.num_fields)]
            for one in inner:
                one.name.encode()  # raises if it is not UTF-8, as `names` above does
            level = [one.type for one in inner]
        if depth > limits.nesting_max:
            raise StreamTooLarge(f"a column has {depth} levels", "nesting_max", limits.nesting_max)
    if columns > limits.columns_max:
        raise StreamTooLarge(f"a table has {columns} columns", "columns_max", limits.columns_max)
    for found in layout.dictionaries.values():
        values = found.kind.value_type
        is_taken = any(is_kind(values) for is_kind in _TAKEN_TYPES) and values not in _WITHOUT_BYTES
        if values.num_fields or not is_taken:
            raise NotOtap(f"a dictionary of {values} is not taken")
