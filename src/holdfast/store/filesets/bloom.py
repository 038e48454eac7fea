"""A Bloom filter over the paths of an index chunk: says which it certainly does not hold."""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

BITS_PER_PATH = 10
PROBES = 7
_HALF = 32
_LOW = (1 << _HALF) - 1
_ONE = ord("1")


def path_hash(path: str) -> int:
    """Return the 64 bits that decide about a path, in filters and in cuts."""
    return xxh3_64_intdigest(path.encode())


def build(hashes: Sequence[int]) -> bytes:
    """Return the filter of some paths, given by their hashes."""
    size_bytes = (len(hashes) * BITS_PER_PATH + 7) // 8
    size_bits = size_bytes * 8
    # The highest bit first, as digits: setting one is a single step, and all become bytes at once.
    digits = bytearray(b"0") * size_bits
    highest = size_bits - 1
    for value in hashes:
        first, step = value & _LOW, value >> _HALF | 1
        for probe in range(first, first + step * PROBES, step):
            digits[highest - probe % size_bits] = _ONE
    return int(digits or b"0", 2).to_bytes(size_bytes, "little")


def may_hold(bloom: bytes, path: str) -> bool:
    """Whether a path may be among those the filter was built of."""
    if not bloom:
        return True
    value = path_hash(path)
    first, step = value & _LOW, value >> _HALF | 1
    size_bits = len(bloom) * 8
    for probe in range(first, first + step * PROBES, step):
        bit = probe % size_bits
        if not bloom[bit >> 3] >> (bit & 7) & 1:
            return False
    return True
