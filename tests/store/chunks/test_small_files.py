"""Packs of small files: fixed borders, chosen by paths, that hold when neighbours change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.chunks.stage import TINY, noise

from holdfast.errors import BadInput
from holdfast.store.chunks.settings import Chunking
from holdfast.store.chunks.writer import ChunkWriter, PackedFile, SmallFiles
from holdfast.store.objects.objects import ChunkHash, hash_of
from holdfast.store.store import Store


class Shelf:
    """Takes the place of a writer, and keeps what it is given."""

    def __init__(self) -> None:
        self.packs: dict[ChunkHash, bytes] = {}

    def put(self, data: bytes, children: Sequence[ChunkHash] = ()) -> ChunkHash:
        self.packs[hash_of(data)] = data
        return hash_of(data)

    def small_files(self, chunking: Chunking = TINY) -> SmallFiles:
        return SmallFiles(cast("ChunkWriter", self), chunking)

    def read(self, file: PackedFile) -> bytes:
        return b"".join(
            self.packs[ref.hash][ref.offset_bytes : ref.offset_bytes + ref.size_bytes]
            for ref in file.refs
        )


def packed(files: dict[bytes, bytes], chunking: Chunking = TINY) -> Shelf:
    shelf = Shelf()
    small = shelf.small_files(chunking)
    for path, data in files.items():
        small.add(path, data)
    small.flush()
    return shelf


def test_golden_vector() -> None:
    files = {b"folder/file-%03d" % n: bytes(n * 37 % 5000 + 1) for n in range(1, 400)}
    sizes = [len(pack) for pack in packed(files, Chunking()).packs.values()]
    assert sizes == [84353, 84462, 192859, 142950, 399186, 84189]


FILES = st.dictionaries(st.binary(min_size=1, max_size=30), st.binary(max_size=512), max_size=60)


@given(files=FILES)
def test_every_file_is_where_its_reference_says(files: dict[bytes, bytes]) -> None:
    shelf = Shelf()
    small = shelf.small_files()
    handles = {path: small.add(path, data) for path, data in files.items()}
    small.flush()
    for path, data in files.items():
        assert handles[path].size_bytes == len(data)
        assert shelf.read(handles[path]) == data
        for ref in handles[path].refs:
            whole = ref.size_bytes == len(shelf.packs[ref.hash])
            assert ref.content_hash == (b"" if whole else hash_of(data))
    assert all(0 < len(pack) <= TINY.max_bytes for pack in shelf.packs.values())


def test_references_are_known_once_the_pack_is_cut() -> None:
    shelf = Shelf()
    small = shelf.small_files()
    file = small.add(b"a", b"content")
    with pytest.raises(AssertionError, match="not cut yet"):
        _ = file.refs
    states = [file.is_cut]
    for _ in range(2):
        small.flush()
        states.append(file.is_cut)
    assert states == [False, True, True]
    assert len(shelf.packs) == 1


def test_an_empty_file_needs_no_pack() -> None:
    shelf = Shelf()
    file = shelf.small_files().add(b"empty", b"")
    assert file.is_cut
    assert file.refs == ()
    assert shelf.packs == {}


def test_a_file_that_is_not_small_is_refused() -> None:
    with pytest.raises(BadInput, match=r"513 bytes.*at most 512"):
        Shelf().small_files().add(b"large", bytes(513))


def test_a_pack_never_grows_beyond_a_chunk() -> None:
    never = replace(TINY, pack_spread_bytes=2**60)
    packs = packed({b"%d" % n: noise(500, b"%d" % n) for n in range(100)}, never).packs
    assert [len(pack) for pack in packs.values()] == [4000] * 12 + [2000]


def test_a_pack_has_a_bounded_number_of_files() -> None:
    few = replace(TINY, pack_files_max=10)
    packs = packed({b"%d" % n: b"%d" % n for n in range(100, 135)}, few).packs
    assert [len(pack) for pack in packs.values()] == [30, 30, 30, 15]


@pytest.mark.parametrize("size_bytes", [40, 200, 500])
def test_packs_have_one_size_whatever_their_files_have(size_bytes: int) -> None:
    files = {b"dir/%d" % n: noise(size_bytes, b"%d" % n) for n in range(400_000 // size_bytes)}
    packs = packed(files).packs.values()
    average_bytes = sum(map(len, packs)) / len(packs)
    # The least, then one in `pack_spread_bytes`, and half a file because borders are behind files.
    expected_bytes = TINY.pack_min_bytes + TINY.pack_spread_bytes + size_bytes / 2
    assert 0.7 < average_bytes / expected_bytes < 1.3


def test_a_change_costs_the_packs_around_it_alone() -> None:
    dice = random.Random(3)
    paths = sorted(b"%08d" % dice.randrange(10**8) for _ in range(2000))
    files = {path: noise(dice.randrange(1, 400), path) for path in paths}
    before = packed(files).packs.keys()
    new_packs = []
    for path in dice.sample(paths, 20):
        without = {key: data for key, data in files.items() if key != path}
        longer = {key: data + b"!" * (key == path) for key, data in files.items()}
        more = dict(sorted({**files, path + b"-new": b"new content"}.items()))
        new_packs += [
            len(packed(changed).packs.keys() - before) for changed in (without, longer, more)
        ]
    # Now and then the border moves too, and it takes a few packs until an old one is met again.
    assert sum(new_packs) / len(new_packs) < 2
    assert max(new_packs) < len(before) / 20


def test_packs_are_stored_and_read(store: Store) -> None:
    files = {b"path/%d" % n: noise(n % 400, b"%d" % n) for n in range(500)}
    with store.references.open_job("pack") as job, store.chunks.writer(job) as writer:
        small = store.chunks.small_files(writer)
        handles = {path: small.add(path, data) for path, data in files.items()}
        small.flush()
        writer.barrier()
        reader = store.chunks.reader()
        assert {path: b"".join(reader.read(h.refs)) for path, h in handles.items()} == files
