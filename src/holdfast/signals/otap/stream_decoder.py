"""A stream of OTAP, read: each message a batch of tables that stand for themselves.

A stream is read by one `StreamDecoder`, message by message in order. What is wrong with a batch is
raised as `NotOtap`, which says what to answer and whether the stream can go on. All tables of a bad
batch are read nevertheless, as far as they can be: what comes later refers to their dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError
from hpack import Decoder, HPACKError

from holdfast.signals.otap.attributes import check_values
from holdfast.signals.otap.ids import check_ids, check_points, with_plain_ids
from holdfast.signals.otap.limits import StreamLimits
from holdfast.signals.otap.messages import BatchArrowRecords
from holdfast.signals.otap.payloads import ROOTS, TABLES, PayloadType, slot_of
from holdfast.signals.otap.problem import NotOtap, StreamTooLarge
from holdfast.signals.otap.schemas import check_columns
from holdfast.signals.otap.table_stream import BatchBudget, DictionaryBudget, TableStream
from holdfast.signals.otlp.codec import field_ends
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.problem import NotOtlp

DEFAULT_LIMITS = StreamLimits()
_KNOWN = frozenset(PayloadType)


class OtapBatch(NamedTuple):
    """One batch of a stream."""

    batch_id: int
    kind: OtlpKind
    # What its sender said of it, by lower-case names.
    headers: Mapping[str, str]
    # By slot, none without rows; empty if the batch brings nothing. Ids are plain.
    tables: Mapping[str, pa.RecordBatch]


class StreamDecoder:
    """Reads the batches of one stream."""

    def __init__(self, kind: OtlpKind, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self._kind = kind
        self._limits = limits
        self._tables: dict[int, TableStream] = {}
        self._dictionaries = DictionaryBudget(limits.dictionary_bytes_max)
        self._headers = Decoder(limits.header_bytes_max)

    @property
    def dictionary_bytes(self) -> int:
        """What the stream has made us keep."""
        return self._dictionaries.used_bytes

    def decode(self, message: bytes) -> OtapBatch:
        """Return the batch of the next message; raises `NotOtap`."""
        batch = self._message(message)
        try:
            headers = self._read_headers(batch.headers)
            tables = self._read_tables(batch.arrow_payloads)
            return OtapBatch(batch.batch_id, self._kind, headers, self._stored(tables))
        except NotOtap as error:
            error.batch_id = batch.batch_id
            raise

    def _message(self, message: bytes) -> Any:
        try:
            # Two bytes can be a payload, and would be an object in memory: they are counted first.
            fields = sum(1 for _ in islice(field_ends(message), self._limits.fields_max + 1))
            if fields > self._limits.fields_max:
                raise StreamTooLarge(
                    "a message has more fields", "fields_max", self._limits.fields_max, breaks=True
                )
            return BatchArrowRecords.FromString(message)
        except (DecodeError, NotOtlp) as error:
            # It may have brought dictionaries.
            raise NotOtap("this is not a BatchArrowRecords message", breaks=True) from error

    def _read_headers(self, written: bytes) -> Mapping[str, str]:
        if not written:
            return {}
        try:
            found: Iterable[Any] = self._headers.decode(written)
            return {name.lower(): value for name, value in found}
        except (HPACKError, ValueError) as error:
            # Headers refer to those of earlier batches.
            raise NotOtap("its headers are not HPACK, or too large", breaks=True) from error

    def _read_tables(self, payloads: Any) -> dict[int, pa.RecordBatch]:
        if len(payloads) > self._limits.tables_max:
            raise StreamTooLarge(
                f"a batch has {len(payloads)} payloads",
                "tables_max",
                self._limits.tables_max,
                breaks=True,
            )
        budget = BatchBudget(self._limits)
        found: dict[int, pa.RecordBatch] = {}
        failure: NotOtap | None = None
        for payload in payloads:
            try:
                rows = self._table(payload.type, payload.schema_id).read(payload.record, budget)
                if payload.type in found:
                    raise NotOtap(f"{slot_of(payload.type)} is in the batch twice")
                if rows is not None and rows.num_rows:
                    found[payload.type] = rows
            except NotOtap as error:
                if failure is None:
                    failure = error
                failure.breaks_stream |= error.breaks_stream
        if failure is not None:
            raise failure
        return found

    def _table(self, number: int, schema_id: str) -> TableStream:
        """Return what is known of a table; a new schema_id begins it anew."""
        known = self._tables.get(number)
        if known is not None and known.schema_id == schema_id:
            return known
        self._check_number(number)
        if len(schema_id) > self._limits.schema_id_characters_max:
            raise StreamTooLarge(
                f"a schema_id has {len(schema_id)} characters",
                "schema_id_characters_max",
                self._limits.schema_id_characters_max,
                breaks=True,
            )
        if known is not None:
            known.close()
        elif len(self._tables) >= self._limits.tables_max:
            raise StreamTooLarge(
                "the stream has more tables", "tables_max", self._limits.tables_max, breaks=True
            )
        name = slot_of(number)
        made = TableStream(name, schema_id, self._limits, self._dictionaries)
        self._tables[number] = made
        return made

    def _check_number(self, number: int) -> None:
        if number <= 0:
            raise NotOtap(f"payload type {number} is none", breaks=True)
        if number in _KNOWN and number not in TABLES[self._kind]:
            raise NotOtap(
                f"{PayloadType(number).name} does not belong on a stream of {self._kind.value}"
            )

    def _stored(self, found: Mapping[int, pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
        """Return the tables by slot with plain ids, checked."""
        known: dict[PayloadType, pa.RecordBatch] = {}
        for number, batch in found.items():
            if number in TABLES[self._kind]:
                table = PayloadType(number)
                check_columns(table, batch)
                check_values(table, batch)
                known[table] = with_plain_ids(table, batch)
        root = ROOTS[self._kind]
        if found and root not in known:
            raise NotOtap(f"there are tables, and none of them is {root.name}")
        check_ids(known)
        check_points(known)
        # The root is first: what a bundle is can be seen at its first slot.
        ordered = sorted(found, key=lambda number: (number != root, number))
        return {
            slot_of(number): known[PayloadType(number)]
            if number in TABLES[self._kind]
            else found[number]
            for number in ordered
        }
