"""Columns for Spark: which Arrow types it takes, and how the others become one of these.

Spark wants to know the columns of a stream before it reads the first row, and keeps to them for as
long as the query has state. A quiver makes no such promise: a producer may add a column tomorrow,
or send text where there was a number. Between the two stands what is remembered beside the
checkpoint: a query goes on with the columns it began with, new ones are added behind them, and a
row whose values do not fit is rejected by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.types as kinds

from holdfast.dataflow.source.notes import recall, remember
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.quiver_location import (
    connect,
    quiver_locations,
    sealed_segments,
    segments_in_archive,
)
from holdfast.dataflow.source.rejected_judge import CAST_ERRORS, cast
from holdfast.errors import BadInput, OwnerGone
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.quiver.read.damaged_slots import DAMAGED_SLOTS
from holdfast.quiver.read.scan import OnDamage, TimeRange, scan
from holdfast.quiver.read.tables import table_schema
from holdfast.quiver.segments.manifest import OPAQUE
from holdfast.quiver.segments.segment import Segment
from holdfast.signals.registry import tables

# What a stream adds to the stored columns: its claim, the claim of the batch before, and whether
# the row is no event but only carries the claim.
WATERMARK_COLUMNS = ("_wm", "_wm_prev", "_control")
EVENT_TIME = "_event_time"
WATERMARK_FIELDS = (
    pa.field("_wm", TIME_TYPE),
    pa.field("_wm_prev", TIME_TYPE),
    pa.field("_control", pa.bool_()),
)

_PLAIN: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}
_AS_THEY_ARE = (
    kinds.is_boolean, kinds.is_signed_integer, kinds.is_float32, kinds.is_float64,
    kinds.is_decimal128, kinds.is_string, kinds.is_binary, kinds.is_date32,
)  # fmt: skip


def spark_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type in which Spark reads a column; None if there is none.

    Widened and never narrowed: an unsigned number gets the next larger signed type, which holds
    all its values. What Spark has no type for is left out, or refused if it was asked for.
    """
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return spark_type(kind.value_type)
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if kinds.is_fixed_size_binary(kind):
        return pa.binary()
    if any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        return kind
    return _PLAIN[kind] if kind in _PLAIN else _nested(kind)


def _nested(kind: pa.DataType) -> pa.DataType | None:
    """Return how Spark reads lists, maps and structs; None if it has no type for a part of it."""
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        value = spark_type(kind.value_type)
        return None if value is None else pa.list_(pa.field("element", value))
    if kinds.is_map(kind):
        key, item = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if kinds.is_struct(kind):
        fields = [(field.name, spark_type(field.type)) for field in kind]
        return None if any(t is None for _, t in fields) else pa.struct(fields)
    return None


def stored_schema(options: SourceOptions) -> pa.Schema:
    """Return the schema of what is stored, in types that Spark takes, watermark included.

    A stream asks when it is started, and again after each restart. What it had the first time wins
    where rejected rows have a place to go: windows and functions are of those types, and a row of
    another type is rejected, not the query.
    """
    if options.watermark and options.columns is not None:
        columns = tuple(dict.fromkeys((*options.columns, EVENT_TIME)))
        options = options.model_copy(update={"columns": columns})
    if options.table:
        # The same whatever is stored, and before anything is.
        on_damage: OnDamage = "flag" if options.partial else "fail"
        known = table_schema(tables()[options.table], options.columns, on_damage)
        readable = _readable(known, must=options.columns is not None)
        return pa.schema([*readable, *(WATERMARK_FIELDS if options.watermark else ())])
    # What the query began with is kept beside its checkpoint. Spark fixes the schema of a stream
    # at its start and compares state by it: a column that changed its type in the quiver must not
    # change the query.
    remembered = recall(options)
    stored = _stored(options, remembered)
    schema = None
    if stored is not None:
        schema = pa.schema(list(_readable(stored, must=options.columns is not None)))
    if options.unfit and schema is not None and remembered is not None:
        # The query's state, and rejected rows, are of the types it began with.
        # New columns go to the end: the order of the others is part of the state.
        schema = _with_new_columns(remembered, schema)
    schema = schema or remembered
    if schema is None:
        raise _unknown(options)
    remember(options, schema)
    added = [_damaged_slots()] if options.partial else []
    return pa.schema([*schema, *added, *(WATERMARK_FIELDS if options.watermark else ())])


def _damaged_slots() -> pa.Field:
    kind = spark_type(DAMAGED_SLOTS.type)
    assert kind is not None, "BUG: Spark has lists of texts"
    return DAMAGED_SLOTS.with_type(kind)


def _stored(options: SourceOptions, remembered: pa.Schema | None) -> pa.Schema | None:
    """Return the columns of what is stored; None if nothing is, or it does not matter."""
    try:
        found = [one for one in (_here(options), *_at_servers(options)) if one is not None]
        return _united(found, options.columns)
    except OwnerGone:
        if remembered is None:
            raise
        return None  # a query that was started before does not need all its gateways to start
    except BadInput:
        if remembered is None or not options.unfit:
            raise
        return None  # a column has other values than it had: what does not fit is rejected


def _with_new_columns(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """Return the columns that a query began with, and behind them those that came since."""
    return pa.schema([*known, *(field for field in found if field.name not in known.names)])


def _here(options: SourceOptions) -> pa.Schema | None:
    """Return the columns of what is sealed in directories and archives; None if nothing is."""
    segments = _known_segments(options)
    files = [file.summary for segment in segments for file in segment.files]
    if not any(file.slot == options.slot or file.kind == OPAQUE for file in files):
        return None
    columns = options.columns
    if columns is not None and (options.quiver or options.nodes):
        known = {
            name for segment in segments for file in segment.files for name in file.schema.names
        }
        columns = tuple(name for name in columns if name in known)  # a server may have the others
    return scan(segments, (), options.slot, columns, TimeRange(), "fail").schema


def _known_segments(options: SourceOptions) -> list[Segment]:
    """Return the sealed segments of all data directories and archives, which are read here."""
    found = [segment for path in options.path for segment in sealed_segments(path)]
    for address in options.archive:
        found += segments_in_archive(address, options)
    return found


def _at_servers(options: SourceOptions) -> Iterable[pa.Schema | None]:
    """Yield the columns of each quiver at a server; it may have only some of those wanted."""
    is_one = len(options.places) == 1 and not options.nodes
    for place in quiver_locations(options):
        if not place.location:
            continue
        quiver = connect(place.location, place.quiver, options.client)
        try:
            yield quiver.schema(options.slot, options.columns)
        except BadInput:
            if is_one or options.columns is None:
                raise
            yield quiver.schema(options.slot)  # perhaps another one has all of them


def _united(found: Sequence[pa.Schema], columns: Sequence[str] | None) -> pa.Schema | None:
    """Return one schema for what several quivers have."""
    if columns is not None:
        found = [pa.schema([f for f in one if f.name in columns]) for one in found]
    if len(found) <= 1:
        return found[0] if found else None
    try:
        united = pa.unify_schemas(
            [pa.schema([_plain(field) for field in one]) for one in found],
            promote_options="permissive",
        )
    except pa.ArrowException as error:
        raise BadInput(
            f"a column has one type in one quiver and another in the next: {error}",
            hint="leave it out with option columns",
        ) from error
    if columns is None:
        return united
    missing = [name for name in columns if name not in united.names]
    if missing:
        raise BadInput(f"no column {', '.join(missing)} in any of the quivers", hint="rename it")
    return pa.schema([united.field(name) for name in columns])


def _plain(field: pa.Field) -> pa.Field:
    """Return a field in a type that can be promoted, where Spark has one."""
    kind = None if kinds.is_null(field.type) else spark_type(field.type)
    return field if kind is None else field.with_type(kind)


def _unknown(options: SourceOptions) -> BadInput:
    """Return the error for a stream whose columns nobody has declared, stored or remembered."""
    files = [file.summary for segment in _known_segments(options) for file in segment.files]
    slots = ", ".join(sorted({file.slot for file in files}))
    return BadInput(
        f"nothing is sealed in slot {options.slot!r} yet, so its columns are not known",
        hint=f"name another with option slot; there are {slots}"
        if slots
        else "give them with .schema(…), or start when there is data",
    )


def _readable(stored: pa.Schema, *, must: bool) -> Iterable[pa.Field]:
    """Yield the columns that Spark can read; one it cannot is an error only if it is asked for."""
    for field in stored:
        kind = spark_type(field.type)
        if kind is not None:
            yield pa.field(field.name, kind)
        elif must:
            raise BadInput(
                f"Spark has no type for column {field.name!r}, which is {field.type}",
                hint="leave it out of `columns`",
            )


def fitter(wanted: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return what gives a batch exactly the columns of a schema; those it lacks are null.

    Spark takes a batch as it was declared, with all columns in their order and types.
    """

    def fit(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for field in wanted:
            place = batch.schema.get_field_index(field.name)
            if place < 0:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                arrays.append(_cast(batch.column(place), field))
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return fit


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in the wanted type; raises `BadInput` if some value does not fit."""
    try:
        return cast(column, field.type)
    except CAST_ERRORS as error:
        raise BadInput(
            f"column {field.name!r} has values of type {column.type} that do not fit "
            f"{field.type}, the type that is wanted: {error}",
            hint="ask for a wider type, or leave the column out",
        ) from error
