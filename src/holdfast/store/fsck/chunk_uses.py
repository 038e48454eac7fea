"""Finds which commits and files need some chunks: a second walk, only if a chunk is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.store.address import ChunkHash
from holdfast.store.filesets.commits import Commit
from holdfast.store.filesets.reachable import Reached, Use, roots_of
from holdfast.store.fsck.findings import INDEX_WORDS, REFS_WORDS
from holdfast.store.fsck.indexes import IndexReader
from holdfast.store.fsck.settings import FsckSettings


class ChunkUse(NamedTuple):
    """A commit and a path, or a range of paths, that a chunk serves."""

    commit: str
    path: str
    detail: str


class ChunkUses:
    """Where wanted chunks are used."""

    def __init__(
        self, reader: IndexReader, wanted: Collection[ChunkHash], settings: FsckSettings
    ) -> None:
        self._reader = reader
        self._wanted = frozenset(wanted)
        self._settings = settings
        # Index chunks below which nothing is wanted.
        self._without: set[tuple[ChunkHash, Use]] = set()
        self.found: dict[ChunkHash, list[ChunkUse]] = {}
        self.more: Counter[ChunkHash] = Counter()

    def look(self, commits: Sequence[Commit]) -> None:
        """Look through commits."""
        for commit in commits if self._wanted else ():
            for root in roots_of(commit):
                self._look_below(commit.name, root)

    def _look_below(self, commit: str, one: Reached) -> bool:
        """Note what is wanted at or below a chunk; say whether there was any.

        It calls itself for each level of an index, and there are only a few.
        """
        here = one.hash in self._wanted
        if here:
            self._note(commit, one)
        if not one.use.refers or (one.hash, one.use) in self._without:
            return here
        below = False
        for child in self._reader.look_into(one) or ():
            below |= self._look_below(commit, child)
        if not here and not below and len(self._without) < self._settings.visited_max:
            self._without.add((one.hash, one.use))
        return here or below

    def _note(self, commit: str, one: Reached) -> None:
        places = self.found.setdefault(one.hash, [])
        place = ChunkUse(commit, one.path, _words(one))
        if place in places:
            return
        if len(places) < self._settings.paths_per_chunk_max:
            places.append(place)
        else:
            self.more[one.hash] += 1


def _words(one: Reached) -> str:
    match one.use:
        case Use.INDEX:
            return f"{INDEX_WORDS} {one.path!r} to {one.last_path!r}"
        case Use.REFS:
            return REFS_WORDS
        case Use.TOMBSTONES:
            return "the list of folders that a layer takes away"
        case Use.SEEN:
            return "the table of files as they were seen on disk"
        case _:
            return "content"
