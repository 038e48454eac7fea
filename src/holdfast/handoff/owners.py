"""Who owns a part: rendezvous hashing of blocks of consecutive seqs.

The numbers of a quiver are cut into blocks of `block_seqs`. For every block each data node draws a
number, a hash of the block and of the node's name, and the `replicas` highest own it. So a node
that comes or goes changes only the blocks that it owns, and nobody has to keep a table.

Blocks, and not parts, because of what a data node has to remember: of consecutive parts its
intervals grow together into one. And a block must hold many parts, because one that lies across a
border goes to the owners of both sides. That is on purpose: what a node does *not* own can then be
computed from the numbers alone, at any time, also when the segment is long gone.

Nodes come and go. A `Placement` says from which seq on it holds, and the former ones are kept:
nothing that was accepted is silently given to others. Only `without` rewrites the past, when a node
is forgotten and others are to have what waited for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xxhash import xxh3_64_intdigest

from holdfast.errors import BadInput

# At 10,000 bundles a second a block lasts for 100 s, in which some 20 segments are sealed.
BLOCK_SEQS = 1 << 20
# Changes of membership that are remembered. Of the oldest one forgets only who does not own what.
PLACEMENTS_MAX = 1000


@dataclass(frozen=True)
class Placement:
    """Which data nodes share the seqs from one number on."""

    from_seq: int
    # Sorted: the order of a configuration means nothing.
    nodes: tuple[str, ...]
    # How many of them own a block; None: all.
    replicas: int | None = None
    block_seqs: int = BLOCK_SEQS

    def __post_init__(self) -> None:
        if self.replicas is not None and self.replicas < 1:
            raise BadInput(f"replicas is {self.replicas}", hint="use at least 1, or None for all")
        if self.block_seqs < 1:
            raise BadInput(f"block_seqs is {self.block_seqs}", hint="use a positive number")
        if list(self.nodes) != sorted(set(self.nodes)):
            raise BadInput(f"nodes are {self.nodes}", hint="name each data node once, sorted")

    @property
    def owns_all(self) -> bool:
        """Whether every node owns everything."""
        return self.replicas is None or self.replicas >= len(self.nodes)

    def owners(self, quiver_id: str, seq: int) -> frozenset[str]:
        """Return the nodes that own a seq, and the whole block around it."""
        if self.owns_all:
            return frozenset(self.nodes)
        block = f"{quiver_id}/{seq // self.block_seqs}/"
        # By name where two drew the same, which is as good as any other rule.
        drawn = sorted(
            ((xxh3_64_intdigest((block + name).encode()), name) for name in self.nodes),
            reverse=True,
        )
        return frozenset(name for _, name in drawn[: self.replicas])

    def to_fields(self) -> dict[str, Any]:
        """Return the placement as JSON can hold it."""
        return {
            "from_seq": self.from_seq,
            "nodes": list(self.nodes),
            "replicas": self.replicas,
            "block_seqs": self.block_seqs,
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Placement:
        """Return what `to_fields` gave."""
        return cls(
            fields["from_seq"], tuple(fields["nodes"]), fields["replicas"], fields["block_seqs"]
        )


class Owners:
    """All placements that ever held, oldest first. Immutable."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.placements = tuple(placements)

    def changed(self, placement: Placement) -> Owners:
        """Return the owners with another placement from its first seq on."""
        kept = [one for one in self.placements if one.from_seq < placement.from_seq]
        if kept and replace(kept[-1], from_seq=placement.from_seq) == placement:
            return Owners(kept)
        return Owners([*kept, placement][-PLACEMENTS_MAX:])

    def without(self, name: str, intervals: Iterable[tuple[int, int]]) -> Owners:
        """Return the owners as if a node had not been there for some intervals of seqs."""
        borders = dict(self._between(0, None))
        for first_seq, end_seq in intervals:
            for _, one in list(self._between(end_seq, None))[:1]:
                borders.setdefault(end_seq, one)
            for start, one in self._between(first_seq, end_seq):
                nodes = tuple(other for other in one.nodes if other != name)
                borders[start] = replace(one, nodes=nodes)
        owners = Owners([])
        for start in sorted(borders):
            owners = owners.changed(replace(borders[start], from_seq=start))
        return owners

    def owners(self, quiver_id: str, first_seq: int, end_seq: int) -> frozenset[str]:
        """Return the nodes that own something of a range: all of them get the whole part."""
        found: set[str] = set()
        everybody = {name for _, one in self._between(first_seq, end_seq) for name in one.nodes}
        for _, owners in self._blocks(quiver_id, first_seq, end_seq):
            found |= owners
            if found == everybody:
                break
        return frozenset(found)

    def not_owned(
        self, name: str, quiver_id: str, first_seq: int, end_seq: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the intervals of a range of which a node owns nothing, as long as can be."""
        begun: int | None = None
        for start, owners in self._blocks(quiver_id, first_seq, end_seq):
            if name not in owners:
                begun = start if begun is None else begun
            elif begun is not None:
                yield begun, start
                begun = None
        if begun is not None:
            yield begun, end_seq

    def _between(self, first_seq: int, end_seq: int | None) -> Iterator[tuple[int, Placement]]:
        """Yield the placements that hold between two seqs, each with where it begins there."""
        ends = [*(one.from_seq for one in self.placements[1:]), None]
        for placement, end in zip(self.placements, ends, strict=True):
            if end is not None and end <= first_seq:
                continue
            if end_seq is not None and placement.from_seq >= end_seq:
                return
            yield max(first_seq, placement.from_seq), placement

    def _blocks(
        self, quiver_id: str, first_seq: int, end_seq: int
    ) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield start and owners of what lies in one block under one placement, in order."""
        if first_seq >= end_seq:
            return
        holding = list(self._between(first_seq, end_seq))
        ends = [*(start for start, _ in holding[1:]), end_seq]
        for (first, placement), end in zip(holding, ends, strict=False):
            yield first, placement.owners(quiver_id, first)
            if not placement.owns_all:
                size = placement.block_seqs
                for start in range((first // size + 1) * size, end, size):
                    yield start, placement.owners(quiver_id, start)
