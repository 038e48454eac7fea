"""Data points of all types as columns of one table.

A metric has points of one type, and there are four messages for five types. What several of them
have is one column, of all points in their order, whichever message each is.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast.quiver.base.arrow import texts
from holdfast.signals.otlp.flat.schema import METRIC_TYPES
from holdfast.signals.otlp.flat.wire import (
    NOWHERE,
    FieldPlaces,
    Messages,
    NumpyArray,
    fields_of,
    message_in,
    together,
)
from holdfast.signals.otlp.flat.wire_columns import (
    FlatColumns,
    MessageLevel,
    column_of,
    integers,
    integers_in,
    time_of,
)

# What a metric says of all its points, as far as its type does.
_OF_DATA = ("aggregation_temporality", "is_monotonic")
_OF_METRICS = ("name", "description", "unit", "metadata")
# What a point has of its own.
_OF_POINTS = (
    *("attributes", "start_time_unix_nano", "time_unix_nano", "as_double", "as_int", "count"),
    *("sum", "min", "max", "bucket_counts", "explicit_bounds", "scale", "zero_count"),
    *("zero_threshold", "positive", "negative", "quantile_values", "exemplars", "flags"),
)


def points_of(
    metrics: MessageLevel, schema: pa.Schema
) -> tuple[FlatColumns, FlatColumns, NumpyArray]:
    """Return columns of metrics, columns of their points, and the metric of each point.

    Raises `NotOtlp` and `SeveralValues`.
    """
    above = {
        f"metric_{name}": metrics.column(name, schema.field(f"metric_{name}").type)
        for name in _OF_METRICS
    }
    types = np.zeros(len(metrics.messages.starts), np.int32)
    data = _Mixed(metrics.messages.content, len(types))
    for number, name in enumerate(METRIC_TYPES):
        places = metrics.fields.get(name, NOWHERE).in_order()
        types[places.rows] = number
        data.add(_data_message(metrics.descriptor, name), places)
    above |= {name: data.column(name, schema.field(name).type) for name in _OF_DATA}
    above["metric_type"] = texts(METRIC_TYPES).take(integers(types, pa.int32()))
    where = data.places("data_points").in_order()
    points = _Mixed(metrics.messages.content, len(where.rows))
    for message, numbers in _point_messages(metrics.descriptor).items():
        some = np.flatnonzero(np.isin(types, numbers)[where.rows])
        points.add(message, FieldPlaces(some, where.firsts[some], where.ends[some]))
    columns = {name: points.column(name, schema.field(name).type) for name in _OF_POINTS}
    columns["time"] = time_of(integers_in(columns["time_unix_nano"]))
    whole = columns["as_int"].cast(pa.float64(), safe=False)
    columns["value"] = pc.coalesce(columns["as_double"], whole)
    return above, columns, where.rows


def _data_message(metric: Descriptor, name: str) -> Descriptor:
    return message_in(metric.fields_by_name[name])


@cache
def _point_messages(metric: Descriptor) -> dict[Descriptor, list[int]]:
    """Return the messages of points, each with the types of metrics that have it."""
    found: dict[Descriptor, list[int]] = {}
    for number, name in enumerate(METRIC_TYPES):
        message = message_in(_data_message(metric, name).fields_by_name["data_points"])
        found.setdefault(message, []).append(number)
    return found


class _Mixed:
    """Fields of so many rows, each of which is one of several messages."""

    def __init__(self, content: NumpyArray, rows: int) -> None:
        self._content = content
        self._nobody = np.zeros(rows, bool)
        self._fields: dict[str, FieldDescriptor] = {}
        self._parts: dict[str, list[FieldPlaces]] = {}
        # Which rows have a field even if it is not written.
        self._having: dict[str, NumpyArray] = {}

    def add(self, message: Descriptor, places: FieldPlaces) -> None:
        """Add the rows that are such a message; raises `NotOtlp` and `SeveralValues`."""
        self._fields |= message.fields_by_name
        if not len(places.rows):
            return
        are_such = self._nobody.copy()
        are_such[places.rows] = True
        for field in message.fields:
            if not field.has_presence:
                before = self._having.get(field.name, self._nobody)
                self._having[field.name] = before | are_such
        messages = Messages(self._content, places.firsts, places.ends)
        for name, found in fields_of(messages, message).items():
            self._parts.setdefault(name, []).append(found.inside(places.rows))

    def places(self, name: str) -> FieldPlaces:
        """Return where a field is."""
        return together(self._parts.get(name, []))

    def column(self, name: str, target: pa.DataType) -> pa.Array:
        """Return a field of each row, null where its message has no such field."""
        having = self._having.get(name, self._nobody)
        return column_of(self._content, self._fields[name], self.places(name), having, target)
