"""An index comes to an end: each level is half of the one below, however long the paths are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.filesets.memory import MemoryChunks, memory_store
from tests.store.filesets.operations import put_all, read_all
from tests.support.examples import examples

from holdfast.store.chunks.settings import INDEX_ROOM_BYTES, KB, Chunking
from holdfast.store.filesets import FileSet, bloom
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import IndexNodes
from holdfast.store.filesets.entry import pack_entry
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import INDEX_MAX_BYTES
from holdfast.store.filesets.paths import PATH_BYTES_MAX

# A name of bytes that are not UTF-8 is four times as long as a text.
NOT_UTF8 = "\U0010fffe"


def chunking(max_bytes: int) -> Chunking:
    average_bytes = max(1024, max_bytes // 8)
    return Chunking(
        min_bytes=256,
        average_bytes=average_bytes,
        max_bytes=max_bytes,
        small_file_bytes=256,
        pack_min_bytes=256,
        pack_spread_bytes=256,
    )


def long_paths(count: int, length: int, filler: str) -> dict[str, bytes]:
    """Return files whose names have `length` bytes on disk."""
    return {f"{n:05}".ljust(length, filler): b"%d" % n for n in range(count)}


def levels_of(layer: Layer, chunks: MemoryChunks) -> list[int]:
    """Return how many entries each level of an index has, from its root down."""
    assert layer.index is not None
    nodes = IndexNodes(chunks.read_chunk)
    level, counts = [layer.index], []
    while level and level[0].HasField("range"):
        counts.append(len(level))
        level = [inner for index in level for inner in nodes.get(index).indexes]
    return [*counts, len(level)]


def check(files: dict[str, bytes], max_bytes: int) -> None:
    store, chunks = memory_store(chunking(max_bytes))
    layer = put_all(store, files)
    counts = levels_of(layer, chunks)
    # Entries of one path may need a chunk each; from there on every level is at most half.
    for above, below in itertools.pairwise(counts[:-1]):
        assert above <= (below + 1) // 2
    assert counts[-1] == len(files)
    assert read_all(FileSet(store, [layer])) == files
    assert max(map(len, chunks.data.values())) <= chunks.chunking.largest_bytes


@pytest.mark.parametrize(
    ("max_bytes", "length", "filler"),
    [
        (16 * KB, PATH_BYTES_MAX, "x"),
        (16 * KB, 3900, "x"),
        (16 * KB, PATH_BYTES_MAX, NOT_UTF8),
        (1025, 10, "x"),
        (1025, PATH_BYTES_MAX, NOT_UTF8),
        (4096, 300, "x"),
    ],
)
def test_an_index_of_paths_that_fill_a_chunk_ends(max_bytes: int, length: int, filler: str) -> None:
    check(long_paths(40, length, filler), max_bytes)


@settings(max_examples=examples(40))
@given(
    lengths=st.lists(st.integers(6, PATH_BYTES_MAX), min_size=1, max_size=30),
    filler=st.sampled_from(["x", NOT_UTF8]),
    max_bytes=st.sampled_from([1025, 2048, 4096, 16 * KB, 32 * KB, 1024 * KB]),
)
def test_an_index_ends_whatever_paths_and_chunks_are(
    lengths: list[int], filler: str, max_bytes: int
) -> None:
    files = {f"{n:05}".ljust(length, filler): b"" for n, length in enumerate(lengths)}
    check(files, max_bytes)


def test_two_ranges_of_the_longest_paths_have_room_in_a_chunk() -> None:
    longest = NOT_UTF8 * PATH_BYTES_MAX
    index = pb.Index(
        path=longest,
        range=pb.Range(
            last_path=longest + "/",
            num_files=2**62,
            num_entries=2**62,
            level=64,
            plain=True,
            bloom=bloom.build(list(range(INDEX_MAX_BYTES // 1024))),
        ),
        data_op=pb.DataOp(data_ref=[pb.DataRef(chunk=pb.Chunk(hash=b"h" * 32), size_bytes=2**62)]),
        size_bytes=2**62,
    )
    assert 2 * len(pack_entry(index, b"r")) <= INDEX_ROOM_BYTES
