"""The scrub: nothing that is damaged stays unknown, and what it found survives an interruption."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.fsck.stage import Damaged
from tests.support.examples import examples

from holdfast.errors import StorageFailed
from holdfast.store.fsck.findings import FindingKind
from holdfast.store.fsck.indexes import verify
from holdfast.store.fsck.scrub import scrub
from holdfast.store.fsck.tables import FsckSettings
from holdfast.store.objects.objects import ChunkKey


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_defect_1c4_a_hash_that_does_not_match_is_reported(damaged: Damaged) -> None:
    """An integrity check that swallows the mismatch cannot report corruption."""
    key = damaged.file_chunk("one", "large")
    data = damaged.object(key)
    # The last byte of the content: sizes, header and frame are all as they should be.
    damaged.replace_object(key, flip(data, len(data) * 8 - 1))
    report = scrub(damaged.store)
    assert not report.ok
    assert {(one.kind, one.key, one.commit, one.path) for one in report.findings} == {
        (FindingKind.DAMAGED_CHUNK, key, "one", "large"),
        (FindingKind.DAMAGED_CHUNK, key, "two", "large"),
    }
    assert all("hash" in one.detail for one in report.findings)
    # The same chunk, found by what repair asks again.
    assert verify(damaged.store.objects, key) is not None


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_flipped_bit_is_found(damaged: Damaged, data: st.DataObject) -> None:
    keys = damaged.known()
    key = keys[data.draw(st.integers(0, len(keys) - 1), label="chunk")]
    stored = damaged.object(key)
    bit = data.draw(st.integers(0, len(stored) * 8 - 1), label="bit")
    damaged.replace_object(key, flip(stored, bit))
    try:
        found = verify(damaged.store.objects, key)
        assert found is not None
        assert (found.kind, found.key) == (FindingKind.DAMAGED_CHUNK, key)
    finally:
        damaged.replace_object(key, stored)
    assert verify(damaged.store.objects, key) is None


def test_a_cut_off_chunk_and_an_empty_one_are_found(damaged: Damaged) -> None:
    keys = damaged.known()[:3]
    for key, size_bytes in zip(keys, (0, 7, 40), strict=True):
        damaged.replace_object(key, damaged.object(key)[:size_bytes])
    assert {one.key for one in scrub(damaged.store).findings} == set(keys)


def test_a_chunk_that_cannot_be_read_is_found(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = damaged.file_chunk("one", "large")
    get = damaged.store.objects.get

    def failing(key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        if key == bad.object_key():
            raise StorageFailed("input/output error", hint="look at the disk")
        return get(key, offset_bytes, size_bytes)

    monkeypatch.setattr(damaged.store.objects, "get", failing)
    assert {one.key for one in scrub(damaged.store).findings} == {bad}


def test_it_goes_on_where_it_was_stopped_and_remembers_what_it_found(damaged: Damaged) -> None:
    keys = damaged.known()
    first = keys[0]
    damaged.replace_object(first, flip(damaged.object(first), 0))
    stop, done = threading.Event(), []

    def tell(size_bytes: int) -> None:
        done.append(size_bytes)
        if len(done) == 10:
            stop.set()

    interrupted = scrub(damaged.store, stop=stop, progress=tell)
    assert (interrupted.objects, interrupted.complete) == (10, False)
    resumed = scrub(damaged.store)
    assert resumed.complete
    assert resumed.resumed_after == keys[9].object_key()
    assert resumed.objects == len(keys) - 10
    assert {one.key for one in resumed.findings} == {first}
    again = scrub(damaged.store)
    assert (again.objects, again.resumed_after) == (len(keys), "")


def test_it_can_be_told_to_begin_again(damaged: Damaged) -> None:
    stop = threading.Event()
    scrub(damaged.store, stop=stop, progress=lambda _: stop.set())
    assert scrub(damaged.store, restart=True).objects == len(damaged.known())


def test_a_crash_repeats_no_more_than_a_bounded_number_of_objects(damaged: Damaged) -> None:
    limits = FsckSettings(scrub_save_objects=4)
    done: list[int] = []

    class Died(BaseException):
        pass

    def tell(size_bytes: int) -> None:
        done.append(size_bytes)
        if len(done) == 11:
            raise Died

    with pytest.raises(Died):
        scrub(damaged.store, settings=limits, progress=tell)
    assert scrub(damaged.store, settings=limits).objects == len(damaged.known()) - 8


def test_it_reads_no_faster_than_it_may(damaged: Damaged) -> None:
    size_bytes = sum(len(damaged.object(key)) for key in damaged.known())
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    rate = size_bytes // 10
    scrub(damaged.store, settings=FsckSettings(scrub_bytes_per_s=rate), stop=Stop())
    # A debt is waited out: nine seconds of ten are left after the burst, summed up over the run.
    assert max(waited) >= 5.0


def test_chunks_that_nobody_needs_are_passed_over(damaged: Damaged) -> None:
    orphan = ChunkKey(damaged.root("one").hash, 400)
    damaged.store.objects.put(orphan.object_key(), [b"not a chunk"])
    assert scrub(damaged.store).ok  # nobody needs it; fsck calls it a leak
