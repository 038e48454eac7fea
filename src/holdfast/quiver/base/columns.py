"""Arrow columns and scalars of Python values, without `pyarrow.array` and `pyarrow.scalar`.

Those look whether they are given something of pandas, and import it for that where it is installed:
60 MB of memory, and a second of a sealer's time, in a process that has no use for it. Constants in
`pyarrow.compute` are scalars too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

# By the width of a type in bits; all numbers are signed.
_CODES = {8: "b", 32: "i", 64: "q"}


def numbers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return whole numbers, or times as such, as a column."""
    present = _present(values)
    filled = [value or 0 for value in values]
    data = pa.py_buffer(array(_CODES[kind.bit_width], filled))
    return pa.Array.from_buffers(kind, len(filled), [present, data])


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return texts as a column."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = pa.py_buffer(array("i", accumulate(map(len, encoded), initial=0)))
    buffers = [_present(values), offsets, pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def constant(value: int, kind: pa.DataType) -> pa.Scalar:
    """Return one number, time or duration."""
    return numbers([value], kind)[0]


def _present(values: Sequence[object]) -> pa.Buffer | None:
    """Return the bitmap of those that are not None; None if all are there."""
    if None not in values:
        return None
    bits = bytearray(-(-len(values) // 8))
    for place, value in enumerate(values):
        if value is not None:
            bits[place >> 3] |= 1 << (place & 7)
    return pa.py_buffer(bytes(bits))
