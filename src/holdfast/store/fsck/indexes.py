"""Reads the indexes of commits for a check: what can be read, from whatever generation is whole.

The database says which generation of a chunk is current, but the check is about a database that
may be wrong. So an index that cannot be read as it says is looked for among all objects of that
hash: any whole one has the same bytes, and lets the walk go on to everything below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import Damaged, ObjectMissing, StorageFailed
from holdfast.store.chunks.codec import decode
from holdfast.store.filesets.reachable import Reached, children_of
from holdfast.store.fsck.findings import FindingKind, StoreFinding
from holdfast.store.gc.references import References
from holdfast.store.objects.objects import CHUNK_PREFIX, ChunkHash, ChunkKey, Objects

# Keys that are remembered; then all are forgotten, and asked for again.
KEYS_MAX = 100_000


def stored_generations(objects: Objects, hash_: ChunkHash) -> list[ChunkKey]:
    """Return all objects of a chunk, the newest first, whatever the database says."""
    name = hash_.hex()
    listed = objects.list(f"{CHUNK_PREFIX}{name[:2]}/{name}.")
    keys = [key for stored in listed if (key := ChunkKey.parse(stored.key))]
    return sorted(keys, key=lambda key: key.generation, reverse=True)


def whole_object(
    objects: Objects, hash_: ChunkHash, but: ChunkKey | None = None
) -> tuple[ChunkKey, bytes] | None:
    """Return a stored generation of a chunk that is not damaged, and its bytes as stored."""
    for key in stored_generations(objects, hash_):
        if key != but:
            try:
                stored = objects.get(key.object_key())
                decode(stored, key)
            except (Damaged, ObjectMissing, StorageFailed):
                continue
            return key, stored
    return None


def verify(objects: Objects, key: ChunkKey) -> StoreFinding | None:
    """Read one stored chunk; return what is wrong with it. One that is gone is not damaged."""
    try:
        decode(objects.get(key.object_key()), key)
    except ObjectMissing:
        return None
    except (Damaged, StorageFailed) as error:
        return StoreFinding(
            FindingKind.DAMAGED_CHUNK, key.hash, key.generation, detail=error.message
        )
    return None


class IndexReader:
    """Looks into chunks that refer to others, and notes those that are damaged."""

    def __init__(self, objects: Objects, references: References) -> None:
        self._objects = objects
        self._references = references
        self._keys: dict[ChunkHash, ChunkKey] = {}
        self.damaged: dict[ChunkKey, StoreFinding] = {}

    def look_into(self, one: Reached) -> list[Reached] | None:
        """Return the children of a chunk; None if no generation of it can be read."""
        for key, data in self._whole(one.hash):
            try:
                children = children_of(one, data)
            except Damaged as error:
                self._note(key, str(error.message))
                return None
            own = self._keys[one.hash]
            # Asked for together, before the walk comes to them one by one: a query per index chunk
            # would take longer than reading it.
            self._ask([child.hash for child in children if child.use.refers])
            # Too many may have been forgotten just now; this one is asked for next (`generation`).
            self._keys[one.hash] = own
            return children
        return None

    def generation(self, hash_: ChunkHash) -> int:
        """Return the generation that references of a chunk that was read bear in the database."""
        return self._keys[hash_].generation

    def _whole(self, hash_: ChunkHash) -> Iterator[tuple[ChunkKey, bytes]]:
        """Yield a generation of a chunk that can be read, if there is one.

        The one that the database names first. If that is damaged or gone, any other will do: equal
        names are equal bytes, and a check that stopped here would report all that is below as lost.
        """
        if hash_ not in self._keys:
            self._ask([hash_])
        key = self._keys.get(hash_)
        data = self._read(key) if key else None
        if key and data is not None:
            yield key, data
            return
        other = whole_object(self._objects, hash_, but=key)
        if other is not None:
            self._keys.setdefault(hash_, other[0])
            yield other[0], decode(other[1], other[0])

    def _read(self, key: ChunkKey) -> bytes | None:
        try:
            return decode(self._objects.get(key.object_key()), key)
        except ObjectMissing:
            return None
        except (Damaged, StorageFailed) as error:
            self._note(key, error.message)
            return None

    def _note(self, key: ChunkKey, why: str) -> None:
        self.damaged[key] = StoreFinding(
            FindingKind.DAMAGED_CHUNK, key.hash, key.generation, detail=why
        )

    def _ask(self, hashes: Sequence[ChunkHash]) -> None:
        if len(self._keys) > KEYS_MAX:
            self._keys.clear()
        self._keys |= self._references.resolve([h for h in hashes if h not in self._keys])
