"""Builds one layer from changes that come in order of their paths.

Small content shares chunks with its neighbours (`SmallFiles`), so its reference is known only once
the shared chunk is cut. Until then the changes behind it wait here, `WAITING_MAX` of them at most.
A file of very many chunks does not put all of them into the index: long lists of references become
chunks of their own, which one indirect reference stands for.

`IndexWriter` builds the index of the layer: sorted entries in, one root out. Entries are packed
into chunks; each chunk is an 'r' entry of the level above, until one is left. Where a chunk ends
depends on the path alone: behind an entry whose path hashes to a multiple of `CUT_DIVISOR`, once
the chunk has `INDEX_MIN_BYTES`. So an index that differs in one file differs in one chunk of each
level, and comparing two of them, or writing one again, meets equal chunks elsewhere. (At higher
levels it is the range's first path that is hashed, with the level as seed: the last one was chosen
by the cut below, and would cut everywhere.)

A chunk of ranges has at least two of them, whatever their size, unless it is the last of its level:
so each level is half of the one below at most, and an index ends however long its paths are.

A chunk of another layer's index may be taken over by reference where writing it anew would make the
same chunk: `takes_over`. That is so if no entry waits in front of it, and if it ends where the rule
ends it, not because its layer ended there.

Compaction builds one layer of several neighbours, so that reading need not merge so many. Content
is not copied, nor even read; only the index is rewritten, and of that, what one layer alone holds
is taken over by reference. Layers are kept in levels, each `LEVEL_FACTOR` times as large as the
next: then each entry is rewritten a few times in its life, and there are few layers. A run that
begins with the oldest layer becomes a base: with nothing older to take away from, tombstones and
flags are dropped. Any other run keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from xxhash import xxh3_64_intdigest

from holdfast.errors import BadInput
from holdfast.store.chunks.settings import INDEX_ROOM_BYTES
from holdfast.store.chunks.writer import ChunkWriter, PackedFile
from holdfast.store.filesets import bloom
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Change, TagChange, Tombstones, over_nothing
from holdfast.store.filesets.cursor import IndexNodes
from holdfast.store.filesets.entry import (
    IndexEntry,
    file_entry,
    index_of,
    is_plain,
    message_of,
    range_entry,
    tombstone_entries,
)
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.merge import Merge, Source, merged_change, open_layers, open_nodes
from holdfast.store.filesets.paths import Collisions
from holdfast.store.objects.objects import ChunkHash, DataRef
from holdfast.store.store import ChunkStore

if TYPE_CHECKING:
    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store

INDEX_MIN_BYTES = 64 * 1024
INDEX_MAX_BYTES = 1024 * 1024
CUT_DIVISOR = 128
RANGES_MIN = 2


class PutChunk(Protocol):
    """Stores one chunk that refers to others."""

    def __call__(self, data: bytes, children: Sequence[ChunkHash]) -> ChunkHash: ...


class CutRule:
    """Where index chunks end. Stores with smaller chunks have smaller index chunks, too."""

    def __init__(self, chunk_max_bytes: int) -> None:
        self.max_bytes = min(INDEX_MAX_BYTES, chunk_max_bytes)
        self.entry_max_bytes = max(self.max_bytes, INDEX_ROOM_BYTES)
        self.min_bytes = min(INDEX_MIN_BYTES, self.max_bytes // 8)
        self._divisor = max(2, min(CUT_DIVISOR, self.max_bytes // 4096))

    def cuts(self, digest: int) -> bool:
        """Whether a chunk that is large enough ends behind an entry whose path has this hash."""
        return digest % self._divisor == 0


def _digest(level: int, path: str) -> int:
    """Return the hash of a path that decides about cuts of a level."""
    return bloom.path_hash(path) if level == 1 else xxh3_64_intdigest(path.encode(), level)


class _PendingLevel:
    """The entries of one level that are not stored yet."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []
        self.hashes: list[int] = []
        self.size_bytes = 0
        self.last: pb.Index | None = None


class IndexWriter:
    """Takes entries in order of their paths; `close` returns the root, or None without any."""

    def __init__(self, put: PutChunk, rule: CutRule) -> None:
        self._put = put
        self._rule = rule
        self._levels: list[_PendingLevel] = [_PendingLevel()]

    def add(self, entry: IndexEntry) -> None:
        """Take the next 'i' entry."""
        if len(entry.data) > self._rule.entry_max_bytes:
            raise BadInput(
                f"{entry.path!r} has too many tags: its index entry would take "
                f"{len(entry.data)} bytes, and {self._rule.entry_max_bytes} are the most",
                hint="Merge tags that need not be told apart.",
            )
        self._add(1, entry)

    def takes_over(self, index: pb.Index) -> bool:
        """Whether a range of level 1 can be taken as it is."""
        return (
            index.range.level == 1
            and not self._levels[0].entries
            and index.data_op.data_ref[0].size_bytes >= self._rule.min_bytes
            and self._rule.cuts(_digest(1, index.range.last_path))
        )

    def take_over(self, index: pb.Index) -> None:
        """Take a range that is stored already, after `takes_over` agreed."""
        self._add_range(2, index)

    def close(self) -> pb.Index | None:
        """Store what is left, and return the 'r' entry of all."""
        level = 1
        while True:
            waiting = self._levels[level - 1]
            is_top = level == len(self._levels)
            if is_top and level > 1 and len(waiting.entries) == 1:
                return waiting.last
            if is_top and not waiting.entries:
                return None
            if waiting.entries:
                self._cut(level)
            level += 1

    def _add_range(self, level: int, index: pb.Index) -> None:
        if len(self._levels) < level:
            self._levels.append(_PendingLevel())
        self._add(level, range_entry(index), index)

    def _add(self, level: int, entry: IndexEntry, index: pb.Index | None = None) -> None:
        """Put an entry into the open chunk of a level; cut before it or behind it where that ends.

        A level above the first needs two entries in each chunk, or it would be no smaller than the
        one below it, and the index would never come to a root.
        """
        least = 1 if level == 1 else RANGES_MIN
        waiting = self._levels[level - 1]
        is_full = waiting.size_bytes + len(entry.data) > self._rule.max_bytes
        if is_full and len(waiting.entries) >= least:
            self._cut(level)
            waiting = self._levels[level - 1]
        waiting.last = index
        waiting.entries.append(entry)
        waiting.size_bytes += len(entry.data)
        digest = _digest(level, entry.path)
        waiting.hashes.append(digest)
        may_end = waiting.size_bytes >= self._rule.min_bytes and len(waiting.entries) >= least
        if may_end and self._rule.cuts(digest):
            self._cut(level)

    def _cut(self, level: int) -> None:
        """Store the waiting entries of a level as one chunk."""
        waiting = self._levels[level - 1]
        self._levels[level - 1] = _PendingLevel()
        data = b"".join([entry.data for entry in waiting.entries])
        children = dict.fromkeys(child for entry in waiting.entries for child in entry.children)
        address = self._put(data, list(children))
        self._add_range(level + 1, _range_of(waiting, level, pb.Chunk(hash=address), len(data)))


def _range_of(waiting: _PendingLevel, level: int, chunk: pb.Chunk, size_bytes: int) -> pb.Index:
    """Return the entry of the level above: what the chunk spans, and the sums of what it holds."""
    entries = waiting.entries
    return pb.Index(
        path=entries[0].path,
        range=pb.Range(
            last_path=entries[-1].last_path,
            num_files=sum([entry.files for entry in entries]),
            num_entries=sum([entry.entries for entry in entries]),
            level=level,
            bloom=bloom.build(waiting.hashes) if level == 1 else b"",
            plain=all(entry.plain for entry in entries),
        ),
        data_op=pb.DataOp(data_ref=[pb.DataRef(chunk=chunk, size_bytes=size_bytes)]),
        size_bytes=sum([entry.size_bytes for entry in entries]),
    )


# Changes that wait for a chunk of small content to be cut; one more, and it is cut.
WAITING_MAX = 16_384
# References that an index entry holds itself, and those that one chunk of references holds.
INLINE_REFS_MAX = 256
LISTED_REFS_MAX = 4096
# What a reference takes in a chunk of references, at most.
_REF_BYTES = 128

# Content that is stored, or waits for its chunk to be cut.
Content = pb.DataRef | PackedFile


class LayerBuilder:
    """Takes changes in order of their paths; `close` returns the layer."""

    def __init__(
        self, chunks: ChunkStore, writer: ChunkWriter, *, check_collisions: bool = True
    ) -> None:
        self._writer = writer
        self._max_bytes = chunks.chunking.max_bytes
        self._small_bytes = chunks.chunking.small_file_bytes
        self._small = chunks.small_files(writer)
        self._index = IndexWriter(writer.put, CutRule(self._max_bytes))
        self._waiting: deque[tuple[str, Change[Content] | IndexEntry]] = deque()
        self._collisions = Collisions() if check_collisions else None

    def store_small(self, path: str, data: bytes) -> PackedFile:
        """Pack content with its neighbours; it must be added as part of `path` next."""
        return self._small.add(path.encode(), data)

    def cut_pack(self) -> None:
        """Let small content that follows share no chunk with what came before."""
        self._small.flush()

    def add(self, path: str, change: Change[Content]) -> None:
        """Take the next path."""
        if self._collisions and change.present:
            self._collisions.check(path)
        self._wait(path, change)

    def add_again(self, index: pb.Index, data: bytes = b"") -> None:
        """Take the next path as another layer has it: a plain entry, whose content is stored.

        `data` is the entry as it stands in that layer, if it is at hand.
        """
        if self._collisions:
            self._collisions.check(index.path)
        entry = file_entry(index, plain=True, data=data)
        if self._waiting:
            self._wait(entry.path, entry)
        else:
            self._index.add(entry)

    def would_take_over(self, index: pb.Index) -> bool:
        """Whether a range that comes next can be taken as it is, and makes the same index."""
        return not self._waiting and self._index.takes_over(index)

    def takes_over(self, index: pb.Index) -> bool:
        """Take a range as it is, if that makes the same index as its entries would."""
        if not self.would_take_over(index):
            return False
        self._index.take_over(index)
        return True

    def close(self, tombstones: Tombstones = Tombstones()) -> Layer:  # noqa: B008 - immutable
        """Store what waits; the layer is durable after the writer's next barrier."""
        self._small.flush()
        self._drain()
        root = self._index.close()
        refs = [self._put_whole(data) for data in self._tombstone_chunks(tombstones)]
        return Layer(root, tuple(refs), len(tombstones))

    def _wait(self, path: str, change: Change[Content] | IndexEntry) -> None:
        self._waiting.append((path, change))
        if len(self._waiting) > WAITING_MAX:
            self._small.flush()
        self._drain()

    def _drain(self) -> None:
        """Move entries into the index while their content is stored; the rest waits for its pack.

        The index is in order of the paths, so one small file whose pack is open holds up all behind
        it.
        """
        waiting = self._waiting
        while waiting:
            path, change = waiting[0]
            if isinstance(change, IndexEntry):
                self._index.add(change)
            elif _is_stored(change):
                self._index.add(self._entry(path, change))
            else:
                return
            waiting.popleft()

    def _entry(self, path: str, change: Change[Content]) -> IndexEntry:
        parts = {
            tag: TagChange(part.set, self._stored(part.refs)) for tag, part in change.parts.items()
        }
        stored = Change(change.reset, parts, change.metadata)
        return file_entry(index_of(path, stored), plain=is_plain(stored))

    def _stored(self, content: Sequence[Content] | None) -> tuple[pb.DataRef, ...] | None:
        """Return references to stored content; very long lists become chunks of references."""
        if content is None:
            return None
        refs: list[pb.DataRef] = []
        for item in content:
            if isinstance(item, pb.DataRef):
                refs.append(item)
            else:
                refs.extend(map(message_of, item.refs))
        while len(refs) > INLINE_REFS_MAX:
            refs = self._listed(refs)
        return tuple(refs)

    def _listed(self, refs: list[pb.DataRef]) -> list[pb.DataRef]:
        """Store a long list of references; return the few that stand for them."""
        step = max(2, min(LISTED_REFS_MAX, self._max_bytes // _REF_BYTES))
        found = []
        for start in range(0, len(refs), step):
            some = refs[start : start + step]
            data = pb.DataRefs(data_ref=some).SerializeToString(deterministic=True)
            children = dict.fromkeys(ChunkHash(ref.chunk.hash) for ref in some)
            chunk = pb.Chunk(hash=self._writer.put(data, list(children)))
            size_bytes = sum([ref.size_bytes for ref in some])
            found.append(pb.DataRef(chunk=chunk, size_bytes=size_bytes, indirect=True))
        return found

    def _tombstone_chunks(self, tombstones: Tombstones) -> list[bytes]:
        data = tombstone_entries(tombstones.folders)
        return [
            data[start : start + self._max_bytes] for start in range(0, len(data), self._max_bytes)
        ]

    def _put_whole(self, data: bytes) -> DataRef:
        return DataRef(self._writer.put(data), 0, len(data))


def _is_stored(change: Change[Content]) -> bool:
    return all(
        isinstance(item, pb.DataRef) or item.is_cut
        for part in change.parts.values()
        for item in part.refs or ()
    )


LEVEL_FACTOR = 10


def plan(layers: Sequence[Layer], level_factor: int = LEVEL_FACTOR) -> int:
    """Return from which layer on all are to become one; their number if they are well as they are.

    They are well if each has at least `level_factor` times the entries of all newer ones together.
    """
    if level_factor < 1:
        raise BadInput(f"a level factor of {level_factor} makes no levels", hint="Use at least 1.")
    start, newer = len(layers), 0
    for number in range(len(layers) - 1, -1, -1):
        weight = layers[number].entries + layers[number].num_tombstones
        if number < len(layers) - 1 and weight < level_factor * newer:
            start = number
        newer += weight
    return start


class Compact(Protocol):
    """What `compact` does, in this process or in many."""

    def __call__(
        self,
        store: Store,
        job: Job,
        layers: Sequence[Layer],
        /,
        *,
        level_factor: int = LEVEL_FACTOR,
        whole: bool = False,
    ) -> list[Layer]: ...


def compact(
    store: Store,
    job: Job,
    layers: Sequence[Layer],
    *,
    level_factor: int = LEVEL_FACTOR,
    whole: bool = False,
) -> list[Layer]:
    """Return layers that say the same, in levels; with `whole`, one layer.

    The commit that the layers come from must stay, or be pinned, until the new one is made.
    """
    start = plan(layers, level_factor) if not whole else 0
    run = layers[start:]
    if not run or (len(run) == 1 and not whole):
        return list(layers)
    with store.chunks.writer(job) as writer:
        merged = compact_run(store, writer, run, is_base=start == 0)
    seq = max(layer.seq for layer in run)
    kept = list(layers[:start])
    if merged.index is None and not merged.num_tombstones:
        return kept
    return [*kept, merged.at(seq)]


def compact_run(store: Store, writer: ChunkWriter, run: Sequence[Layer], *, is_base: bool) -> Layer:
    """Return the one layer that some neighbouring ones make, written by `writer`."""
    reader = store.chunks.reader()
    builder = LayerBuilder(store.chunks, writer, check_collisions=False)
    sources = open_layers(reader, run)
    return merge_into(builder, open_nodes(reader), sources, is_base=is_base, by_reference=True)


def merge_into(
    builder: LayerBuilder,
    nodes: IndexNodes,
    sources: Sequence[Source],
    *,
    is_base: bool,
    by_reference: bool,
) -> Layer:
    """Write the merge of some layers; `by_reference` takes over what one layer alone holds."""
    gone = add_merged(builder, nodes, sources, is_base=is_base, by_reference=by_reference)
    return builder.close(gone)


def add_merged(
    builder: LayerBuilder,
    nodes: IndexNodes,
    sources: Sequence[Source],
    *,
    is_base: bool,
    by_reference: bool,
    within: tuple[str, str | None] = ("", None),
) -> Tombstones:
    """Add what some layers make of the paths from lo on and before hi; return their tombstones.

    Several ranges, one after the other, make the same layer as all paths at once.
    """
    gone = Tombstones([folder for source in sources for folder in source.tombstones.folders])

    def take_range(index: pb.Index) -> bool:
        first, last = index.path, index.range.last_path
        bare = is_base or gone.covers_all(first, last)
        if bare and not index.range.plain:
            return False
        if not bare and gone.touch(first, last):
            return False
        return builder.takes_over(index)

    merge = Merge(nodes, sources, *within)
    for path, indexes in merge.entries(take_range if by_reference else None):
        change = merged_change(indexes, path)
        if is_base or gone.covers(path):
            bare_change = over_nothing(change)
            if bare_change is None:
                continue
            change = bare_change
        builder.add(path, change)
    return Tombstones() if is_base else gone
