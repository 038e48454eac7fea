"""Dictionary columns that carry only what their rows use.

On a stream the dictionary of a column holds every value that it ever had. A batch that is stored
must stand for itself, and a thousand rows shall not bring along sixty thousand values of others.

Nor shall they cost as much: a message of some hundred bytes may add one value to a dictionary of
many megabytes, or use one of it. So nothing here takes longer, or more memory, because of values
that a batch does not use.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.signals.otap.numpy_columns import Numbers, column_of, numbers_of, present
from holdfast.signals.otap.problem import NotOtap

# A dictionary with so many values for each row is searched; a smaller one is marked and counted
# through, which is faster for the same result.
_SPARSE_VALUES_PER_ROW = 4


class GrowingDictionary:
    """The values of a dictionary, to which messages add some.

    Joined with every message, all that a stream has brought would be copied for a few bytes; kept
    as they come, a few bytes would be an object each. So a piece is joined with the one before it
    once it is as long: n values make about log n pieces, and each is copied about log n times.
    """

    def __init__(self, values: pa.Array) -> None:
        self._pieces = [values]
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    def add(self, values: pa.Array) -> None:
        """Put values behind those that are known."""
        pieces = self._pieces
        pieces.append(values)
        self._length += len(values)
        while len(pieces) > 1 and len(pieces[-2]) <= len(pieces[-1]):
            pieces[-2:] = [pa.concat_arrays(pieces[-2:])]

    def whole(self) -> pa.Array:
        """Return all values."""
        if len(self._pieces) > 1:
            self._pieces = [pa.concat_arrays(self._pieces)]
        return self._pieces[0]

    def take(self, places: Numbers) -> pa.Array:
        """Return the values at places, which are in ascending order."""
        found: list[pa.Array] = []
        start = 0
        wanted = places.astype("<i8")
        for piece in self._pieces:
            first, end = np.searchsorted(wanted, (start, start + len(piece)))
            if first < end or not found:
                found.append(piece.take(column_of(wanted[first:end] - start, pa.int64())))
            start += len(piece)
        return found[0] if len(found) == 1 else pa.concat_arrays(found)


def index_dtype(kind: pa.DataType) -> str:
    """Return numpy's name of a type of whole numbers."""
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    return f"<{sign}{kind.bit_width // 8}"


def own_dictionary(
    indices: pa.Array, values: GrowingDictionary, kind: pa.DictionaryType
) -> pa.Array:
    """Return a column of these indices whose dictionary holds the values that it has, no others.

    An index of a null value becomes null itself, so that nobody has to look in two places.
    """
    dtype = index_dtype(indices.type)
    places, flags = numbers_of(indices, dtype), present(indices)
    used_places = places if flags is None else places[flags]
    if len(used_places) and not 0 <= used_places.min() <= used_places.max() < len(values):
        raise NotOtap("an index is outside its dictionary")
    is_sparse = len(values) > _SPARSE_VALUES_PER_ROW * len(places)
    used = np.unique(used_places) if is_sparse else _marked(used_places, len(values))
    kept = values.whole() if len(used) == len(values) else values.take(used)
    sound = present(kept)
    if sound is None and len(used) == len(values):
        return pa.DictionaryArray.from_arrays(indices, kept, ordered=kind.ordered)
    # What stands for a null may be anything.
    anywhere = used[0] if len(used) else 0
    safe = places if flags is None else np.where(flags, places, anywhere)
    at = np.searchsorted(used, safe) if is_sparse else _ranks(used, len(values))[safe]
    if sound is not None:
        flags = sound[at] if flags is None else flags & sound[at]
        at = np.maximum(np.cumsum(sound) - 1, 0)[at]
        kept = kept.take(column_of(np.flatnonzero(sound).astype("<i8"), pa.int64()))
    written = column_of(at.astype(dtype), indices.type, flags)
    return pa.DictionaryArray.from_arrays(written, kept, ordered=kind.ordered)


def _marked(places: Numbers, count: int) -> Numbers:
    """Return the different ones of some places below a count, in ascending order."""
    marks = np.zeros(count, np.bool_)
    marks[places] = True
    return np.flatnonzero(marks)


def _ranks(used: Numbers, count: int) -> Numbers:
    """Return of every place below a count which of the used ones it is."""
    ranks = np.zeros(max(1, count), np.int64)
    ranks[used] = np.arange(len(used))
    return ranks
