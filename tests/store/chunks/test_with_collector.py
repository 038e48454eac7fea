"""Writers and readers beside a running collector: what is used stays, what is not goes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.chunks.stage import new_store, noise, over

from holdfast.errors import ChunkGone, LeaseLost, ObjectMissing, StoreUnavailable
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.faulty import FaultyObjects, ObjectFault, ObjectFaultKind
from holdfast.store.objects.objects import ChunkHash, ChunkKey, DataRef
from holdfast.store.store import Store

# An orphan is one at once: nobody puts objects by hand here.
GC = GcSettings(synchronous="off", orphan_grace_s=0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store", gc=GC, batch_chunks=8) as store:
        yield store


def collector(store: Store) -> Collector:
    return Collector(store.references, store.objects)


def stored_hashes(store: Store) -> set[ChunkHash]:
    keys = [ChunkKey.parse(stored.key) for stored in store.objects.list("chunks/")]
    return {key.hash for key in keys if key is not None}


def test_a_tree_stays_while_its_root_is_referred_to_and_goes_with_it(store: Store) -> None:
    source = ("test", b"root")
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        refs = writer.put_stream([noise(60_000)])
        root = writer.put(b"root", [ref.hash for ref in refs])
        alone = writer.put(b"nobody will refer to this")
        writer.barrier()
        collector(store).collect()
        assert stored_hashes(store) == {root, alone, *(ref.hash for ref in refs)}
        store.references.update_references(job, [(source, root)], [])
    collector(store).collect()
    assert stored_hashes(store) == {root, *(ref.hash for ref in refs)}
    assert b"".join(over(store, store.objects).reader().read(refs)) == noise(60_000)
    store.references.update_references(None, [], [(source, root)])
    collector(store).collect()
    assert stored_hashes(store) == set()
    with pytest.raises(ObjectMissing):
        over(store, store.objects).reader().read_chunk(root)


def test_what_is_collected_can_be_stored_again(store: Store) -> None:
    for _ in range(3):
        with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
            refs = writer.put_stream([noise(20_000)])
            writer.barrier()
            reader = over(store, store.objects).reader()
            assert b"".join(reader.read(refs)) == noise(20_000)
        collector(store).collect()
        assert stored_hashes(store) == set()


def test_writers_of_the_same_data_beside_a_collector(store: Store) -> None:
    """Four jobs store overlapping streams, again and again; one in two keeps what it stored."""
    stop = threading.Event()
    kept: dict[bytes, list[DataRef]] = {}
    errors: list[BaseException] = []

    def collect() -> None:
        while not stop.is_set():
            collector(store).collect()

    def write(number: int) -> None:
        try:
            for turn in range(6):
                stream = noise(15_000, b"common") + noise(15_000, b"%d" % (turn % 2 + number % 2))
                with store.references.open_job(f"{number}") as job:
                    with store.chunks.writer(job) as writer:
                        refs = writer.put_stream([stream])
                        root = writer.put(b"%d %d" % (number, turn), [ref.hash for ref in refs])
                    source = ("test", b"%d-%d" % (number, turn))
                    if turn % 2:
                        store.references.update_references(job, [(source, root)], [])
                        kept[stream] = [*refs, DataRef(root, 0, 0)]
        except BaseException as error:
            errors.append(error)

    collecting = threading.Thread(target=collect)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in (collecting, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    collecting.join()
    assert errors == []
    collector(store).collect()
    for stream, refs in kept.items():
        assert b"".join(over(store, store.objects).reader().read(refs)) == stream
    used = {ref.hash for refs in kept.values() for ref in refs}
    assert stored_hashes(store) >= used
    roots = 4 * 3  # some streams were kept by several
    assert len(stored_hashes(store)) <= len(used) + roots


def test_a_put_that_lands_late_is_swept(store: Store) -> None:
    """The writer gave up, its job ended, its rows were collected; then the object appears."""
    late = FaultyObjects(store.objects, [ObjectFault("put", ObjectFaultKind.LANDS_LATE)])
    with store.references.open_job("job") as job:
        writer = over(store, late).writer(job)
        writer.put(b"content")
        with pytest.raises(StoreUnavailable):
            writer.barrier()
        writer.close()
    collector(store).collect()
    assert late.land_late() == 1
    assert len(stored_hashes(store)) == 1
    assert collector(store).sweep().orphans_deleted == 1
    assert stored_hashes(store) == set()


@pytest.mark.parametrize(
    "kind", [ObjectFaultKind.REFUSED, ObjectFaultKind.ANSWER_LOST, ObjectFaultKind.TWICE]
)
def test_a_job_can_go_on_with_a_new_writer(store: Store, kind: ObjectFaultKind) -> None:
    bad = FaultyObjects(store.objects, [ObjectFault("put", kind, nth=3)])
    with store.references.open_job("job") as job:
        with (
            contextlib.suppress(StoreUnavailable),
            over(store, bad).writer(job) as writer,
        ):
            writer.put_stream([noise(40_000)])
        with store.chunks.writer(job) as writer:
            refs = writer.put_stream([noise(40_000)])
        assert b"".join(over(store, store.objects).reader().read(refs)) == noise(40_000)
        assert collector(store).collect().objects_deleted == 0


def test_a_parent_of_what_is_not_there_is_refused(store: Store) -> None:
    with store.references.open_job("job") as job:
        writer = store.chunks.writer(job)
        writer.put(b"parent", [ChunkHash(bytes(32))])
        with pytest.raises(ChunkGone):
            writer.barrier()
        writer.close()


def test_a_job_that_ended_stores_nothing_more(store: Store) -> None:
    job = store.references.open_job("job")
    writer = store.chunks.writer(job)
    job.release()
    with pytest.raises(LeaseLost):
        writer.put(b"content")
    writer.close()
    assert stored_hashes(store) == set()


@pytest.mark.parametrize("by_another", [False, True], ids=["by itself", "by another writer"])
def test_an_index_that_was_stored_as_a_file_before_holds_its_children(
    store: Store, *, by_another: bool
) -> None:
    source = ("test", b"root")
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        if by_another:
            with store.chunks.writer(job) as other:
                other.put(b"an index, or a file with its bytes")
        else:
            writer.put(b"an index, or a file with its bytes")
            writer.barrier()
        child = writer.put(b"what it leads to")
        root = writer.put(b"an index, or a file with its bytes", [child])
        # Said twice, it counts once.
        writer.put(b"an index, or a file with its bytes", [child])
        writer.barrier()
        store.references.update_references(job, [(source, root)], [])
    collector(store).collect()
    assert stored_hashes(store) == {root, child}
    store.references.update_references(None, [], [(source, root)])
    collector(store).collect()
    assert stored_hashes(store) == set()
