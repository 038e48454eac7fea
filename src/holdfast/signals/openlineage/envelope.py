"""The envelope of an OpenLineage event: time, run and job, as columns beside the payload."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import orjson
import pyarrow as pa

from holdfast.quiver.base.arrow import numbers, texts
from holdfast.signals.openlineage.names import event_time, job_name, run_id

_FIELDS = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("run_id", pa.string()),
        pa.field("job", pa.string()),
    ]
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class OpenLineageExtractor:
    """Reads `event_time`, `run_id` and `job` (`namespace/name`); null where there is none."""

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row for each payload; one that cannot be read costs only its own row."""
        found = list(_read(rows.column("payload")))
        times, runs, jobs = zip(*found, strict=True) if found else ((), (), ())
        columns = [numbers(times, _FIELDS.field("event_time").type), texts(runs), texts(jobs)]
        return pa.record_batch(columns, schema=_FIELDS)


def _read(payloads: pa.Array) -> Iterator[tuple[int | None, str | None, str | None]]:
    for payload in _values(payloads):
        try:
            document = orjson.loads(payload)
        except orjson.JSONDecodeError:
            yield None, None, None
        else:
            yield _micros(event_time(document)), run_id(document), job_name(document)


def _micros(time: datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def _values(column: pa.Array) -> Iterator[memoryview]:
    """Yield the values of a binary column in place, nothing for a null."""
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    _, offsets, values = column.buffers()
    if values is None:
        offsets, values = pa.py_buffer(bytes(4 * (len(column) + 1))), pa.py_buffer(b"")
    view = memoryview(values)
    ends = memoryview(offsets).cast("B").cast("i")[column.offset : column.offset + len(column) + 1]
    for start, end in pairwise(ends):
        yield view[start:end]
