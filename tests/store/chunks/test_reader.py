"""Readers: every range of every stream, verified, fetched once, ahead, and within bounds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.chunks.stage import TINY, new_store, noise, over

from holdfast.errors import BadInput, Damaged, ObjectMissing
from holdfast.store.chunks import reader as reader_module
from holdfast.store.chunks.reader import ChunkCache, ChunkReader
from holdfast.store.gc.leases import Job
from holdfast.store.objects.faulty import FaultyObjects, ObjectFault, ObjectFaultKind
from holdfast.store.objects.objects import ChunkHash, ChunkKey, DataRef, hash_of
from holdfast.store.store import Store


def stored(store: Store, *pieces: bytes) -> list[DataRef]:
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        refs = writer.put_stream(pieces)
        writer.barrier()
        # So that they stay when the job ends.
        source = ("test", b"source")
        store.references.update_references(job, [(source, ref.hash) for ref in refs], [])
    return refs


def path_of(store: Store, chunk: ChunkHash) -> Path:
    return Path(store.url) / store.references.resolve([chunk])[chunk].object_key()


@pytest.fixture(scope="module")
def shared_job(shared_store: Store) -> Iterator[Job]:
    with shared_store.references.open_job("shared") as job:
        yield job


@pytest.fixture(scope="module")
def shared_refs(shared_store: Store) -> list[DataRef]:
    """Where `noise(12_000)` is."""
    return stored(shared_store, noise(12_000))


STREAMS = st.builds(
    lambda size, seed, zeros: noise(size, seed) + bytes(zeros),
    st.integers(0, 20_000),
    st.binary(max_size=2),
    st.integers(0, 5000),
)


@given(data=st.data())
def test_every_stream_and_every_range_of_it_is_read_back(
    shared_store: Store, shared_job: Job, data: st.DataObject
) -> None:
    stream = data.draw(STREAMS)
    with shared_store.chunks.writer(shared_job) as writer:
        refs = writer.put_stream([stream])
    reader = shared_store.chunks.reader()
    assert b"".join(reader.read(refs)) == stream
    for _ in range(5):
        offset = data.draw(st.integers(0, len(stream) + 10))
        size = data.draw(st.none() | st.integers(0, len(stream) + 10))
        end = None if size is None else offset + size
        assert b"".join(reader.read(refs, offset, size)) == stream[offset:end]


@given(data=st.data())
def test_any_references_in_any_order_are_read(
    shared_store: Store, shared_refs: list[DataRef], data: st.DataObject
) -> None:
    stream, whole = noise(12_000), shared_refs
    starts = dict(zip([ref.hash for ref in whole], itertools.accumulate(
        [ref.size_bytes for ref in whole], initial=0), strict=False))  # fmt: skip
    refs, expected = [], b""
    for ref in data.draw(st.lists(st.sampled_from(whole), max_size=8)):
        offset = data.draw(st.integers(0, ref.size_bytes))
        size = data.draw(st.integers(0, ref.size_bytes - offset))
        refs.append(DataRef(ref.hash, offset, size))
        begin = starts[ref.hash] + offset
        expected += stream[begin : begin + size]
    reader = shared_store.chunks.reader()
    assert b"".join(reader.read(refs)) == expected
    assert b"".join(reader.read(iter(refs), 3, 700)) == expected[3:703]


def test_adjacent_ranges_of_a_chunk_are_one_read(store: Store) -> None:
    [ref] = stored(store, noise(250))
    objects = FaultyObjects(store.objects)
    reader = over(store, objects).reader()
    parts = [DataRef(ref.hash, start, 50) for start in (0, 50, 100, 0, 200)]
    pieces = list(reader.read(parts))
    assert [len(piece) for piece in pieces] == [150, 50, 50]
    assert b"".join(pieces) == noise(250)[:150] + noise(250)[:50] + noise(250)[200:]
    assert objects.calls() == {"get": 1}


def test_a_chunk_that_is_used_again_is_not_fetched_again(store: Store) -> None:
    refs = stored(store, noise(10_000))
    objects = FaultyObjects(store.objects)
    chunks = over(store, objects)
    for _ in range(3):
        assert b"".join(chunks.reader().read(refs)) == noise(10_000)
        assert chunks.reader().read_chunk(refs[0].hash) == noise(10_000)[: refs[0].size_bytes]
    assert objects.calls() == {"get": len(refs)}


def test_chunks_outside_of_the_range_are_not_fetched(store: Store) -> None:
    refs = stored(store, noise(20_000))
    objects = FaultyObjects(store.objects)
    reader = over(store, objects).reader()
    assert b"".join(reader.read(refs, refs[0].size_bytes, refs[1].size_bytes))
    assert objects.calls() == {"get": 1}
    assert list(reader.read(refs, 0, 0)) == []
    assert list(reader.read(refs, 20_000)) == []
    assert objects.calls() == {"get": 1}


@pytest.mark.parametrize(("offset_bytes", "size_bytes"), [(-1, None), (0, -1)])
def test_a_range_before_the_data_is_refused(
    store: Store, offset_bytes: int, size_bytes: int | None
) -> None:
    with pytest.raises(BadInput):
        store.chunks.reader().read([], offset_bytes, size_bytes)


def test_what_is_fetched_ahead_is_bounded(store: Store) -> None:
    refs = stored(store, noise(100_000))
    objects = FaultyObjects(store.objects)
    chunks = over(store, objects)
    ahead = 4
    chunks._settings = replace(store.settings, prefetch_bytes=ahead * TINY.max_bytes, cache_bytes=0)
    data = iter(chunks.reader().read(refs))
    for number in range(1, len(refs) + 1):
        next(data)
        assert objects.calls()["get"] <= number + ahead
    assert next(data, None) is None
    assert objects.calls() == {"get": len(refs)}


def test_chunks_are_fetched_ahead(store: Store) -> None:
    refs = stored(store, noise(30_000))
    objects = FaultyObjects(store.objects)
    data = iter(over(store, objects).reader().read(refs))
    next(data)
    while objects.calls()["get"] < 3:
        threading.Event().wait(0.001)
    del data


def test_whoever_stops_reading_leaves_nothing_running(store: Store) -> None:
    refs = stored(store, noise(100_000))
    before = set(threading.enumerate())
    chunks = over(store, store.objects)
    data = chunks.reader().read(refs)
    next(data)
    assert set(threading.enumerate()) > before
    del data
    chunks.close()
    assert set(threading.enumerate()) <= before


def test_keys_are_asked_for_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = stored(store, noise(60_000))
    asked: list[int] = []
    resolve = store.references.resolve

    def spy(hashes: Sequence[ChunkHash]) -> dict[ChunkHash, ChunkKey]:
        asked.append(len(hashes))
        return resolve(hashes)

    monkeypatch.setattr(store.references, "resolve", spy)
    monkeypatch.setattr(reader_module, "RESOLVE_BATCH", 20)
    monkeypatch.setattr(reader_module, "KEYS_MAX", 25)
    reader = over(store, store.objects).reader()
    assert b"".join(reader.read(refs)) == noise(60_000)
    assert sum(asked) == len(refs) > 40
    assert max(asked) == 20
    assert len(reader._found) <= 25


def test_keys_that_are_given_are_not_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = stored(store, noise(10_000))
    keys = store.references.resolve([ref.hash for ref in refs])
    monkeypatch.setattr(store.references, "resolve", lambda _: pytest.fail("it was asked"))
    reader = store.chunks.reader(keys)
    assert b"".join(reader.read(refs)) == noise(10_000)


# What is wrong is told.


def check_damage(store: Store, refs: Sequence[DataRef], damaged: ChunkHash) -> None:
    reader = over(store, store.objects).reader()
    with pytest.raises(Damaged, match=damaged.hex()):
        reader.read_chunk(damaged)
    with pytest.raises(Damaged, match=damaged.hex()):
        list(reader.read(refs))
    for ref in refs:
        if ref.hash != damaged:
            assert hash_of(reader.read_chunk(ref.hash)) == ref.hash, "the others are fine"


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), number=st.integers(0, 5))
def test_a_flipped_bit_anywhere_is_found_and_named(
    shared_store: Store, shared_refs: list[DataRef], place: float, bit: int, number: int
) -> None:
    refs = shared_refs
    path = path_of(shared_store, refs[number].hash)
    image = path.read_bytes()
    flipped = bytearray(image)
    flipped[int(place * len(image))] ^= 1 << bit
    path.write_bytes(flipped)
    try:
        check_damage(shared_store, refs, refs[number].hash)
    finally:
        path.write_bytes(image)


@given(place=st.floats(0, 1, exclude_max=True), number=st.integers(0, 5))
def test_a_cut_object_is_found_and_named(
    shared_store: Store, shared_refs: list[DataRef], place: float, number: int
) -> None:
    refs = shared_refs
    path = path_of(shared_store, refs[number].hash)
    image = path.read_bytes()
    path.write_bytes(image[: int(place * len(image))])
    try:
        check_damage(shared_store, refs, refs[number].hash)
    finally:
        path.write_bytes(image)


def test_a_missing_object_is_named(store: Store) -> None:
    refs = stored(store, noise(12_000))
    path = path_of(store, refs[2].hash)
    path.unlink()
    with pytest.raises(ObjectMissing, match=refs[2].hash.hex()):
        list(store.chunks.reader().read(refs))


def test_a_chunk_that_was_never_stored_is_named(store: Store) -> None:
    unknown = hash_of(b"never stored")
    with pytest.raises(ObjectMissing, match=unknown.hex()):
        store.chunks.reader().read_chunk(unknown)


def test_a_reference_beyond_its_chunk_is_damage(store: Store) -> None:
    [ref] = stored(store, noise(250))
    with pytest.raises(Damaged, match=r"200 to 300 of a chunk that has 250"):
        list(store.chunks.reader().read([DataRef(ref.hash, 200, 100)]))


@pytest.mark.parametrize(("offset", "size"), [(-5, 10), (0, -1), (-1, -1)])
def test_a_reference_to_what_cannot_be_is_damage(store: Store, offset: int, size: int) -> None:
    [ref] = stored(store, noise(250))
    with pytest.raises(Damaged, match=ref.hash.hex()):
        list(store.chunks.reader().read([DataRef(ref.hash, offset, size)]))


def test_a_generation_that_was_replaced_is_looked_up_again(store: Store) -> None:
    """The reader's keys are from before the chunk was collected and stored anew."""
    [ref] = stored(store, noise(250))
    current = store.references.resolve([ref.hash])[ref.hash]
    old = ChunkKey(ref.hash, current.generation + 1000)
    reader = store.chunks.reader({ref.hash: old})
    assert reader.read_chunk(ref.hash) == noise(250)


def test_a_store_that_answers_404_for_a_moment_is_told(store: Store) -> None:
    [ref] = stored(store, noise(250))
    objects = FaultyObjects(store.objects, [ObjectFault("get", ObjectFaultKind.MISSING)])
    reader = over(store, objects).reader()
    with pytest.raises(ObjectMissing):
        reader.read_chunk(ref.hash)
    assert reader.read_chunk(ref.hash) == noise(250)


# The cache.


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60))
def test_the_cache_stays_within_its_bound(uses: list[tuple[int, bool]]) -> None:
    cache = ChunkCache(limit_bytes=1000)
    for number, put in uses:
        data = bytes([number]) * (number * 60)
        chunk = hash_of(data)
        if put:
            cache.put(chunk, data)
        assert cache.get(chunk) in (None, data)
        assert cache.size_bytes == sum(map(len, cache._chunks.values())) <= 1000


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = ChunkCache(limit_bytes=30)
    keys = [ChunkHash(bytes([n]) * 32) for n in range(4)]
    for key in keys[:3]:
        cache.put(key, bytes(10))
    cache.get(keys[0])
    cache.put(keys[3], bytes(10))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]


def test_a_reader_is_safe_in_many_threads(store: Store) -> None:
    refs = stored(store, noise(50_000))
    chunks = over(store, store.objects)
    chunks._cache = ChunkCache(limit_bytes=8000)
    reader: ChunkReader = chunks.reader()
    results: list[bool] = []

    def read() -> None:
        results.append(all(b"".join(reader.read(refs)) == noise(50_000) for _ in range(5)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_reads_in_order(tmp_path: Path, threads: int) -> None:
    with new_store(tmp_path / "store", reader_threads=threads) as store:
        refs = stored(store, noise(50_000))
        assert b"".join(store.chunks.reader().read(refs)) == noise(50_000)


def test_a_reference_to_other_bytes_of_a_sound_chunk_is_damage(shared_store: Store) -> None:
    """The hash of a part was stored, and nobody looked at it."""
    [whole] = stored(shared_store, noise(500, b"sound"))
    data = noise(500, b"sound")
    good = DataRef(whole.hash, 100, 50, hash_of(data[100:150]))
    moved = good._replace(offset_bytes=101)
    reader = shared_store.chunks.reader()
    assert b"".join(reader.read([good, good])) == data[100:150] * 2
    for refs in ([moved], [good, moved], [DataRef(whole.hash, 0, 101), moved]):
        with pytest.raises(Damaged, match="which are others"):
            list(reader.read(refs))
    # A part of the part has no hash of its own.
    assert b"".join(reader.read([moved], 1)) == data[102:151]
