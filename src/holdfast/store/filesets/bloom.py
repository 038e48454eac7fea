"""A Bloom filter over the paths of an index chunk: says which it certainly does not hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

BITS_PER_PATH = 10
PROBES = 7
_HALF = 32
_LOW = (1 << _HALF) - 1


def path_hash(path: str) -> int:
    """Return the 64 bits that decide about a path, in filters and in cuts."""
    return xxh3_64_intdigest(path.encode())


def build(hashes: Sequence[int]) -> bytes:
    """Return the filter of some paths, given by their hashes."""
    values = np.array(hashes, np.uint64)
    size_bytes = (len(hashes) * BITS_PER_PATH + 7) // 8
    first = values & np.uint64(_LOW)
    step = (values >> np.uint64(_HALF)) | np.uint64(1)
    probes = first[:, None] + step[:, None] * np.arange(PROBES, dtype=np.uint64)
    bits = np.zeros(size_bytes * 8, np.uint8)
    bits[probes % np.uint64(size_bytes * 8)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def may_hold(bloom: bytes, path: str) -> bool:
    """Whether a path may be among those the filter was built of."""
    if not bloom:
        return True
    value = path_hash(path)
    first, step = value & _LOW, value >> _HALF | 1
    size_bits = len(bloom) * 8
    for probe in range(PROBES):
        bit = (first + step * probe) % size_bits
        if not bloom[bit >> 3] >> (bit & 7) & 1:
            return False
    return True
