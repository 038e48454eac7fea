"""Transactions: all bundles or none, under consecutive seqs, within a budget and a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S
from tests.quiver.batches import column_of, numbers
from tests.quiver.machine import Machine, quiet
from tests.support.clock import ManualClock
from tests.support.disk import GatedDisk

from holdfast.errors import (
    BadInput,
    BundleTooLarge,
    DiskFull,
    NotAccepted,
    Overloaded,
    QuiverClosed,
    TransactionEnded,
)
from holdfast.quiver import Quiver, QuiverConfig, Transaction, TransactionConfig
from holdfast.quiver.base.bundle import ROWS_MAX
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.transaction import OpenTransactions
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash


def budget(max_staged_bytes: int) -> QuiverConfig:
    return replace(quiet(), transactions=TransactionConfig(max_staged_bytes=max_staged_bytes))


# ---------------------------------------------------------------------- all or none


def test_a_commit_stores_all_bundles_under_consecutive_seqs(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append(numbers(0))
    transaction = quiver.transaction()
    for value in (1, 2, 3):
        transaction.append(numbers(value))
    transaction.append_raw(b"raw", slot="other")
    receipt = transaction.commit()
    assert (receipt.seq, receipt.bundles, receipt.events) == (1, 4, 4)
    assert transaction.receipt == receipt
    rows = quiver.scan(["_seq", "n"], slot="events").read_all().to_pylist()
    assert rows == [{"_seq": seq, "n": seq} for seq in range(4)]
    assert column_of(quiver, "payload", slot="other") == [b"raw"]


def test_nothing_is_visible_or_on_disk_before_the_commit(machine: Machine) -> None:
    quiver = machine.start()
    before = quiver.statistics()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    after = quiver.statistics()
    assert (after.wal_bytes, after.next_seq) == (before.wal_bytes, before.next_seq)
    assert column_of(quiver) == []
    machine.kill()
    assert column_of(machine.start()) == []


def test_a_transaction_of_one_bundle_is_as_good_as_an_append(machine: Machine) -> None:
    quiver = machine.start()
    with quiver.transaction() as transaction:
        transaction.append(numbers(1))
    machine.kill()
    assert column_of(machine.start()) == [1]


@pytest.mark.parametrize("end", ["kill", "cut_power", "stop"])
def test_a_committed_transaction_survives(machine: Machine, end: str) -> None:
    with machine.start().transaction() as transaction:
        for value in range(5):
            transaction.append(numbers(value))
    getattr(machine, end)()
    assert column_of(machine.start()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(QuiverPoint.WAL_WRITE, FaultKind.KILL_BEFORE),
        Fault(QuiverPoint.WAL_WRITE, FaultKind.KILL_MIDWAY),
        Fault(QuiverPoint.WAL_SYNC, FaultKind.KILL_BEFORE),
    ],
    ids=lambda fault: f"{fault.at}-{fault.kind}",
)
@pytest.mark.parametrize("end", ["kill", "cut_power"])
def test_a_crash_during_the_commit_leaves_all_bundles_or_none(
    machine: Machine, fault: Fault, end: str
) -> None:
    quiver = machine.start(faults=[fault])
    transaction = quiver.transaction()
    for value in range(5):
        transaction.append(numbers(value, value))
    with pytest.raises((SimulatedCrash, NotAccepted)):
        transaction.commit()
    getattr(machine, end)()
    quiver = machine.start()
    found = column_of(quiver)
    assert found in ([], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert not (found and fault.kind is FaultKind.KILL_BEFORE and fault.at == QuiverPoint.WAL_WRITE)


def test_a_commit_the_disk_refuses_stores_nothing_and_ends_the_transaction(
    machine: Machine,
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, FaultKind.SHORT_WRITE)])
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    transaction.append(numbers(2))
    with pytest.raises(DiskFull) as caught:
        transaction.commit()
    assert caught.value.stored == "no"
    with pytest.raises(TransactionEnded):
        transaction.commit()
    assert quiver.statistics().staged_bytes == 0
    machine.kill()
    assert column_of(machine.start()) == []


def test_transactions_and_appends_of_many_threads_do_not_mix_their_seqs(machine: Machine) -> None:
    quiver = machine.start()
    ready = threading.Barrier(4)

    def commit(first: int) -> None:
        ready.wait(PATIENCE_S)
        for turn in range(10):
            with quiver.transaction() as transaction:
                for value in range(3):
                    transaction.append(numbers(first + 10 * turn + value))

    def append() -> None:
        ready.wait(PATIENCE_S)
        for _ in range(30):
            quiver.append(numbers(-1))

    threads = [threading.Thread(target=commit, args=(1000 * n,)) for n in range(1, 4)]
    threads.append(threading.Thread(target=append))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [value for value in column_of(quiver) if value >= 0]
    assert len(values) == 90
    for place in range(0, 90, 3):
        first = values[place]
        assert values[place : place + 3] == [first, first + 1, first + 2]


# ---------------------------------------------------------------------------- ending


def test_abort_forgets_everything(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    transaction.abort()
    assert quiver.statistics().staged_bytes == 0
    assert quiver.statistics().next_seq == 0
    with pytest.raises(TransactionEnded):
        transaction.append(numbers(2))


USES: dict[str, Callable[[Transaction], object]] = {
    "append": lambda transaction: transaction.append(numbers(2)),
    "append_raw": lambda transaction: transaction.append_raw(b"x"),
    "commit": lambda transaction: transaction.commit(),
    "abort": lambda transaction: transaction.abort(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_ended_transaction_cannot_be_used_again(
    machine: Machine, end: str, use: Callable[[Transaction], object]
) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    getattr(transaction, end)()
    with pytest.raises(TransactionEnded, match="begin a new one"):
        use(transaction)
    assert column_of(quiver) == ([1] if end == "commit" else [])


def test_an_empty_transaction_cannot_be_committed_and_is_over(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    with pytest.raises(BadInput, match="no bundles"):
        transaction.commit()
    with pytest.raises(TransactionEnded):
        transaction.append(numbers(1))


def test_leaving_the_block_commits(machine: Machine) -> None:
    quiver = machine.start()
    with quiver.transaction() as transaction:
        transaction.append(numbers(1))
    assert transaction.receipt is not None
    assert column_of(quiver) == [1]


def test_an_error_in_the_block_aborts_and_goes_on(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    with pytest.raises(ZeroDivisionError):
        fail_after(transaction, lambda: transaction.append(numbers(1)))
    assert transaction.receipt is None
    assert quiver.statistics().staged_bytes == 0
    assert column_of(quiver) == []


def fail_after(transaction: Transaction, step: Callable[[], object]) -> None:
    with transaction:
        step()
        raise ZeroDivisionError


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_block_may_end_its_transaction_itself(machine: Machine, end: str) -> None:
    quiver = machine.start()
    with quiver.transaction() as transaction:
        transaction.append(numbers(1))
        getattr(transaction, end)()
    assert column_of(quiver) == ([1] if end == "commit" else [])


def test_an_error_after_the_commit_in_the_block_takes_nothing_back(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    with pytest.raises(ZeroDivisionError):
        fail_after(transaction, transaction.commit)
    assert column_of(quiver) == [1]


def test_bad_input_inside_a_transaction_leaves_what_was_staged(machine: Machine) -> None:
    quiver = machine.start()
    with quiver.transaction() as transaction:
        transaction.append(numbers(1))
        with pytest.raises(BadInput):
            transaction.append(numbers())
        with pytest.raises(BundleTooLarge):
            transaction.append_raw(bytes(2 * MB))
        transaction.append(numbers(2))
    assert column_of(quiver) == [1, 2]


def test_a_commit_after_the_quiver_closed_is_refused(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    machine.stop()
    with pytest.raises(QuiverClosed):
        transaction.commit()
    assert column_of(machine.start()) == []


# ----------------------------------------------------------------------------- bounds


def test_staged_bytes_over_the_budget_are_refused_and_the_rest_stays(machine: Machine) -> None:
    quiver = machine.start(budget(10_000))
    transaction = quiver.transaction()
    transaction.append_raw(bytes(5_000))
    with pytest.raises(Overloaded, match="max_staged_bytes") as caught:
        transaction.append_raw(bytes(5_000))
    assert caught.value.stored == "no"
    transaction.append_raw(bytes(100))
    assert transaction.commit().bundles == 2
    assert quiver.statistics().staged_bytes == 0


def test_the_budget_is_shared_by_all_open_transactions(machine: Machine) -> None:
    quiver = machine.start(budget(10_000))
    one, two = quiver.transaction(), quiver.transaction()
    one.append_raw(bytes(8_000))
    with pytest.raises(Overloaded):
        two.append_raw(bytes(8_000))
    one.abort()
    two.append_raw(bytes(8_000))
    assert 8_000 < quiver.statistics().staged_bytes < 8_100
    two.commit()
    assert quiver.statistics().staged_bytes == 0


def test_rows_that_take_no_bytes_use_up_the_budget_too(machine: Machine) -> None:
    quiver = machine.start(budget(10 * MB))
    transaction = quiver.transaction()
    with pytest.raises(Overloaded):
        transaction.append(pa.record_batch({"n": pa.nulls(ROWS_MAX)}))


def test_an_untouched_transaction_is_swept_and_its_owner_told() -> None:
    clock = ManualClock()
    staging = OpenTransactions(TransactionConfig(lease_s=60.0), clock)
    swept, alive = (new_transaction(staging) for _ in range(2))
    swept.append(numbers(1))
    clock.now_s += 40
    alive.append(numbers(1))
    clock.now_s += 40
    with pytest.raises(TransactionEnded, match="no longer open") as caught:
        swept.append(numbers(2))
    assert "lease_s" in caught.value.hint
    assert staging.staged_bytes == alive.staged_bytes > 0
    with pytest.raises(TransactionEnded):
        swept.commit()
    with pytest.raises(TransactionEnded), swept:
        pass


def test_every_append_renews_the_lease() -> None:
    clock = ManualClock()
    staging = OpenTransactions(TransactionConfig(lease_s=60.0), clock)
    transaction = new_transaction(staging)
    for _ in range(5):
        clock.now_s += 59
        transaction.append(numbers(1))
    assert len(transaction.bundles) == 5


def test_a_transaction_swept_within_a_block_raises_at_its_end() -> None:
    clock = ManualClock()
    staging = OpenTransactions(TransactionConfig(lease_s=60.0), clock)
    transaction = new_transaction(staging)
    transaction.append(numbers(1))
    with pytest.raises(TransactionEnded), transaction:
        clock.now_s += 61


def new_transaction(staging: OpenTransactions) -> Transaction:
    def write(bundles: object) -> object:
        raise AssertionError("nothing is committed here")

    return Transaction(staging, MB, write)  # type: ignore[arg-type]


def test_a_bundle_accepted_the_moment_before_the_commit_is_part_of_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    stage = OpenTransactions.stage

    def stage_and_commit(staging: OpenTransactions, *what: Any) -> None:
        stage(staging, *what)
        transaction.commit()

    monkeypatch.setattr(OpenTransactions, "stage", stage_and_commit)
    transaction.append(numbers(2))
    assert transaction.receipt is not None
    assert transaction.receipt.bundles == 2
    assert column_of(quiver) == [1, 2]
    assert quiver.statistics().staged_bytes == 0


def test_a_transaction_larger_than_all_pending_bytes_is_let_in_alone() -> None:
    with Machine() as machine:
        quiver = machine.start(quiet(max_pending_bytes=1_000))
        with quiver.transaction() as transaction:
            for _ in range(10):
                transaction.append_raw(bytes(1_000))
        assert transaction.receipt is not None
        assert transaction.receipt.bundles == 10


def test_a_commit_waits_its_turn_behind_a_group_that_is_being_synced(machine: Machine) -> None:
    gated = GatedDisk(machine.disk, QuiverPoint.WAL_SYNC)
    quiver = machine.start(through=lambda _: gated)
    first = threading.Thread(target=quiver.append, args=(numbers(0),))
    first.start()
    assert gated.reached.wait(PATIENCE_S)
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    transaction.append(numbers(2))
    committing = threading.Thread(target=transaction.commit)
    committing.start()
    gated.gate.set()
    first.join()
    committing.join()
    assert transaction.receipt is not None
    assert transaction.receipt.seq == 1
    assert column_of(quiver) == [0, 1, 2]


def test_the_clock_of_leases_is_the_monotonic_one(machine: Machine) -> None:
    quiver = machine.start()
    transaction = quiver.transaction()
    transaction.append(numbers(1))
    machine.clock.jump(10 * 365 * 24 * 3600)
    assert transaction.commit().bundles == 1


def test_a_quiver_hands_out_transactions_only_to_well_formed_producers(machine: Machine) -> None:
    quiver: Quiver = machine.start()
    for producer, epoch in ((None, 1), ("p", 0), ("", 1)):
        with pytest.raises(BadInput):
            quiver.transaction(producer=producer, epoch=epoch)
