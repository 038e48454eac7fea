"""Sample batches for tests, and their rows as plain Python values that can be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pyarrow as pa
from tests.quiver.machine import quiet

from holdfast.quiver import Extractor, Quiver, QuiverConfig, SegmentConfig
from holdfast.quiver.segments.segment import Segment

ENVELOPE = ("_seq", "_row", "_ingestion_time", "_event_time", "_event_time_flag")


def numbers(*values: int | None, column: str = "n") -> pa.RecordBatch:
    """Return a batch with one column of whole numbers."""
    return pa.record_batch({column: pa.array(values, pa.int64())})


def quiet_segments(**changes: Any) -> QuiverConfig:
    """Return a configuration under which nothing happens by itself, with other segment options."""
    config = quiet()
    segment: SegmentConfig = replace(config.segment, **changes)
    return replace(config, segment=segment)


def extracting(extractor: Extractor, slot: str = "events") -> QuiverConfig:
    """Return a configuration with an extractor for one slot."""
    return replace(quiet(), extractors={slot: extractor})


def seal(quiver: Quiver) -> Segment:
    """Seal the open buffer and return the newest segment."""
    quiver.flush()
    return quiver.segments()[-1]


def data_paths(segment: Segment) -> list[PurePath]:
    """Return where the rows of a segment are."""
    return [segment.path / file.name for file in segment.summary.files]


def column_of(quiver: Quiver, name: str = "n", **scan: Any) -> list[Any]:
    """Return the values of one column, from everything stored."""
    return [value for (value,) in plain_rows(quiver.scan([name], **scan).read_all())]


def own_rows(quiver: Quiver, seq: int, slot: str = "events") -> list[tuple[Any, ...]]:
    """Return the rows of one slot of one bundle."""
    bundle = quiver.bundle(seq)
    assert bundle is not None, f"no bundle {seq}"
    return plain_rows(bundle.slots[slot])


def plain_rows(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return rows as tuples of comparable values, however they are encoded."""
    columns = [[plain(value) for value in column] for column in table.columns]
    return list(zip(*columns, strict=True))


def plain(scalar: pa.Scalar) -> Any:
    """Return a scalar as a Python value that equals another one exactly when the data does.

    Dictionaries and runs count by their values; floats by their bits, so that not-a-numbers are
    equal and zeros of two signs are not; times stay whole numbers, because Python has neither their
    range nor their nanoseconds.
    """
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar | pa.RunEndEncodedScalar):
        return plain(scalar.value)
    if isinstance(scalar, pa.UnionScalar):
        return (scalar.type_code, plain(scalar.value))
    if isinstance(scalar, pa.StructScalar):
        return {name: plain(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.MapScalar):
        return plain_rows(pa.RecordBatch.from_struct_array(scalar.values))
    if hasattr(scalar, "values"):
        return [plain(value) for value in scalar.values]
    value = scalar.value if hasattr(scalar, "value") else scalar.as_py()
    return value.hex() if isinstance(value, float) else value
