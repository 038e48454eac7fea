"""The envelope: typed columns written beside the rows when a segment is sealed.

`_seq` and `_row` are the position, `_ingestion_time` the quiver's clock at accept. `_event_time` is
what the slot's extractor read from the rows; a row where it found none has its ingestion time. The
row keeps the time its producer gave, however strange; `_event_time_flag` says so, and summaries
(and later claims and retention) use the clamped value, so that one event dated 2099 or 1969 changes
nothing for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

# Microseconds: what Spark, duckdb and Python keep, and enough range for the year 9999. The payload
# still has whatever its producer wrote.
TIME_TYPE = pa.timestamp("us", tz="UTC")


class TimeFlag(IntEnum):
    """How far an event time can be trusted. On disk: never renumber."""

    GIVEN = 0
    IN_FUTURE = 1  # later than ingestion + max_skew
    BEFORE_1970 = 2
    MISSING = 3  # no extractor, or it found none: the ingestion time stands in


class Extractor(Protocol):
    """Reads event time and keys out of a slot's rows."""

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return as many rows, with `event_time` (timestamp, may be null) and any key columns.

        Raw slots come as one binary column `payload`. An extractor that raises costs its slot the
        keys of that batch, never the events.
        """


@dataclass(frozen=True)
class ColumnExtractor:
    """Takes the event time from a column of the batch itself."""

    event_time: str

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"event_time": as_times(rows.column(self.event_time))})


def as_times(values: pa.Array) -> pa.Array:
    """Return timestamps in the envelope's type; finer ones are cut to microseconds."""
    return values.cast(TIME_TYPE, safe=False)


@dataclass(frozen=True)
class TimedRows:
    """Event times of some rows: as given, their flags, and clamped for summaries."""

    times: pa.Array
    flags: pa.Array
    clamped: pa.Array


def read_times(given: pa.Array | None, ingestion: pa.Array, max_skew_s: float) -> TimedRows:
    """Return the event times of rows whose producers gave `given` (nulls allowed)."""
    if given is None:
        flags = pa.repeat(pa.scalar(TimeFlag.MISSING, pa.int8()), len(ingestion))
        return TimedRows(ingestion, flags, ingestion)
    missing = given.is_null()
    times = pc.if_else(missing, ingestion, given)
    limit = pc.add(ingestion, pa.scalar(int(max_skew_s * 1e6), pa.duration("us")))
    epoch = pa.scalar(0, TIME_TYPE)
    in_future, before = pc.greater(times, limit), pc.less(times, epoch)
    flags = pc.case_when(
        pc.make_struct(missing, in_future, before),
        pa.scalar(TimeFlag.MISSING, pa.int8()),
        pa.scalar(TimeFlag.IN_FUTURE, pa.int8()),
        pa.scalar(TimeFlag.BEFORE_1970, pa.int8()),
        pa.scalar(TimeFlag.GIVEN, pa.int8()),
    )
    clamped = pc.if_else(in_future, limit, pc.if_else(before, epoch, times))
    return TimedRows(times, flags, clamped)
