"""What holds for whoever reads a quiver, by a cursor or by a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import SEGMENTS
from tests.readers.setting import StillMachine, append, check_books, sealed
from tests.support.disk import GatedDisk

from holdfast.errors import Fenced, StorageFailed, UnknownSubscriber
from holdfast.quiver import Lease, Outcome, Quiver
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind

NAME = "stats"


class Taken(NamedTuple):
    """What a reader was handed, and how it says that it is done with it."""

    seqs: list[int]
    done: Callable[[], object]


class Reader:
    """A cursor or a lease, in the words that they share: one bundle at a time."""

    def __init__(self, kind: str, quiver: Quiver) -> None:
        counting = partial(quiver.cursor, on_data_loss="count")
        self.attached = counting(NAME) if kind == "cursor" else quiver.lease(NAME)

    def take(self, wait_s: float = 0.0) -> Taken | None:
        if isinstance(self.attached, Lease):
            leased = self.attached.poll(timeout_s=wait_s)
            return None if leased is None else Taken([leased.seq], leased.ack)
        planned = self.attached.plan(max_events=1, wait_s=wait_s)
        if planned is None:
            return None
        seqs = [bundle.seq for bundle in self.attached.read(planned)]
        return Taken(seqs, partial(self.attached.commit, planned))

    def must_take(self) -> Taken:
        taken = self.take()
        assert taken is not None
        return taken

    def rest(self) -> Iterator[int]:
        """Take all there is, and be done with it."""
        while (taken := self.take()) is not None:
            taken.done()
            yield from taken.seqs


Open = Callable[[Quiver], Reader]


@pytest.fixture(params=["cursor", "lease"])
def reader(request: pytest.FixtureRequest) -> Open:
    """How a reader of this kind is attached."""
    return partial(Reader, request.param)


# ------------------------------------------------------------------------ all of it, once


def test_every_bundle_comes_once_and_in_order_sealed_or_not(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    reads = reader(quiver)
    expected = sealed(quiver, 2, bundles=3) + append(quiver, 2)
    assert list(reads.rest()) == expected
    assert reads.take() is None
    balance = check_books(quiver)[NAME]
    assert balance.outcomes[Outcome.ACKED] == balance.accepted == Totals(8, 8)


def test_heartbeats_count_as_bundles_without_events(still: StillMachine, reader: Open) -> None:
    quiver = still.start()
    reads = reader(quiver)
    quiver.heartbeat("p", 5)
    assert list(reads.rest()) == [0]
    assert check_books(quiver)[NAME].outcomes[Outcome.ACKED] == Totals(1, 0)


def test_a_damaged_bundle_gets_that_outcome_and_the_others_come(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    quiver.register(NAME)
    for payload in (b"first", b"second" * 10, b"third"):
        quiver.append_raw(payload)
        quiver.flush()
    still.stop()
    path = SEGMENTS / still.disk.list(SEGMENTS)[1].name / "000-events.arrow"
    still.disk.overwrite(path, still.disk.read(path).index(b"second"), b"\xff")
    assert list(reader(still.start()).rest()) == [0, 2]
    for _ in range(2):
        outcomes = check_books(still.restart())[NAME].outcomes
        assert (outcomes[Outcome.DAMAGED], outcomes[Outcome.ACKED]) == (Totals(1, 1), Totals(2, 2))


def test_what_is_replayed_comes_again_to_the_reader_that_is_attached(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    quiver.register("keeper")
    reads = reader(quiver)
    append(quiver, 5)
    list(reads.rest())
    assert quiver.replay(NAME, 1, 3) == Totals(2, 2)
    check_books(quiver)
    assert list(reads.rest()) == [1, 2]
    assert check_books(quiver)[NAME].outcomes[Outcome.ACKED] == Totals(7, 7)


# ------------------------------------------------------------------------------- restarts


def test_a_restart_resumes_in_the_middle_of_a_segment(still: StillMachine, reader: Open) -> None:
    quiver = still.start()
    reads = reader(quiver)
    sealed(quiver, 1, bundles=4)
    first, _, third = (reads.must_take() for _ in range(3))
    first.done()
    third.done()
    quiver = still.restart()
    assert list(reader(quiver).rest()) == [1, 3]
    check_books(quiver)


def test_what_was_done_before_a_clean_shutdown_does_not_come_again(
    still: StillMachine, reader: Open
) -> None:
    """Upstream sealed its data at shutdown and forgot the acks since the last tick."""
    quiver = still.start()
    reads = reader(quiver)
    append(quiver, 3)
    reads.must_take().done()
    still.stop()
    still.cut_power()
    assert list(reader(still.start()).rest()) == [1, 2]


def test_what_a_power_cut_took_comes_again_and_nothing_else(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    reads = reader(quiver)
    append(quiver, 4)
    reads.must_take().done()
    quiver._engine.ledger.sync()
    reads.must_take().done()
    quiver = still.restart(power=True)
    assert list(reader(quiver).rest()) == [1, 2, 3]
    check_books(quiver)


def test_a_paused_subscriber_gets_nothing_also_after_a_restart_until_it_resumes(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    reads = reader(quiver)
    append(quiver, 2)
    reads.attached.pause()
    assert reads.take() is None
    still.stop()
    reads = reader(still.start())
    assert reads.take() is None
    reads.attached.resume()
    assert list(reads.rest()) == [0, 1]


# ------------------------------------------------------------------------ who may say so


def test_a_stale_reader_is_fenced_off_whatever_it_says(still: StillMachine, reader: Open) -> None:
    quiver = still.start()
    old = reader(quiver)
    append(quiver, 2)
    taken = old.must_take()
    new = reader(quiver)
    for say in (old.take, taken.done, old.attached.pause, old.attached.resume):
        with pytest.raises(Fenced, match="replaced by"):
            say()
    assert not quiver._engine.ledger.subscriber(NAME).paused
    assert list(new.rest()) == [0, 1]
    old.attached.close()
    assert quiver._engine.ledger.subscriber(NAME).absent_since_ns is None


def test_an_unregistered_subscriber_is_unknown_to_its_reader(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    reads = reader(quiver)
    append(quiver, 1)
    taken = reads.must_take()
    quiver.unregister(NAME)
    for say in (reads.take, taken.done):
        with pytest.raises(UnknownSubscriber):
            say()


def test_a_reader_of_a_subscriber_that_is_gone_does_not_speak_for_its_successor(
    still: StillMachine, reader: Open
) -> None:
    quiver = still.start()
    old = reader(quiver)
    append(quiver, 1)
    taken = old.must_take()
    quiver.unregister(NAME)
    new = reader(quiver)
    with pytest.raises(Fenced):
        taken.done()
    assert new.must_take().seqs == [0]


def test_what_cannot_be_recorded_is_told_and_may_be_said_again(
    still: StillMachine, reader: Open
) -> None:
    faulty = GatedDisk(still.disk, at="nowhere")
    quiver = still.start(through=lambda _: faulty)
    reads = reader(quiver)
    append(quiver, 1)
    taken = reads.must_take()
    nth = faulty.calls()[QuiverPoint.LEDGER_WRITE] + 1
    faulty.add(Fault(QuiverPoint.LEDGER_WRITE, FaultKind.EIO, nth))
    with pytest.raises(StorageFailed):
        taken.done()
    assert check_books(quiver)[NAME].pending == Totals(1, 1)
    taken.done()
    assert check_books(quiver)[NAME].pending == Totals(0, 0)


# ------------------------------------------------------------------------------- waiting


def test_new_data_wakes_a_reader_that_waits(still: StillMachine, reader: Open) -> None:
    quiver = still.start()
    reads = reader(quiver)
    assert reads.take(wait_s=0.01) is None
    found: list[Taken | None] = []
    thread = threading.Thread(target=lambda: found.append(reads.take(PATIENCE_S)), daemon=True)
    thread.start()
    append(quiver, 1)
    thread.join(PATIENCE_S)
    assert [taken.seqs for taken in found if taken] == [[0]]
