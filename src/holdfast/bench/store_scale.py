"""How much of the store is measured: enough to mean something, or just enough to see it run."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1024 * 1024


@dataclass(frozen=True)
class StoreScale:
    """Sizes of all measurements."""

    rounds: int
    # Of the installed environment's files, a sample of about so many bytes.
    corpus_bytes: int
    # Of the corpus, one file in so many is edited, one added, one removed for the changed copy.
    changed_every: int
    # Files of the large file set, and of the one that shows how a comparison grows.
    many_files: int
    fewer_files: int
    # Files that differ between two commits that are compared.
    differing_files: int
    # Files that become garbage, each at least a chunk, and how many times as many live ones lie
    # beside them for the slope.
    garbage_chunks: int
    live_factor: int


FULL = StoreScale(
    rounds=7,
    corpus_bytes=400 * MB,
    changed_every=100,
    many_files=1_000_000,
    fewer_files=100_000,
    differing_files=100,
    garbage_chunks=6_000,
    live_factor=4,
)
QUICK = StoreScale(
    rounds=1,
    corpus_bytes=4 * MB,
    changed_every=20,
    many_files=3_000,
    fewer_files=600,
    differing_files=10,
    garbage_chunks=300,
    live_factor=2,
)
