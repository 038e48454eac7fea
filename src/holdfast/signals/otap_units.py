"""What is known of stored tables: the times of items, how many there are, and kept headers.

Spans, data points and log records are rows of one table each, so an item's time is its row's. The
other tables of a batch (attributes, events, links, exemplars) have no times: their rows are as old
as what they belong to, which speaks for them.

Nothing of protobuf is imported before something is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.extras import need
from holdfast.quiver import Bundle, Extractor
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.arrow import constant, texts
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.signals.event import ArrowData, Event, ItemCounter, arrow_data_of
from holdfast.signals.otap.payloads import TABLES, PayloadType, with_orphans
from holdfast.signals.otlp.extractor import document_reader, item_counter
from holdfast.signals.otlp.kinds import OtlpKind

# Marks the resources of a request that was made of what is left of a batch.
DAMAGED_ATTRIBUTE = "holdfast.damaged_slots"
# Beside the tables of a batch: the headers that are kept of it, one in each row.
HEADERS_SLOT = "otap_headers"
_HEADERS_SCHEMA = pa.schema([("name", pa.utf8()), ("value", pa.utf8())])
_NS_PER_US = 1000

# The tables whose rows are items, by signal.
ITEM_TABLES: Mapping[OtlpKind, tuple[PayloadType, ...]] = {
    OtlpKind.TRACES: (PayloadType.SPANS,),
    OtlpKind.LOGS: (PayloadType.LOGS,),
    OtlpKind.METRICS: (
        PayloadType.NUMBER_DATA_POINTS,
        PayloadType.SUMMARY_DATA_POINTS,
        PayloadType.HISTOGRAM_DATA_POINTS,
        PayloadType.EXP_HISTOGRAM_DATA_POINTS,
    ),
}
_SHARED = frozenset.intersection(*TABLES.values())


@dataclass(frozen=True)
class ItemTableExtractor:
    """Reads `event_time`: the end of a span, the time of a data point or a log record."""

    kind: OtlpKind

    @property
    def signal(self) -> str:
        """What its rows are called in manifests and statistics."""
        return self.kind.value

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row for each item."""
        if self.kind is OtlpKind.TRACES:
            started_us = _microseconds(rows, "start_time_unix_nano")
            took_us = _microseconds(rows, "duration_time_unix_nano")
            times = pc.add(started_us, pc.coalesce(took_us, constant(0, pa.int64())))
        else:
            times = _microseconds(rows, "time_unix_nano")
        if self.kind is OtlpKind.LOGS:
            times = pc.coalesce(times, _microseconds(rows, "observed_time_unix_nano"))
        return pa.record_batch({"event_time": times.cast(TIME_TYPE)})


@dataclass(frozen=True)
class UntimedTableExtractor:
    """Of tables whose rows have no time of their own."""

    # Empty: several signals have such a table.
    signal: str
    is_timed: bool = False

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return no times."""
        return pa.record_batch({"event_time": pa.nulls(rows.num_rows, TIME_TYPE)})


def _microseconds(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of nanoseconds as microseconds; null where it is 0, or not there."""
    place = rows.schema.get_field_index(name)
    nothing = pa.nulls(rows.num_rows, pa.int64())
    if place < 0:
        return nothing
    column = rows.column(place)
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    times_us = pc.divide(column.cast(pa.int64()), constant(_NS_PER_US, pa.int64()))
    return pc.if_else(pc.equal(times_us, constant(0, pa.int64())), nothing, times_us)


def otap_extractors(kind: OtlpKind) -> dict[str, Extractor]:
    """Return what reads the tables of a signal, by slot."""
    timed, untimed = ItemTableExtractor(kind), UntimedTableExtractor(kind.value)
    own = {
        table.slot: timed if table in ITEM_TABLES[kind] else untimed
        for table in TABLES[kind] - _SHARED
    }
    shared = UntimedTableExtractor("")
    return {**own, **{table.slot: shared for table in _SHARED}, HEADERS_SLOT: shared}


def otap_item_counter(kind: OtlpKind) -> ItemCounter:
    """Return what counts the items of stored tables."""
    slots = [table.slot for table in ITEM_TABLES[kind]]

    def count(tables: Mapping[str, pa.RecordBatch]) -> int:
        return sum(tables[slot].num_rows for slot in slots if slot in tables)

    return count


def otap_split(kind: OtlpKind) -> Callable[[Bundle, str, str, int], Sequence[ArrowData]]:
    """Return what makes one unit of a bundle: its tables refer to each other."""
    count = otap_item_counter(kind)

    def split(bundle: Bundle, quiver_id: str, signal: str, first_row: int) -> list[ArrowData]:
        (data,) = arrow_data_of(bundle, quiver_id, signal, first_row, count)
        headers = {**kept_headers(data.slots), **data.headers}
        if data.damaged_slots:
            data = _without_orphans(data)
        return [replace(data, headers=headers)]

    return split


def _without_orphans(data: ArrowData) -> ArrowData:
    """Leave out the tables whose rows belong to rows of a damaged one: no receiver would take them.

    They are not damaged, so the header that marks the rest does not name them.
    """
    lost = with_orphans(data.damaged_slots)
    kept = {slot: table for slot, table in data.slots.items() if slot not in lost}
    left = sum(table.num_rows for table in kept.values())
    return replace(data, slots=kept, damaged_rows=data.rows - left)


def otap_to_otlp(kind: OtlpKind) -> Callable[[ArrowData], Event]:
    """Return what makes a request of OTLP of a bundle, for those who take no tables."""
    read, count = document_reader(kind), item_counter(kind)

    def convert(data: ArrowData) -> Event:
        need("otel")
        from holdfast.signals.otap.to_otlp import otlp_of
        from holdfast.signals.otlp.codec import with_resource_attribute

        payload = b"".join(otlp_of(kind, data.slots))
        if data.damaged_slots:
            # Not only in a header: files, consoles and functions show what is in the request.
            slots = ", ".join(data.damaged_slots)
            payload = with_resource_attribute(kind, payload, DAMAGED_ATTRIBUTE, slots)
        return Event(
            quiver_id=data.quiver_id,
            position=data.position,
            slot=kind.slot,
            payload=payload,
            headers=data.headers,
            ingestion_ns=data.ingestion_ns,
            signal=data.signal,
            read=read,
            count=count,
        )

    return convert


def kept_headers(tables: Mapping[str, pa.RecordBatch]) -> dict[str, str]:
    """Return the headers that were stored beside the tables of a batch."""
    kept = tables.get(HEADERS_SLOT)
    if kept is None:
        return {}
    names, values = (kept.column(name).to_pylist() for name in _HEADERS_SCHEMA.names)
    return dict(zip(names, values, strict=True))


def headers_table(headers: Mapping[str, str]) -> pa.RecordBatch:
    """Return what stands beside the tables of a batch for the headers that are kept of it."""
    columns = [texts([*headers]), texts([*headers.values()])]
    return pa.RecordBatch.from_arrays(columns, schema=_HEADERS_SCHEMA)
