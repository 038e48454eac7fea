"""The envelope: typed columns written beside the rows when a segment is sealed.

`_seq` and `_row` are the position, `_ingestion_time` the quiver's clock at accept. `_event_time` is
what the slot's extractor read from the rows; a row where it found none has its ingestion time. The
row keeps the time its producer gave, however strange; `_event_time_flag` says so, and summaries
(and later claims and retention) use the clamped value, so that one event dated 2099 or 1969 changes
nothing for the others.

A row of a raw slot may stand for many items, each with a time of its own: a request with spans. Its
extractor gives the earliest as `event_time`, and all of them as a key, the list `item_times`, with
a null where an item has none. Summaries and claims go by the items, clamped one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.arrow import constant
from holdfast.quiver.base.bundle import one_batch, read_stream
from holdfast.quiver.base.config import Extractor

# Microseconds: what Spark, duckdb and Python keep, and enough range for the year 9999. The payload
# still has whatever its producer wrote.
TIME_TYPE = pa.timestamp("us", tz="UTC")


# The key that has the times of a row's items.
ITEM_TIMES = "item_times"
# The key that has the ids by which people search for a row: they are not stored, but what becomes a
# filter (segments/ids.py).
SEARCH_IDS = "search_ids"
SEARCH_IDS_TYPE = pa.list_(pa.binary(16))


class TimeFlag(IntEnum):
    """How far an event time can be trusted. On disk: never renumber."""

    GIVEN = 0
    IN_FUTURE = 1  # later than ingestion + max_skew
    BEFORE_1970 = 2
    MISSING = 3  # no extractor, or it found none: the ingestion time stands in


@dataclass(frozen=True)
class ColumnExtractor:
    """Takes the event time from a column of the batch itself."""

    event_time: str

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"event_time": as_times(rows.column(self.event_time))})


def as_times(values: pa.Array) -> pa.Array:
    """Return timestamps in the envelope's type.

    Finer ones are cut to microseconds; those beyond its range stay at its end.
    """
    per_unit = {"s": 1_000_000, "ms": 1_000}.get(getattr(values.type, "unit", ""))
    if per_unit is not None and pa.types.is_timestamp(values.type):
        furthest = (2**63 - 1) // per_unit
        ticks = pc.min_element_wise(values.cast(pa.int64()), furthest, skip_nulls=False)
        ticks = pc.max_element_wise(ticks, -furthest, skip_nulls=False)
        values = pc.multiply(ticks, per_unit)
    return values.cast(TIME_TYPE, safe=False)


def extract(extractor: Extractor, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return what an extractor found; raises whatever it raises, or if it cannot be stored."""
    found = extractor.extract(rows)
    if isinstance(found, pa.Table):
        found = one_batch(found)
    if found.num_rows != rows.num_rows:
        raise ValueError(f"{found.num_rows} rows for {rows.num_rows}")
    if len(set(found.schema.names)) != found.num_columns:
        raise ValueError("two keys of one name")
    found.validate(full=True)
    place = found.schema.get_field_index("event_time")
    times = as_times(found.column("event_time"))
    found = found.set_column(place, pa.field("event_time", times.type), times)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_batch(found.slice(0, 0))
    read_stream(sink.getvalue())
    return found


@dataclass(frozen=True)
class TimedRows:
    """Event times of some rows: as given, their flags, and clamped for summaries."""

    times: pa.Array
    flags: pa.Array
    clamped: pa.Array


def read_times(given: pa.Array | None, ingestion: pa.Array, max_skew_s: float) -> TimedRows:
    """Return the event times of rows whose producers gave `given` (nulls allowed)."""
    if given is None:
        flags = pa.repeat(constant(TimeFlag.MISSING, pa.int8()), len(ingestion))
        return TimedRows(ingestion, flags, ingestion)
    missing = given.is_null()
    times = pc.if_else(missing, ingestion, given)
    limit = pc.add(ingestion, constant(int(max_skew_s * 1e6), pa.duration("us")))
    epoch = constant(0, TIME_TYPE)
    in_future, before = pc.greater(times, limit), pc.less(times, epoch)
    flags = pc.case_when(
        pc.make_struct(missing, in_future, before),
        constant(TimeFlag.MISSING, pa.int8()),
        constant(TimeFlag.IN_FUTURE, pa.int8()),
        constant(TimeFlag.BEFORE_1970, pa.int8()),
        constant(TimeFlag.GIVEN, pa.int8()),
    )
    clamped = pc.if_else(in_future, limit, pc.if_else(before, epoch, times))
    return TimedRows(times, flags, clamped)


class ItemTimes(NamedTuple):
    """The times of all items of some rows, in no order."""

    # The row that has the item: its place among these rows.
    places: pa.Array
    # Clamped.
    times_us: pa.Array
    is_in_future: pa.Array


def read_item_times(
    lists: pa.Array, row_us: pa.Array, ingestion_us: pa.Array, skew_us: int
) -> ItemTimes:
    """Return the items' times of rows whose extractor gave `lists`.

    A row without any has its own time (`row_us`, clamped), so that each row is among them.
    """
    skew, zero = constant(skew_us, pa.int64()), constant(0, pa.int64())
    places = pc.list_parent_indices(lists)
    arrived = ingestion_us.take(places)
    given = pc.coalesce(pc.list_flatten(lists).cast(pa.int64()), arrived)
    latest = pc.add(arrived, skew)
    times = pc.max_element_wise(pc.min_element_wise(given, latest), zero)
    in_future = pc.greater(given, latest)
    lengths = pc.coalesce(pc.list_value_length(lists), constant(0, pa.int32()))
    alone = pc.indices_nonzero(pc.equal(lengths, constant(0, pa.int32()))).cast(places.type)
    if len(alone):
        own = row_us.take(alone)
        own_latest = pc.add(ingestion_us.take(alone), skew)
        places = pa.concat_arrays([places, alone])
        times = pa.concat_arrays([times, own])
        in_future = pa.concat_arrays([in_future, pc.greater_equal(own, own_latest)])
    return ItemTimes(places, times, in_future)
