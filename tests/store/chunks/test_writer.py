"""Writers: nothing twice, children first, bounded memory, and an end when the lease ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE_S
from tests.store.chunks.stage import TINY, noise, over

from holdfast.errors import BadInput, LeaseLost, StoreUnavailable
from holdfast.seam.simulated import SimulatedCrash
from holdfast.store.chunks import writer as writer_module
from holdfast.store.chunks.settings import INDEX_ROOM_BYTES
from holdfast.store.chunks.writer import DIVIDED_CHUNKS_MIN, WINDOW_CHUNKS
from holdfast.store.objects.faulty import FaultyObjects, ObjectFault, ObjectFaultKind
from holdfast.store.objects.objects import ChunkHash, ChunkKey, Objects, hash_of
from holdfast.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Buffer


def chunks_in(store: Store) -> list[ChunkKey | None]:
    return [ChunkKey.parse(stored.key) for stored in store.objects.list("chunks/")]


def test_what_was_put_is_there_after_the_barrier(store: Store) -> None:
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        hashes = [writer.put(b"chunk %d" % n) for n in range(300)]
        assert hashes == [hash_of(b"chunk %d" % n) for n in range(300)]
        writer.barrier()
        keys = store.references.resolve(hashes)
        assert sorted(keys.values()) == sorted(key for key in chunks_in(store) if key)
        assert len(keys) == 300


def test_leaving_the_block_is_a_barrier(store: Store) -> None:
    with store.references.open_job("job") as job:
        with store.chunks.writer(job) as writer:
            chunk = writer.put(b"content")
        assert chunk in store.references.resolve([chunk])


def test_equal_chunks_are_stored_once(store: Store) -> None:
    with store.references.open_job("one") as job, store.chunks.writer(job) as writer:
        for _ in range(3):
            writer.put(b"content")
            writer.barrier()
    with store.references.open_job("two") as job, store.chunks.writer(job) as writer:
        writer.put(b"content")
        writer.put(bytearray(b"content"))
    assert len(chunks_in(store)) == 1


def test_what_was_stored_long_ago_is_forgotten_and_found_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RECENT_HASHES_MAX", 5)
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        for _ in range(2):
            for number in range(20):
                writer.put(b"%d" % number)
            writer.barrier()
            assert len(writer._recent) == 5
    assert len(chunks_in(store)) == 20


def test_a_chunk_that_is_too_large_is_refused(store: Store) -> None:
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        # What a chunk of an index may take; content is cut at max_bytes before it comes here.
        assert TINY.largest_bytes == INDEX_ROOM_BYTES
        with pytest.raises(BadInput, match=f"{INDEX_ROOM_BYTES + 1} bytes"):
            writer.put(bytes(INDEX_ROOM_BYTES + 1))
        writer.put(bytes(INDEX_ROOM_BYTES))


def test_a_buffer_may_change_after_it_was_put(store: Store) -> None:
    buffer = bytearray(b"as it was")
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        chunk = writer.put(buffer)
        buffer[:] = b"something"
        writer.barrier()
        assert store.chunks.reader().read_chunk(chunk) == b"as it was"


def spy_on_marks(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[list[ChunkHash]]:
    calls: list[list[ChunkHash]] = []
    mark = store.references.mark_uploaded

    def spy(
        job: object, uploaded: Sequence[tuple[ChunkKey, Sequence[ChunkHash]]], *sizes: object
    ) -> object:
        calls.append([key.hash for key, _ in uploaded])
        return mark(job, uploaded, *sizes)  # type: ignore[arg-type]

    monkeypatch.setattr(store.references, "mark_uploaded", spy)
    return calls


@pytest.mark.parametrize("batch_chunks", [1, 2, 128])
def test_children_are_marked_before_their_parents(
    store: Store, monkeypatch: pytest.MonkeyPatch, batch_chunks: int
) -> None:
    """A tree of three levels, in batches of any size, stored by several threads."""
    marks = spy_on_marks(store, monkeypatch)
    store.chunks._settings = replace(store.settings, batch_chunks=batch_chunks, writer_threads=4)
    children: dict[ChunkHash, list[ChunkHash]] = {}
    with store.references.open_job("tree") as job, store.chunks.writer(job) as writer:
        tops = []
        for top in range(5):
            middles = []
            for middle in range(5):
                leaves = [writer.put(b"leaf %d %d %d" % (top, middle, n)) for n in range(5)]
                middles.append(writer.put(b"middle %d %d" % (top, middle), leaves))
                children[middles[-1]] = leaves
            tops.append(writer.put(b"top %d" % top, middles))
            children[tops[-1]] = middles
        writer.barrier()
    order = {chunk: place for place, chunk in enumerate(c for call in marks for c in call)}
    assert len(order) == 5 + 25 + 125
    for parent, below in children.items():
        assert all(order[child] < order[parent] for child in below)


class Gate:
    """Objects that are put only when told."""

    def __init__(self, inner: Objects) -> None:
        self.inner = FaultyObjects(
            inner, [ObjectFault("put", ObjectFaultKind.DELAYED, times=10**9)]
        )

    def open(self) -> None:
        self.inner.go_on.set()


def test_a_slow_child_holds_back_its_parent(store: Store) -> None:
    """The parent's object is put first; it is marked after the child all the same."""
    gate = Gate(store.objects)
    gate.inner.heal()
    gate.inner.strike("put", ObjectFaultKind.DELAYED)
    chunks = over(store, gate.inner)
    chunks._settings = replace(store.settings, batch_chunks=1)
    with store.references.open_job("job") as job, chunks.writer(job) as writer:
        child = writer.put(b"child")
        while gate.inner.calls().get("put", 0) < 1:
            threading.Event().wait(0.001)
        parent = writer.put(b"parent", [child])
        while writer._batches_in_flight == 2:
            threading.Event().wait(0.001)
        assert store.references.resolve([child, parent]) == {}
        gate.open()
        writer.barrier()
        assert store.references.resolve([child, parent]).keys() == {child, parent}


def test_memory_is_bounded_while_the_store_is_slow(store: Store) -> None:
    """A stream is taken only as fast as its chunks are stored."""
    stored_bytes = 0
    lock = threading.Lock()

    class Counting(FaultyObjects):
        def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
            nonlocal stored_bytes
            super().put_many(items)
            with lock:
                stored_bytes += sum(memoryview(data[1]).nbytes for _, data in items)

    chunks = over(store, Counting(store.objects))
    limit_bytes = 32 * 1024
    chunks._settings = replace(
        store.settings, max_in_flight_bytes=limit_bytes, batch_bytes=8 * 1024
    )
    taken_bytes = worst_bytes = 0

    def stream() -> Iterator[bytes]:
        nonlocal taken_bytes, worst_bytes
        for number in range(400):
            with lock:
                worst_bytes = max(worst_bytes, taken_bytes - stored_bytes)
            taken_bytes += 2000
            yield noise(2000, b"%d" % number)

    with store.references.open_job("job") as job, chunks.writer(job) as writer:
        refs = writer.put_stream(stream())
    assert sum(ref.size_bytes for ref in refs) == taken_bytes == 800_000
    window_bytes = (WINDOW_CHUNKS + 1) * TINY.max_bytes
    assert limit_bytes / 2 < worst_bytes <= limit_bytes + window_bytes


def test_one_chunk_may_be_larger_than_the_bound(store: Store) -> None:
    chunks = over(store, store.objects)
    chunks._settings = replace(store.settings, max_in_flight_bytes=1)
    with store.references.open_job("job") as job, chunks.writer(job) as writer:
        for number in range(5):
            writer.put(noise(1000, b"%d" % number))
    assert len(chunks_in(store)) == 5


@pytest.mark.parametrize("error", [StoreUnavailable("no", hint="no"), SimulatedCrash()])
def test_what_a_worker_meets_is_raised(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(store.objects, "put_many", fail)
    with store.references.open_job("job") as job:
        writer = store.chunks.writer(job)
        writer.put(b"content")
        for _ in range(2):
            with pytest.raises(type(error)):
                writer.barrier()
        with pytest.raises(type(error)):
            writer.put(b"more")
        writer.close()


def test_an_error_in_the_block_drops_what_is_queued(store: Store) -> None:
    with store.references.open_job("job") as job:
        writer = store.chunks.writer(job)

        def fail() -> None:
            with writer:
                writer.put(b"content")
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        with pytest.raises(ValueError, match="closed"):
            writer.put(b"more")
    assert chunks_in(store) == []


def test_a_lost_lease_ends_the_writer(store: Store) -> None:
    job = store.references.open_job("job")
    writer = store.chunks.writer(job)
    writer.put(b"before")
    job.lose()
    with pytest.raises(LeaseLost):
        writer.put(b"after")
    with pytest.raises(LeaseLost):
        writer.barrier()
    writer.close()
    assert chunks_in(store) == []


def test_a_lost_lease_cancels_what_waits_for_room(store: Store) -> None:
    gate = Gate(store.objects)
    chunks = over(store, gate.inner)
    chunks._settings = replace(store.settings, max_in_flight_bytes=3000)
    job = store.references.open_job("job")
    writer = chunks.writer(job)
    for number in range(3):
        writer.put(noise(1000, b"%d" % number))
    ended: list[BaseException] = []

    def put_more() -> None:
        try:
            writer.put(noise(1000))
        except LeaseLost as error:
            ended.append(error)

    waiting = threading.Thread(target=put_more)
    waiting.start()
    while not gate.inner.calls().get("put"):
        threading.Event().wait(0.001)
    job.lose()
    waiting.join()
    assert len(ended) == 1, "it does not wait for the store"
    gate.open()
    writer.close()


def test_several_threads_may_put(store: Store) -> None:
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:

        def put(thread: int) -> None:
            for number in range(100):
                writer.put(b"chunk %d" % (number + 50 * thread))

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(chunks_in(store)) == 250


def test_two_jobs_that_store_the_same_both_have_it(store: Store) -> None:
    """Each uploads its own generation; the first that is marked stays, and both hold it."""
    gate = Gate(store.objects)
    with store.references.open_job("one") as one, store.references.open_job("two") as two:
        slow = over(store, gate.inner).writer(one)
        chunk = slow.put(b"content")
        submitted = threading.Thread(target=slow.barrier)
        submitted.start()
        while not gate.inner.calls().get("put"):
            threading.Event().wait(0.001)
        with store.chunks.writer(two) as quick:
            quick.put(b"content")
        winner = store.references.resolve([chunk])[chunk]
        gate.open()
        submitted.join()
        slow.close()
        assert store.references.resolve([chunk]) == {chunk: winner}
        assert store.chunks.reader().read_chunk(chunk) == b"content"


def test_a_full_batch_does_not_wait_for_the_barrier(store: Store) -> None:
    chunks = over(store, store.objects)
    chunks._settings = replace(store.settings, batch_chunks=3)
    with store.references.open_job("job") as job, chunks.writer(job) as writer:
        for number in range(3):
            writer.put(b"%d" % number)
        while len(chunks_in(store)) < 3:
            threading.Event().wait(0.001)
        writer.put(b"one more")
        assert len(chunks_in(store)) == 3


def test_whoever_waits_for_many_chunks_has_them_stored_by_all_threads(store: Store) -> None:
    """Each thread waits at the first object until the other has come to its own."""
    both = threading.Barrier(2)

    class Meeting(FaultyObjects):
        def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
            both.wait(PATIENCE_S)
            super().put_many(items)

    chunks = over(store, Meeting(store.objects))
    with store.references.open_job("job") as job, chunks.writer(job) as writer:
        hashes = [writer.put(b"chunk %d" % n) for n in range(2 * DIVIDED_CHUNKS_MIN)]
        writer.barrier()
        assert len(store.references.resolve(hashes)) == len(hashes)
