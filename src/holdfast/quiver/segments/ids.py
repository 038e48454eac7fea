"""A Bloom filter on the ids in a data file: says which it certainly does not hold.

Somebody who asks what became of a trace would otherwise have every payload of the last days read.
The filter is a file beside the data file, a few bits for each id, and its checksum stands in the
manifest. It is only ever a reason not to read: without it, or if it is damaged, the rows are read.

Ids are those of the rows' items, as an extractor gives them (`search_ids`). They are not trusted to
be random, so their bits are mixed first. All of it is arithmetic of Arrow on whole columns: the
sealer has a hundred thousand ids at once, in a process that also answers requests.
"""

from __future__ import annotations

import struct
from array import array

import pyarrow as pa

from holdfast.quiver.base import compute as pc

ID_BYTES = 16
# One wrong answer in a hundred: then a file is read in vain.
BITS_PER_ID = 10
PROBES = 7

_HALVES = struct.Struct("<QQ")
_ONES = 2**64 - 1
_LOW = 2**32 - 1
_HALF = 32
_FIRST, _SECOND, _SHIFT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 29


def build(ids: pa.Array) -> pa.Buffer:
    """Return the filter of some ids of `ID_BYTES` each; of none it is empty."""
    distinct = pc.unique(ids)
    size_bits = -(-len(distinct) * BITS_PER_ID // 8) * 8
    if not size_bits:
        return pa.py_buffer(b"")
    words = array("Q", distinct.buffers()[1].slice(0, len(distinct) * ID_BYTES).to_pybytes())
    high, low = (_column(words[half::2]) for half in (0, 1))
    mixed = pc.bit_wise_xor(pc.multiply(high, _word(_FIRST)), low)
    mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, _word(_HALF)))
    mixed = pc.multiply(mixed, _word(_SECOND))
    mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, _word(_SHIFT)))
    probe = pc.bit_wise_and(mixed, _word(_LOW))
    step = pc.bit_wise_or(pc.shift_right(mixed, _word(_HALF)), _word(1))
    bits = []
    for _ in range(PROBES):
        bits.append(pc.shift_right(pc.multiply(probe, _word(size_bits)), _word(_HALF)))
        probe = pc.bit_wise_and(pc.add(probe, step), _word(_LOW))
    # Put in their own places, whatever the values: Arrow notes in a bit for each which have one.
    places = pa.concat_arrays(bits).cast(pa.int32())
    is_set = pc.is_valid(pc.scatter(places, places, max_index=size_bits - 1))
    return is_set.buffers()[1].slice(0, size_bits // 8)


def may_hold(bits: bytes, id_: bytes) -> bool:
    """Whether an id may be among those that the filter was built of."""
    size_bits = len(bits) * 8
    high, low = _HALVES.unpack(id_)
    mixed = (high * _FIRST & _ONES) ^ low
    mixed ^= mixed >> _HALF
    mixed = mixed * _SECOND & _ONES
    mixed ^= mixed >> _SHIFT
    probe, step = mixed & _LOW, mixed >> _HALF | 1
    for _ in range(PROBES if size_bits else 0):
        bit = probe * size_bits >> _HALF
        if not bits[bit >> 3] >> (bit & 7) & 1:
            return False
        probe = probe + step & _LOW
    return size_bits > 0


def _column(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.uint64(), len(values), [None, pa.py_buffer(values)])


def _word(value: int) -> pa.Scalar:
    return _column(array("Q", [value]))[0]
