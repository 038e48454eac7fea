"""What one collector may do: its part of the hashes, and how fast it may delete.

A shard is a part of the hashes, by their first bits, so that several collectors share the work.
Shards save work and decide nothing: two collectors on one shard do the same things twice, safely.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.errors import BadInput
from holdfast.seam.clock import Clock
from holdfast.seam.rate import TokenBucket
from holdfast.store.objects.objects import CHUNK_PREFIX, HASH_BYTES, ChunkHash

# Shards are cut at the first byte of a hash, as the folders of the objects are.
SHARDS_MAX = 256


class Shard(NamedTuple):
    """Part number `part`, from 0, of so many `parts`."""

    part: int = 0
    parts: int = 1

    @classmethod
    def parse(cls, words: str) -> Shard:
        """Return the shard that is written as `2/8`: the second of eight."""
        found = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", words)
        shard = cls(int(found[1]) - 1, int(found[2])) if found else cls(-1)
        if not (0 <= shard.part < shard.parts <= SHARDS_MAX):
            raise BadInput(
                f"{words!r} is not a shard",
                hint=f"write 1/1, or 2/8 for the second of eight; at most {SHARDS_MAX}",
            )
        return shard

    def __str__(self) -> str:
        return f"{self.part + 1}/{self.parts}"

    @property
    def first(self) -> int:
        """The lowest first byte of its hashes."""
        return self.part * SHARDS_MAX // self.parts

    @property
    def end(self) -> int:
        """The first byte behind them; 256 if there is none."""
        return (self.part + 1) * SHARDS_MAX // self.parts

    def holds(self, hash_: ChunkHash) -> bool:
        """Say whether a hash belongs to this shard."""
        return self.first <= hash_[0] < self.end

    @property
    def condition(self) -> str:
        """What is true of rows of this shard, in SQL, with what `bounds` says."""
        # Of the whole nothing is said: with bounds, SQLite might walk all rows, and not the index
        # of those that are looked for.
        whole = self.parts == 1
        return "TRUE" if whole else "hash >= :shard_first AND hash < :shard_end"

    def bounds(self) -> dict[str, bytes]:
        """Return what `condition` is given."""
        # Longer than any hash, and so behind all of them.
        end = bytes([self.end]) if self.end < SHARDS_MAX else b"\xff" * (HASH_BYTES + 1)
        return {"shard_first": bytes([self.first]), "shard_end": end}

    def prefixes(self) -> Iterator[str]:
        """Yield the prefixes of its objects."""
        for byte in range(self.first, self.end):
            yield f"{CHUNK_PREFIX}{byte:02x}/"


# What may be deleted in one go: as much as the rate allows in this time.
BURST_S = 1.0


class DeleteRate:
    """How fast a collector may delete; safe for several threads."""

    def __init__(
        self,
        objects_per_s: float | None,
        bytes_per_s: float | None,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._objects = _bucket(objects_per_s, clock) if objects_per_s else None
        self._bytes = _bucket(bytes_per_s, clock) if bytes_per_s else None
        self._burst_objects = max(1, int(objects_per_s * BURST_S)) if objects_per_s else None
        self._wait = wait
        self._lock = threading.Lock()

    def batch(self, objects: int) -> int:
        """Return how many objects to delete with one request, if there are that many."""
        return objects if self._burst_objects is None else min(objects, self._burst_objects)

    def wait_for(self, objects: int, size_bytes: int) -> None:
        """Wait until this much may be deleted."""
        with self._lock:
            wait_s = max(
                self._objects.take(objects) if self._objects else 0.0,
                self._bytes.take(size_bytes) if self._bytes else 0.0,
            )
        if wait_s > 0:
            self._wait(wait_s)


def _bucket(per_s: float, clock: Clock) -> TokenBucket:
    return TokenBucket(per_s, per_s * BURST_S, clock)
