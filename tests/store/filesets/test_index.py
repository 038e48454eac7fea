"""Indexes: multi-level, cut by content, pruned by what they say, checked when read."""

from __future__ import annotations

import random
import tarfile
from functools import cache
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.filesets.memory import MemoryChunks, memory_store
from tests.store.filesets.operations import put_all
from tests.support.examples import examples

from holdfast.errors import BadInput, Damaged
from holdfast.store.chunks.settings import Chunking
from holdfast.store.filesets import FileSet, FileSetWriter, Layer, bloom, tag_of
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import IndexCursor, IndexNodes, lookup
from holdfast.store.filesets.entry import change_of, pack_entry, parse_node
from holdfast.store.filesets.layer_builder import INDEX_MAX_BYTES, CutRule
from holdfast.store.store import Store

MANY = {f"folder-{n % 13:02}/file-{n:05}": b"%d" % n for n in range(1500)}


def indexed(files: dict[str, bytes]) -> tuple[Store, MemoryChunks, Layer]:
    if files is MANY:
        return many_indexed()
    store, chunks = memory_store()
    return store, chunks, put_all(store, files)


@cache
def many_indexed() -> tuple[Store, MemoryChunks, Layer]:
    store, chunks = memory_store()
    return store, chunks, put_all(store, MANY)


def index_chunks(layer: Layer, chunks: MemoryChunks) -> list[bytes]:
    """Return the addresses of all chunks of an index, level by level."""
    assert layer.index is not None
    nodes = IndexNodes(chunks.read_chunk)
    found, level = [], [layer.index]
    while level and level[0].HasField("range"):
        found += [index.data_op.data_ref[0].chunk.hash for index in level]
        level = [inner for index in level for inner in nodes.get(index).indexes]
    return found


def test_many_files_have_an_index_of_several_levels() -> None:
    _, _, layer = indexed(MANY)
    assert layer.index is not None
    assert layer.index.range.level >= 3
    assert layer.files == layer.entries == len(MANY)
    assert layer.size_bytes == sum(map(len, MANY.values()))
    assert layer.index.path == min(MANY)
    assert layer.index.range.last_path == max(MANY)


@pytest.mark.parametrize("where", [0, 1, 749, 1498, 1499])
@pytest.mark.parametrize("count", [1, 200, 1500])
def test_first_middle_and_last_are_found_as_file_and_range(where: int, count: int) -> None:
    paths = sorted(MANY)[:count]
    where = where % count
    store, _, layer = indexed({path: MANY[path] for path in paths})
    files = FileSet(store, [layer])
    assert files.read(paths[where]) == MANY[paths[where]]
    assert not files.exists(paths[where] + "-")
    assert [file.path for file in files.files(paths[where])] == paths[where:]
    assert [file.path for file in files.files("", paths[where])] == paths[:where]
    end = min(where + 300, count - 1)
    assert [file.path for file in files.files(paths[where], paths[end])] == paths[where:end]


@settings(max_examples=examples(30))
@given(st.data())
def test_any_range_of_paths_is_read(data: st.DataObject) -> None:
    store, _, layer = indexed(MANY)
    paths = sorted(MANY)
    near = st.sampled_from(paths).flatmap(
        lambda path: st.sampled_from([path, path + "!", path[:-1]])
    )
    lo, hi = data.draw(near), data.draw(near)
    listed = [file.path for file in FileSet(store, [layer]).files(lo, hi)]
    assert listed == [path for path in paths if lo <= path < hi]


def test_one_more_file_changes_one_chunk_of_each_level() -> None:
    # Without content: where that lies depends on the neighbours it is packed with.
    empty = dict.fromkeys(MANY, b"")
    store, chunks, layer = indexed(empty)
    before = set(index_chunks(layer, chunks))
    differing = []
    for n in range(5):
        other = put_all(store, {**empty, f"folder-06/file-{n * 270:05}-new": b"new"})
        differing.append(len(set(index_chunks(other, chunks)) - before))
    assert layer.index is not None
    assert len(before) > 50
    # A file may itself be where a chunk is cut, or move a cut of the level above.
    assert sorted(differing)[2] <= layer.index.range.level + 2


def test_an_index_is_cut_by_paths_alone() -> None:
    _, chunks, layer = indexed(MANY)
    assert layer.index is not None
    rule = CutRule(chunks.chunking.max_bytes)
    cursor = IndexCursor(IndexNodes(chunks.read_chunk), layer.index)
    ends = []
    while cursor.path is not None:
        if cursor.index.range.level > 1:
            cursor.descend()
            continue
        ends.append(cursor.last)
        cursor.advance()
    by_rule = [path for path in ends[:-1] if rule.cuts(bloom.path_hash(path))]
    # The rest had no such path before they were full.
    assert len(by_rule) > len(ends) * 0.9


def test_a_lookup_opens_one_chunk_of_each_level_and_a_filter_spares_them() -> None:
    store, chunks, layer = indexed(MANY)
    files = FileSet(store, [layer])
    assert layer.index is not None
    chunks.reads.clear()
    assert files.exists("folder-07/file-00007")
    assert len(chunks.reads) <= layer.index.range.level + 1
    missed = 0
    for n in range(200):
        fresh = IndexNodes(chunks.read_chunk)
        assert lookup(fresh, layer.index, f"folder-07/file-{n:05}-missing") is None
        missed += fresh.opened
    # All levels but the lowest: the filters let one in a hundred through.
    assert missed < 200 * (layer.index.range.level - 1) + 20


@settings(max_examples=examples(50))
@given(st.lists(st.text(max_size=20), min_size=1, max_size=300, unique=True))
def test_a_filter_holds_all_its_paths(paths: list[str]) -> None:
    kept = bloom.build([bloom.path_hash(path) for path in paths])
    assert all(bloom.may_hold(kept, path) for path in paths)


def test_a_filter_excludes_most_others() -> None:
    kept = bloom.build([bloom.path_hash(f"in/{n}") for n in range(300)])
    assert sum(bloom.may_hold(kept, f"out/{n}") for n in range(3000)) < 150


def test_a_stored_index_chunk_is_a_tar_stream() -> None:
    _, chunks, layer = indexed(dict(list(MANY.items())[:5]))
    assert layer.root is not None
    stream = chunks.data[layer.root.hash] + b"\0" * 1024
    with tarfile.open(fileobj=BytesIO(stream)) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == sorted(list(MANY)[:5])
    assert {member.type for member in members} == {b"i"}
    assert {(member.mtime, member.uid, member.gid) for member in members} == {(0, 0, 0)}


def test_very_long_names_are_indexed() -> None:
    names = {f"{'d' * 120}/{n}-{'ü' * 900}": b"%d" % n for n in range(40)}
    store, _, layer = indexed(names)
    files = FileSet(store, [layer])
    assert [file.path for file in files.files()] == sorted(names)
    assert all(files.read(path) == data for path, data in names.items())


def leaf(chunks: MemoryChunks, layer: Layer) -> bytes:
    assert layer.index is not None
    index = layer.index
    nodes = IndexNodes(chunks.read_chunk)
    while index.range.level > 1:
        index = nodes.get(index).indexes[0]
    return chunks.data[index.data_op.data_ref[0].chunk.hash]  # type: ignore[index]


def test_a_truncated_index_is_damage() -> None:
    _, chunks, layer = indexed(MANY)
    data = leaf(chunks, layer)
    assert parse_node(data, "here").is_leaf
    for end in (0, 1, 511, 512, 700, 1023, len(data) - 512, len(data) - 1):
        if data[:end]:
            try:
                assert len(parse_node(data[:end], "here").paths) * 1024 == end
            except Damaged:
                continue
        else:
            with pytest.raises(Damaged):
                parse_node(b"", "here")


def test_flipped_bits_of_index_headers_are_damage() -> None:
    _, chunks, layer = indexed(dict(list(MANY.items())[:5]))
    data = leaf(chunks, layer)
    dice = random.Random(7)
    for _ in range(300):
        flipped = bytearray(data)
        at = dice.randrange(5) * 1024 + dice.randrange(512)
        if at % 1024 in (154, 155):
            continue  # what ends the number of the checksum means nothing
        flipped[at] ^= 1 << dice.randrange(8)
        with pytest.raises(Damaged):
            parse_node(bytes(flipped), "here")


def test_entries_out_of_order_are_damage() -> None:
    entries = [pack_entry(pb.Index(path=path), b"i") for path in ("b", "a")]
    with pytest.raises(Damaged, match="not sorted"):
        parse_node(b"".join(entries), "here")
    mixed = [pack_entry(pb.Index(path="a"), b"i"), pack_entry(pb.Index(path="b"), b"r")]
    with pytest.raises(Damaged, match="several kinds"):
        parse_node(b"".join(mixed), "here")


def test_the_sizes_of_tags_add_up_to_those_of_the_data() -> None:
    def index(tag_sizes: list[int], ref_sizes: list[int]) -> pb.Index:
        tags = [pb.Tag(id=b"%d" % n, size_bytes=size) for n, size in enumerate(tag_sizes)]
        refs = [pb.DataRef(size_bytes=size) for size in ref_sizes]
        return pb.Index(path="p", data_op=pb.DataOp(tags=tags, data_ref=refs))

    assert len(change_of(index([3, 0, 4], [1, 2, 4]), "here").parts) == 3
    for tags, refs in (([3], [2]), ([3], [4]), ([3, 4], [5, 2]), ([], [1]), ([1], []), ([-1], [])):
        with pytest.raises(Damaged, match="tags"):
            change_of(index(tags, refs), "here")


def test_numbers_as_tags_sort_as_they_count() -> None:
    numbers = [-(2**63), -5, -1, 0, 1, 300, 2**63 - 1]
    assert sorted(map(tag_of, numbers)) == list(map(tag_of, numbers))


def test_a_path_may_not_have_more_tags_than_an_index_chunk_holds() -> None:
    store, _ = memory_store()
    with FileSetWriter(store, None) as writer:  # type: ignore[arg-type]
        for number in range(2000):
            writer.append("many", b"x", tag=number)
        with pytest.raises(BadInput, match="too many tags"):
            writer.close()


def test_a_file_of_very_many_chunks_keeps_its_index_small() -> None:
    chunking = Chunking(
        min_bytes=256,
        average_bytes=1024,
        max_bytes=4096,
        small_file_bytes=256,
        pack_min_bytes=256,
        pack_spread_bytes=256,
    )
    store, chunks = memory_store(chunking)
    data = random.Random(1).randbytes(600_000)
    layer = put_all(store, {"large": data, "other": b"x"})
    files = FileSet(store, [layer])
    refs = files.stat("large").refs
    assert 1 < len(refs) < 100
    assert all(ref.indirect for ref in refs)
    assert files.read("large") == data
    chunks.reads.clear()
    assert files.read("large", 300_000, 10) == data[300_000:300_010]
    assert len(chunks.reads) < 6
    with files.open("large") as opened:
        opened.seek(-100, 2)
        assert opened.read() == data[-100:]


def test_an_index_chunk_is_never_larger_than_a_chunk_may_be() -> None:
    _, chunks, layer = indexed(MANY)
    sizes = [len(chunks.data[address]) for address in index_chunks(layer, chunks)]  # type: ignore[index]
    assert max(sizes) <= min(INDEX_MAX_BYTES, chunks.chunking.max_bytes)
