"""Dictionary columns that carry only what their rows use.

On a stream the dictionary of a column holds every value that it ever had. A batch that is stored
must stand for itself, and a thousand rows shall not bring along sixty thousand values of others.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.signals.otap.numpy_columns import column_of, numbers_of, present
from holdfast.signals.otap.problem import NotOtap


def index_dtype(kind: pa.DataType) -> str:
    """Return numpy's name of a type of whole numbers."""
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    return f"<{sign}{kind.bit_width // 8}"


def own_dictionary(indices: pa.Array, values: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    """Return a column of these indices whose dictionary holds the values that it has, no others.

    An index of a null value becomes null itself, so that nobody has to look in two places.
    """
    dtype = index_dtype(indices.type)
    places = numbers_of(indices, dtype)
    flags = present(indices)
    used_places = places if flags is None else places[flags]
    if len(used_places) and not 0 <= used_places.min() <= used_places.max() < len(values):
        raise NotOtap("an index is outside its dictionary")
    used = np.zeros(len(values), np.bool_)
    used[used_places] = True
    sound = present(values)
    if sound is not None:
        used &= sound
    if used.all():
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)
    # What stands for a null may be anything; the first place is as good as any.
    safe = places if flags is None else np.where(flags, places, 0)
    if sound is not None:
        flags = sound[safe] if flags is None else flags & sound[safe]
    renumbered = np.maximum(np.cumsum(used) - 1, 0)[safe].astype(dtype)
    kept = values.take(column_of(np.flatnonzero(used).astype("<i8"), pa.int64()))
    written = column_of(renumbered, indices.type, flags)
    return pa.DictionaryArray.from_arrays(written, kept, ordered=kind.ordered)
