"""Arrow columns as numpy arrays and back.

Without `pyarrow.array` and `to_numpy`: those import pandas where it is installed, which is 60 MB in
a process that has no use for it (see `quiver/base/arrow.py`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


def numbers_of(column: pa.Array, dtype: str) -> Numbers:
    """Return the values of a column of fixed width, without a copy; what stands for nulls, too."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype)
    whole = np.frombuffer(buffer, dtype, column.offset + len(column))
    return whole[column.offset :]


def present(column: pa.Array) -> Flags | None:
    """Return which rows are not null; None if none is."""
    if not column.null_count:
        return None
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    flags = np.unpackbits(bits, bitorder="little", count=column.offset + len(column))
    return flags[column.offset :].astype(np.bool_)


def bits_of(column: pa.Array) -> Flags:
    """Return the values of a column of booleans."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column), np.bool_)
    bits = np.frombuffer(buffer, np.uint8)
    flags = np.unpackbits(bits, bitorder="little", count=column.offset + len(column))
    return flags[column.offset :].astype(np.bool_)


def packed(flags: Flags) -> pa.Buffer:
    """Return flags as a buffer of bits."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def column_of(values: Numbers, kind: pa.DataType, flags: Flags | None = None) -> pa.Array:
    """Return numbers as a column of a type of their width; null where a flag is not set."""
    validity = None if flags is None else packed(flags)
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity, data])
