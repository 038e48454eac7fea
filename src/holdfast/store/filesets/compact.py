"""Compaction: neighbouring layers become one, so that reading need not merge so many.

Content is not copied, nor even read; only the index is written anew, and of that, what one layer
alone holds is taken over by reference. Layers are kept in levels, each `LEVEL_FACTOR` times as
large as the next: then each entry is rewritten a few times in its life, and there are few layers.

A run that begins with the oldest layer becomes a base: with nothing older to take away from,
tombstones and flags are dropped. Any other run keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import BadInput
from holdfast.store.chunks import ChunkWriter
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones, over_nothing
from holdfast.store.filesets.cursor import IndexNodes
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import LayerBuilder
from holdfast.store.filesets.merge import Merge, Source, merged_change
from holdfast.store.filesets.sources import open_layers, open_nodes

if TYPE_CHECKING:
    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store

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
