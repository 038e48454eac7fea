"""Compaction of large file sets on Spark: tasks merge ranges of paths, the driver joins them.

Where an index is cut depends on its paths alone, but for the first chunks behind a border: how much
waits there depends on what came before. So a task gives back the leaves of its range. The driver
takes over those that it would have cut itself; of the others, a few at each border, it takes the
entries. What comes out is the index that a compaction in one process makes, chunk by chunk.

Tasks only read. A leaf is sent to the driver with the list of all that it refers to, because the
driver notes these references; that is most of its bytes, so storing it from the task would spare
little. Leaves that one layer alone holds are taken over by name: of them nothing is read or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holdfast.dataflow.filesets.shipping import ShippedPart, Shipper, absolute
from holdfast.store.chunks.writer import ChunkWriter
from holdfast.store.filesets import FileSet, Layer
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones
from holdfast.store.filesets.entry import change_of, parse_node
from holdfast.store.filesets.layer_builder import LEVEL_FACTOR, LayerBuilder, add_merged, plan
from holdfast.store.objects.objects import ChunkHash, hash_of
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Buffer

    from holdfast.store.gc.leases import Job

# Entries of one task: their index takes about 30 MB, in the task and then in the driver.
SHARD_FILES = 100_000
SHARD_BYTES = 2**62
# Tasks of one Spark job, for each core: the driver holds what all of them give back.
WAVE_PER_CORE = 2


class Leaf(NamedTuple):
    """A leaf of the merged index: the entry for it, and its bytes and children if it is new."""

    entry: bytes
    data: bytes | None
    children: tuple[ChunkHash, ...]


# Runs a function on each part, and yields the results in order.
RunTasks = Callable[
    [Callable[[ShippedPart], list[Leaf]], Sequence[ShippedPart]], Iterable[list[Leaf]]
]


def compact_on_spark(
    spark: SparkSession,
    store: Store,
    job: Job,
    layers: Sequence[Layer],
    *,
    level_factor: int = LEVEL_FACTOR,
    whole: bool = False,
    shard_files: int = SHARD_FILES,
) -> list[Layer]:
    """Do what `compact` does, with the same result.

    The commit that the layers come from must stay, or be pinned, until the new one is made.
    """
    start = 0 if whole else plan(layers, level_factor)
    run = layers[start:]
    if not run or (len(run) == 1 and not whole):
        return list(layers)
    merged = merge_in_parts(
        partial(_run_on_spark, spark), store, job, run, is_base=start == 0, shard_files=shard_files
    )
    if merged.index is None and not merged.num_tombstones:
        return list(layers[:start])
    return [*layers[:start], merged.at(max(layer.seq for layer in run))]


def merge_in_parts(
    run_tasks: RunTasks,
    store: Store,
    job: Job,
    run: Sequence[Layer],
    *,
    is_base: bool,
    shard_files: int = SHARD_FILES,
) -> Layer:
    """Return the one layer that some neighbouring ones make."""
    files = FileSet(store, run)
    shipper = Shipper(files, store.references)
    parts = list(shipper.parts(max_files=shard_files, max_bytes=SHARD_BYTES))
    gone = Tombstones([folder for source in files.sources for folder in source.tombstones.folders])
    with store.chunks.writer(job) as writer:
        builder = LayerBuilder(store.chunks, writer, check_collisions=False)
        for leaves in run_tasks(partial(merge_part, absolute(store.url), is_base), parts):
            for leaf in leaves:
                _join(files, writer, builder, leaf)
        return builder.close(Tombstones() if is_base else gone)


def _join(files: FileSet, writer: ChunkWriter, builder: LayerBuilder, leaf: Leaf) -> None:
    index, data = pb.Index.FromString(leaf.entry), leaf.data
    if data is not None:
        # Also if it is not taken over: it has to be stored before what refers to it.
        writer.put(data, leaf.children)
    if builder.takes_over(index):
        return
    if data is None:
        data = files.reader.read_chunk(_address(index))
    node = parse_node(data, f"chunk {_address(index).hex()}")
    for path, entry in zip(node.paths, node.indexes, strict=True):
        builder.add(path, change_of(entry, path))


def _run_on_spark(
    spark: SparkSession, task: Callable[[ShippedPart], list[Leaf]], parts: Sequence[ShippedPart]
) -> Iterator[list[Leaf]]:
    """Yield the leaves of all parts, a few parts for each core at a time.

    The driver holds what tasks return until it is written: a wave bounds how much that is.
    """
    context = spark.sparkContext
    wave = WAVE_PER_CORE * context.defaultParallelism
    for first in range(0, len(parts), wave):
        some = parts[first : first + wave]
        yield from context.parallelize(some, len(some)).map(task).collect()


# ------------------------------------------------------------------------------ in tasks


class _KeptChunks(ChunkWriter):
    """Stands for the writer of a store where nothing is stored: keeps the chunks."""

    def __init__(self) -> None:
        self.chunks: dict[ChunkHash, tuple[bytes, tuple[ChunkHash, ...]]] = {}

    def put(self, data: Buffer, children: Sequence[ChunkHash] = ()) -> ChunkHash:
        """Keep a chunk."""
        address = hash_of(data)
        self.chunks[address] = (bytes(data), tuple(children))
        return address


def merge_part(url: str, is_base: bool, part: ShippedPart) -> list[Leaf]:
    """Return the leaves of the index that some layers make of a range of paths."""
    with Store.open_objects(url) as store:
        files = FileSet(store, part.layers, keys=part.found_keys())
        kept = _KeptChunks()
        builder = LayerBuilder(store.chunks, kept, check_collisions=False)
        add_merged(
            builder, files.nodes, files.sources,
            is_base=is_base, by_reference=True, within=(part.lo, part.hi),
        )  # fmt: skip
        root = builder.close().index
    return list(_leaves(kept, root)) if root is not None else []


def _leaves(kept: _KeptChunks, index: pb.Index) -> Iterator[Leaf]:
    data, children = kept.chunks.get(_address(index), (None, ()))
    if index.range.level == 1:
        yield Leaf(index.SerializeToString(deterministic=True), data, children)
        return
    assert data is not None, "BUG: only leaves are taken over"
    for inner in parse_node(data, "an index that was just made").indexes:
        yield from _leaves(kept, inner)


def _address(index: pb.Index) -> ChunkHash:
    return ChunkHash(index.data_op.data_ref[0].chunk.hash)
