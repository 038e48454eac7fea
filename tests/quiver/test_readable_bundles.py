"""Every readable bundle once and in order, sealed or not, from both ends."""

from __future__ import annotations

import bisect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quiver.machine import SEGMENTS
from tests.readers.setting import (
    StillMachine,
    append,
    check_books,
    drain,
    must_poll,
    sealed,
)
from tests.support.examples import examples

from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.seam.faulty import Fault, FaultKind

LAYOUTS = st.lists(st.sampled_from(["append", "append", "seal", "crash"]), min_size=1, max_size=12)


def readable_of(quiver: Quiver) -> ReadableBundles:
    return quiver._engine.readable


@given(LAYOUTS, st.integers(0, 8))
@settings(max_examples=examples(40))
def test_references_come_in_order_and_own_the_numbers_nobody_used(
    layout: list[str], place: int
) -> None:
    """After each crash numbering skips ahead, within a segment or between two."""
    with StillMachine() as still:
        quiver = still.start()
        seqs: list[int] = []
        for step in layout:
            if step == "append":
                seqs += append(quiver, 1)
            elif step == "seal":
                quiver.flush()
            else:
                quiver = still.restart()
        readable = readable_of(quiver)
        from_seq = seqs[place] if place < len(seqs) else place
        later = seqs[bisect.bisect_left(seqs, from_seq) :]
        forward = list(readable.refs(from_seq))
        assert [ref.seq for ref in forward] == later
        ends = [from_seq, *(seq + 1 for seq in later)]
        assert [ref.owned_from for ref in forward] == ends[: len(later)]

        earlier = seqs[: bisect.bisect_left(seqs, from_seq)]
        backward = list(readable.refs_back(from_seq))
        assert [ref.seq for ref in backward] == earlier[::-1]
        ends = [0, *(seq + 1 for seq in earlier)]
        assert [ref.owned_from for ref in backward] == ends[: len(earlier)][::-1]

        assert readable.oldest_seq() == (seqs[0] if seqs else None)
        assert all(readable.newest_seq() >= seq for seq in seqs)
        for seq in seqs:
            bundle = readable.bundle(seq)
            assert bundle is not None
            assert bundle.seq == seq
        for seq in {seq + 1 for seq in seqs} - set(seqs):
            assert readable.bundle(seq) is None


@pytest.fixture
def replayed(still: StillMachine) -> Quiver:
    """A quiver in which the first of two segments was lost, and replayed from its log file."""
    faults = [Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO, times=1_000_000)]
    quiver = still.start(faults=faults)
    quiver.register("one")
    sealed(quiver, 2, bundles=3)
    append(quiver, 1)
    still.kill()
    folder = still.disk.list(SEGMENTS)[0].name
    still.disk.put(SEGMENTS / folder / "manifest", b"garbage")
    # Unsealed, between nothing and a segment, as long as sealing fails.
    return still.start(faults=[Fault(QuiverPoint.SEAL_MAKE_DIR, FaultKind.EIO, times=1_000_000)])


def test_a_lost_segment_that_is_replayed_lies_in_its_place(replayed: Quiver) -> None:
    readable = readable_of(replayed)
    assert [ref.seq for ref in readable.refs(0)] == [0, 1, 2, 3, 4, 5, 6]
    assert [ref.seq for ref in readable.refs(2)] == [2, 3, 4, 5, 6]
    assert [ref.owned_from for ref in readable.refs(1)] == [1, 2, 3, 4, 5, 6]
    assert [ref.seq for ref in readable.refs_back(5)] == [4, 3, 2, 1, 0]


def test_a_lost_segment_that_is_replayed_is_delivered_in_its_place(replayed: Quiver) -> None:
    assert list(drain(replayed.lease("one"))) == [0, 1, 2, 3, 4, 5, 6]
    assert check_books(replayed)["one"].pending == Totals(0, 0)


def test_what_is_written_and_not_synced_is_not_there_yet(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    append(quiver, 1)
    quiver.append_raw(b"written", level=AckLevel.WRITTEN)
    readable = readable_of(quiver)
    assert [ref.seq for ref in readable.refs(0)] == [0]
    assert readable.bundle(1) is None
    assert readable.extent() == (0, Totals(1, 1))
    assert check_books(quiver)["one"].accepted == Totals(1, 1)
    append(quiver, 1)
    assert [ref.seq for ref in readable.refs(0)] == [0, 1, 2]
    assert check_books(quiver)["one"].accepted == Totals(3, 3)


def test_a_subscriber_that_starts_at_the_latest_gets_what_was_not_synced_yet(
    still: StillMachine,
) -> None:
    """Were it counted as accepted before, a power cut would make the account negative for ever."""
    quiver = still.start()
    append(quiver, 1)
    quiver.append_raw([b"a", b"b"], level=AckLevel.WRITTEN)
    quiver.register("one", start="latest")
    check_books(quiver)
    quiver = still.restart(power=True)
    check_books(quiver)
    append(quiver, 2)
    assert check_books(quiver)["one"].accepted == Totals(2, 2)


def test_only_whole_segments_are_counted_by_their_summaries(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 2, bundles=3)
    subscriber = quiver._engine.ledger.subscriber("one")
    total, size_bytes = readable_of(quiver).waiting(subscriber)
    assert total == Totals(6, 6)
    delivery = must_poll(lease)
    delivery.ack()
    after, after_bytes = readable_of(quiver).waiting(subscriber)
    assert after == Totals(5, 5)
    assert after_bytes == size_bytes * 5 // 6
    first, second = quiver.segments()
    assert readable_of(quiver).unresolved(subscriber, first) == Totals(2, 2)
    assert readable_of(quiver).unresolved(subscriber, second) == Totals(3, 3)


def test_nothing_is_read_before_it_is_counted_as_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader could resolve it, and its account would have more outcomes than events."""
    with StillMachine() as still:
        quiver = still.start()
        counters, seen = quiver._engine.writer.counters, []
        count = counters.count

        def look_and_count(*args: Any) -> int:
            seen.append([ref.seq for ref in readable_of(quiver).refs(0)])
            return count(*args)

        monkeypatch.setattr(counters, "count", look_and_count)
        first, second = append(quiver, 2)
        assert seen == [[], [first]]
        assert [ref.seq for ref in readable_of(quiver).refs(0)] == [first, second]
