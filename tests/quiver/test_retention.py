"""Retention of segments: what may go, what must go, and in which order."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from tests.patience import APPEND_S, PATIENCE_S
from tests.quiver.machine import ROOT, SEGMENTS, START_NS, contents, disk_with
from tests.readers.setting import (
    StillMachine,
    append,
    calm,
    check_books,
    drain,
    keep,
    must_poll,
    sealed,
)

from holdfast.errors import BadInput, Overloaded, StorageFailed
from holdfast.quiver import LeaseOptions, Outcome, Quiver, RetentionConfig, SubscriberOptions
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.keep.retention import Removal
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash

TRASH = ROOT / "trash"
# Together with its segment's own files this fills a fifth of the smallest cap.
LARGE_BYTES = 400 * KB


def ranges(quiver: Quiver) -> list[tuple[int, int]]:
    return [(s.summary.first_seq, s.summary.last_seq) for s in quiver.segments()]


def evictions(quiver: Quiver) -> dict[str, int]:
    """Return what was evicted so far, by reason, as a gateway sends it to who asks for its status.

    With anything but a plain dict, `asdict` made keys of keys and values (Python 3.11).
    """
    told = json.loads(json.dumps(asdict(quiver.statistics())))
    return {reason: n for reason, n in told["retention"]["evictions"].items() if n}


# -------------------------------------------------------------------- steady state


def test_a_segment_goes_when_everyone_has_resolved_it(still: StillMachine) -> None:
    quiver = still.start()
    one, two = quiver.lease("one"), quiver.lease("two")
    sealed(quiver, 2, bundles=2)
    assert list(drain(one)) == [0, 1, 2, 3]
    keep(quiver)
    assert ranges(quiver) == [(0, 1), (2, 3)]
    first = must_poll(two)
    first.ack()
    keep(quiver)
    assert ranges(quiver) == [(0, 1), (2, 3)]
    assert list(drain(two)) == [1, 2, 3]
    keep(quiver)
    assert ranges(quiver) == []
    assert evictions(quiver) == {"processed": 2}
    assert still.disk.list(SEGMENTS) == still.disk.list(TRASH) == []
    check_books(quiver)


def test_while_nobody_is_registered_nothing_counts_as_processed(still: StillMachine) -> None:
    quiver = still.start()
    sealed(quiver, 2)
    keep(quiver)
    assert len(quiver.segments()) == 2
    quiver.register("late")
    assert check_books(quiver)["late"].pending == Totals(2, 2)


def test_what_lies_before_everyones_start_is_processed(still: StillMachine) -> None:
    quiver = still.start()
    sealed(quiver, 1)
    quiver.register("late", start="latest")
    sealed(quiver, 1)
    keep(quiver)
    assert ranges(quiver) == [(1, 1)]


def test_headroom_keeps_the_newest_processed_segments(still: StillMachine) -> None:
    quiver = still.start(calm(RetentionConfig(steady_state_headroom_bytes=50 * KB)))
    lease = quiver.lease("one")
    sealed(quiver, 4)
    list(drain(lease))
    kept_bytes = quiver.segments()[0].disk_bytes
    keep(quiver)
    kept = 50 * KB // kept_bytes
    assert 0 < kept < 4
    assert ranges(quiver) == [(seq, seq) for seq in range(4 - kept, 4)]
    quiver.register("late")
    assert check_books(quiver)["late"].pending.bundles == kept


def test_a_copy_that_begins_during_a_tick_stops_the_removals_that_were_planned(
    still: StillMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went on, and a copy beside a busy owner began again until it gave up."""
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 3)
    list(drain(lease))
    retention = quiver._engine.retention
    remove = retention._remove

    def removed_while_a_copy_begins(removal: Removal) -> bool:
        retention.hold(60)
        return remove(removal)

    monkeypatch.setattr(retention, "_remove", removed_while_a_copy_begins)
    keep(quiver)
    assert ranges(quiver) == [(1, 1), (2, 2)]


def test_a_segment_nobody_needs_is_read_to_the_end_by_whoever_has_it(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 1)
    (segment,) = quiver.segments()
    (bundle,) = segment.bundles()
    assert bundle.payloads
    list(drain(lease))
    keep(quiver)
    assert bundle.payloads == [b"0xxxxxxxxxx"]


# ------------------------------------------------------------------------------ age


def test_only_what_is_too_old_expires_with_exact_counts(still: StillMachine) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=100.0)))
    lease = quiver.lease("one")
    append(quiver, 3, events=2)
    quiver.flush()
    first = must_poll(lease)
    first.ack()
    still.clock.pass_time(60)
    sealed(quiver, 1)
    still.clock.pass_time(60)
    keep(quiver)
    assert ranges(quiver) == [(3, 3)]
    outcomes = check_books(quiver)["one"].outcomes
    assert outcomes[Outcome.EXPIRED] == Totals(2, 4)
    assert outcomes[Outcome.ACKED] == Totals(1, 2)
    assert outcomes[Outcome.DROPPED] == Totals(0, 0)
    assert evictions(quiver) == {"age": 1}


def test_without_an_age_limit_nothing_expires(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    sealed(quiver, 1)
    still.clock.pass_time(10 * 365 * 86400)
    keep(quiver)
    assert ranges(quiver) == [(0, 0)]


def test_age_takes_what_nobody_reads_and_needs_no_subscriber(still: StillMachine) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=100.0)))
    sealed(quiver, 1)
    still.clock.pass_time(101)
    keep(quiver)
    assert ranges(quiver) == []


def test_age_leaves_alone_what_is_in_somebodys_hands_until_the_lease_lapses(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=100.0)))
    lease = quiver.lease("one", leasing=LeaseOptions(lease_s=300))
    sealed(quiver, 1)
    delivery = must_poll(lease)
    still.clock.pass_time(101)
    keep(quiver)
    assert ranges(quiver) == [(0, 0)]
    still.clock.pass_time(300)
    keep(quiver)
    assert ranges(quiver) == []
    assert delivery.ack() is False
    assert check_books(quiver)["one"].outcomes[Outcome.EXPIRED] == Totals(1, 1)


def test_what_expired_while_the_process_was_down_is_counted_at_the_next_start(
    still: StillMachine,
) -> None:
    retention = RetentionConfig(max_age_s=100.0)
    quiver = still.start(calm(retention))
    quiver.register("one")
    sealed(quiver, 2, bundles=2)
    append(quiver, 1)
    still.stop()
    still.clock.pass_time(1000)
    quiver = still.start(calm(retention))
    keep(quiver)
    assert ranges(quiver) == []
    assert check_books(quiver)["one"].outcomes[Outcome.EXPIRED] == Totals(5, 5)
    assert list(drain(quiver.lease("one"))) == []


def test_a_subscriber_whose_data_expired_while_it_was_away_goes_on_behind_it(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=100.0)))
    with quiver.lease("one") as lease:
        sealed(quiver, 1)
        lease.poll()
    still.clock.pass_time(101)
    keep(quiver)
    append(quiver, 1)
    assert list(drain(quiver.lease("one"))) == [1]
    check_books(quiver)


@pytest.mark.parametrize("jump_s", [365 * 86400.0, -365 * 86400.0])
def test_data_does_not_expire_because_the_clock_jumps(still: StillMachine, jump_s: float) -> None:
    quiver = still.start(calm(RetentionConfig(max_age_s=100.0)))
    quiver.register("one")
    sealed(quiver, 1)
    still.clock.jump(jump_s)
    sealed(quiver, 1)
    keep(quiver)
    assert len(quiver.segments()) == 2
    check_books(quiver)


def test_an_expired_segment_that_is_damaged_is_counted_by_its_summary(
    still: StillMachine,
) -> None:
    retention = RetentionConfig(max_age_s=100.0)
    quiver = still.start(calm(retention))
    quiver.register("one")
    sealed(quiver, 1, bundles=4)
    still.stop()
    (folder,) = still.disk.list(SEGMENTS)
    still.disk.put(SEGMENTS / folder.name / "000-events.arrow", b"garbage")
    still.clock.pass_time(101)
    quiver = still.start(calm(retention))
    keep(quiver)
    assert check_books(quiver)["one"].outcomes[Outcome.EXPIRED] == Totals(4, 4)


# ---------------------------------------------------------------------------- size


def small(**changes: object) -> RetentionConfig:
    return RetentionConfig(size_cap_bytes=4 * MB, **changes)  # type: ignore[arg-type]


def reserved(quiver: Quiver) -> int:
    return quiver._engine.reserve.held_bytes


def fill(quiver: Quiver, at_most: int = 20) -> int:
    """Append large bundles, each its own segment, until that is refused; return how many."""
    for count in range(at_most):
        try:
            append(quiver, 1, size_bytes=LARGE_BYTES)
        except Overloaded:
            return count
        quiver.flush()
    raise AssertionError("nothing was ever refused")


def test_under_backpressure_an_append_is_refused_and_the_next_one_too_until_something_is_acked(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    lease = quiver.lease("one")
    count = fill(quiver)
    assert count > 3
    with pytest.raises(Overloaded, match="held by one") as refused:
        append(quiver, 1, size_bytes=LARGE_BYTES)
    assert refused.value.stored == "no"
    assert refused.value.retry_after_s is not None
    assert check_books(quiver)["one"].pending.bundles == count
    assert quiver.statistics().retention.throttled == 2
    assert len(list(drain(lease))) == count
    append(quiver, 1, size_bytes=LARGE_BYTES)
    assert check_books(quiver)["one"].outcomes[Outcome.DROPPED] == Totals(0, 0)


def test_who_waits_for_room_is_let_in_when_a_reader_makes_some(still: StillMachine) -> None:
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    lease = quiver.lease("one")
    fill(quiver)
    delivery = must_poll(lease)
    delivery.ack()
    append(quiver, 1, size_bytes=LARGE_BYTES)


def test_the_cap_holds_for_what_is_really_on_disk(still: StillMachine) -> None:
    quiver = still.start(calm(small(size_cap_policy="drop_oldest"), timeout_s=APPEND_S))
    quiver.register("one")
    largest = 0
    for _ in range(30):
        append(quiver, 1, size_bytes=LARGE_BYTES)
        largest = max(largest, still.disk.used_bytes(ROOT))
    assert 2 * MB < largest <= 4 * MB
    check_books(quiver)


def test_drop_oldest_takes_processed_segments_first_and_then_the_oldest(
    still: StillMachine,
) -> None:
    retention = small(size_cap_policy="drop_oldest", steady_state_headroom_bytes=100 * MB)
    quiver = still.start(calm(retention, timeout_s=APPEND_S))
    lease = quiver.lease("one")
    sealed(quiver, 5, size_bytes=LARGE_BYTES)
    deliveries = [lease.poll() for _ in range(5)]
    for place in (1, 3):
        delivery = deliveries[place]
        assert delivery is not None
        delivery.ack()
    lease.close()
    keep(quiver)
    assert ranges(quiver) == [(seq, seq) for seq in range(5)], "within cap and headroom"
    gone: list[int] = []
    while len(gone) < 4:
        before = {first for first, _ in ranges(quiver)}
        sealed(quiver, 1, size_bytes=LARGE_BYTES)
        gone += sorted(before - {first for first, _ in ranges(quiver)})
    assert gone[:4] == [1, 3, 0, 2]
    assert check_books(quiver)["one"].outcomes[Outcome.DROPPED] == Totals(2, 2)
    assert quiver.statistics().retention.dropped_segments == 2
    assert quiver.statistics().retention.size_emergencies == 4
    assert evictions(quiver) == {"size": 4}


def test_drop_oldest_skips_what_is_in_somebodys_hands(still: StillMachine) -> None:
    quiver = still.start(calm(small(size_cap_policy="drop_oldest"), timeout_s=APPEND_S))
    lease = quiver.lease("one", leasing=LeaseOptions(max_in_flight=1))
    sealed(quiver, 1, size_bytes=LARGE_BYTES)
    delivery = must_poll(lease)
    sealed(quiver, 10, size_bytes=LARGE_BYTES)
    assert ranges(quiver)[0] == (0, 0)
    assert delivery.ack()
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.ACKED] == Totals(1, 1)
    assert balance.outcomes[Outcome.DROPPED].bundles > 3


def test_what_is_given_back_is_in_nobodys_hands_and_may_go(still: StillMachine) -> None:
    quiver = still.start(calm(small(size_cap_policy="drop_oldest"), timeout_s=APPEND_S))
    lease = quiver.lease("one", leasing=LeaseOptions(max_in_flight=1))
    sealed(quiver, 1, size_bytes=LARGE_BYTES)
    delivery = must_poll(lease)
    delivery.nack(retry_after_s=3600)
    sealed(quiver, 10, size_bytes=LARGE_BYTES)
    assert ranges(quiver)[0] != (0, 0)
    assert delivery.ack() is False
    still.clock.pass_time(3601)
    assert 0 not in list(drain(lease))
    check_books(quiver)


def test_drop_oldest_takes_from_the_open_buffer_when_nothing_is_sealed(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(small(size_cap_policy="drop_oldest"), timeout_s=5.0))
    quiver.register("one")
    for _ in range(20):  # never flushed by the test
        append(quiver, 1, size_bytes=LARGE_BYTES)
    balance = check_books(quiver)["one"]
    assert balance.accepted.bundles == 20
    assert balance.outcomes[Outcome.DROPPED].bundles > 8


def test_a_refusal_names_who_holds_what_is_not_sealed_yet(still: StillMachine) -> None:
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    with quiver.lease("done") as done:
        quiver.register("one")
        append(quiver, 1, size_bytes=2 * LARGE_BYTES)
        assert list(drain(done)) == [0]
        assert quiver.segments() == ()
        refusal = quiver.refusal(4 * LARGE_BYTES)
    assert refusal is not None
    assert "its oldest is held by one" in refusal.message
    assert f"the cap is {small().size_cap_bytes}" in refusal.message


def test_with_nobody_registered_backpressure_refuses_and_drop_oldest_does_not(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    fill(quiver)
    with pytest.raises(Overloaded, match="nobody is registered to read it"):
        append(quiver, 1, size_bytes=LARGE_BYTES)
    still.stop()
    quiver = still.start(calm(small(size_cap_policy="drop_oldest"), timeout_s=APPEND_S))
    append(quiver, 5, size_bytes=LARGE_BYTES)


def test_the_oldest_of_a_willing_subscriber_goes_before_anybody_has_to_wait(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    quiver.register("willing", options=SubscriberOptions(on_full="drop_oldest"))
    for _ in range(12):
        append(quiver, 1, size_bytes=LARGE_BYTES)
    assert check_books(quiver)["willing"].outcomes[Outcome.DROPPED].bundles > 3


def test_a_segment_that_an_unwilling_one_needs_stays_and_the_producer_waits(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    quiver.register("willing", options=SubscriberOptions(on_full="drop_oldest"))
    quiver.register("unwilling")
    fill(quiver)
    balances = check_books(quiver)
    assert balances["willing"].outcomes[Outcome.DROPPED] == Totals(0, 0)
    assert balances["unwilling"].pending == balances["unwilling"].accepted


def test_a_cap_smaller_than_a_few_segments_is_refused(still: StillMachine) -> None:
    with pytest.raises(BadInput, match="less than four segments"):
        still.start(calm(RetentionConfig(size_cap_bytes=4 * MB - 1)))


def test_quarantined_bytes_are_inside_the_budget(still: StillMachine) -> None:
    """Upstream left damaged files outside it, and never reclaimed them."""
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    quiver.register("one")
    sealed(quiver, 2, size_bytes=LARGE_BYTES)
    still.stop()
    folder = still.disk.list(SEGMENTS)[0].name
    still.disk.put(SEGMENTS / folder / "manifest", b"garbage")
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    statistics = quiver.statistics()
    assert statistics.quarantined_bytes > LARGE_BYTES
    assert statistics.used_bytes >= statistics.quarantined_bytes + LARGE_BYTES
    assert statistics.used_bytes >= still.disk.used_bytes(ROOT)
    assert check_books(quiver)["one"].outcomes[Outcome.DAMAGED] == Totals(1, 1)


def test_a_few_megabytes_work_however_long_the_ledger_gets(still: StillMachine) -> None:
    """The ledger itself must not fill a small cap: it is rotated early, and its past goes."""
    quiver = still.start(calm(small(), timeout_s=PATIENCE_S))
    lease = quiver.lease("one")
    for _ in range(60):
        append(quiver, 10, size_bytes=10_000)
        for _ in range(10):
            assert must_poll(lease).reject("a long story " * 1000)
        keep(quiver)
    assert quiver.statistics().ledger_bytes < 1 * MB
    assert check_books(quiver)["one"].outcomes[Outcome.DEAD_LETTERED] == Totals(600, 600)


# ------------------------------------------------------------------------ segments


def test_the_number_of_segments_is_bounded_by_dropping(still: StillMachine) -> None:
    retention = RetentionConfig(max_segments=3, size_cap_policy="drop_oldest")
    quiver = still.start(calm(retention))
    quiver.register("one")
    sealed(quiver, 6)
    keep(quiver)
    assert ranges(quiver) == [(3, 3), (4, 4), (5, 5)]
    assert evictions(quiver) == {"segments": 3}
    assert quiver.statistics().retention.size_emergencies == 0
    assert check_books(quiver)["one"].outcomes[Outcome.DROPPED] == Totals(3, 3)


def test_the_number_of_segments_is_bounded_by_refusing(still: StillMachine) -> None:
    quiver = still.start(calm(RetentionConfig(max_segments=3), timeout_s=APPEND_S))
    lease = quiver.lease("one")
    with pytest.raises(Overloaded, match=r"4 segments, the cap is 3 .*held by one"):
        sealed(quiver, 6)
    assert len(quiver.segments()) == 4
    list(drain(lease))
    sealed(quiver, 1)
    check_books(quiver)


# ---------------------------------------------------------------------- precedence


def test_steady_state_goes_before_age_and_age_before_size(still: StillMachine) -> None:
    retention = RetentionConfig(max_age_s=100.0, max_segments=2, size_cap_policy="drop_oldest")
    quiver = still.start(calm(retention))
    lease = quiver.lease("one")
    sealed(quiver, 1)
    assert list(drain(lease)) == [0]
    sealed(quiver, 1)
    still.clock.pass_time(101)
    sealed(quiver, 3)
    keep(quiver)
    assert ranges(quiver) == [(3, 3), (4, 4)]
    assert evictions(quiver) == {"processed": 1, "age": 1, "segments": 1}
    outcomes = check_books(quiver)["one"].outcomes
    assert outcomes[Outcome.EXPIRED] == outcomes[Outcome.DROPPED] == Totals(1, 1)


# -------------------------------------------------------------------- failing disk


@pytest.mark.parametrize(
    "point",
    [
        QuiverPoint.TRASH_MOVE,
        QuiverPoint.TRASH_SYNC_DIR,
        QuiverPoint.TRASH_UNLINK,
        QuiverPoint.LEDGER_SYNC,
    ],
)
def test_a_deletion_that_fails_is_tried_again_and_its_bytes_count_until_then(
    still: StillMachine, point: QuiverPoint
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 1, size_bytes=LARGE_BYTES)
    list(drain(lease))
    still.stop()
    faults = [Fault(point, FaultKind.EIO, nth=1, times=2)]
    faults += [
        Fault(QuiverPoint.LEDGER_CREATE, FaultKind.EIO, nth=2)
    ]  # a failed sync wants a new file
    quiver = still.start(faults=faults)
    for _ in range(3):
        try:
            keep(quiver)
        except StorageFailed:
            assert point is QuiverPoint.LEDGER_SYNC
            assert len(quiver.segments()) == 1
        used = quiver.statistics().used_bytes
        assert used >= still.disk.used_bytes(ROOT) - 64 * KB
        check_books(quiver)
    keep(quiver)
    assert still.disk.list(SEGMENTS) == still.disk.list(TRASH) == []
    assert quiver.statistics().used_bytes < LARGE_BYTES + reserved(quiver)
    assert quiver.statistics().deleted_bundles == 1


def test_a_segment_somebody_else_removed_is_no_trouble(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 1)
    list(drain(lease))
    (folder,) = still.disk.list(SEGMENTS)
    for entry in still.disk.list(SEGMENTS / folder.name):
        still.disk.unlink(SEGMENTS / folder.name / entry.name, "test")
    still.disk.remove_dir(SEGMENTS / folder.name, "test")
    keep(quiver)
    assert quiver.segments() == ()
    assert quiver._engine.retention.trash.left_bytes == 0


@pytest.mark.parametrize(
    "point", [QuiverPoint.TRASH_MOVE, QuiverPoint.TRASH_UNLINK, QuiverPoint.LEDGER_WRITE]
)
def test_a_disk_that_fails_while_making_room_refuses_appends_and_the_writer_lives_on(
    still: StillMachine, point: QuiverPoint
) -> None:
    quiver = still.start(calm(small(size_cap_policy="drop_oldest"), timeout_s=APPEND_S))
    quiver.register("one")
    sealed(quiver, 5, size_bytes=LARGE_BYTES)
    still.stop()
    faults = [Fault(point, FaultKind.EIO, times=1_000_000)]
    quiver = still.start(
        calm(small(size_cap_policy="drop_oldest"), timeout_s=APPEND_S), faults=faults
    )
    with pytest.raises(Overloaded):
        append(quiver, 5, size_bytes=LARGE_BYTES)
    assert quiver.statistics().accepting
    assert quiver._engine.writer.failure is None
    check_books(quiver)


# ----------------------------------------------------------------------- deletion


def test_a_power_cut_right_after_an_unlink_does_not_bring_dropped_data_back(
    still: StillMachine,
) -> None:
    """Upstream did not sync the directory after it, and the ledger did not know."""
    for seed in range(6):
        still.disk = type(still.disk)()
        quiver = still.start(calm(RetentionConfig(max_segments=1, size_cap_policy="drop_oldest")))
        quiver.register("one")
        sealed(quiver, 3)
        keep(quiver)
        quiver = still.restart(power=True, seed=seed)
        assert ranges(quiver) == [(2, 2)]
        assert list(drain(quiver.lease("one"))) == [2]
        assert check_books(quiver)["one"].outcomes[Outcome.DROPPED] == Totals(2, 2)
        assert still.disk.list(TRASH) == []
        still.stop()


def test_a_segment_goes_only_after_the_outcomes_that_allow_it_are_synced(
    still: StillMachine,
) -> None:
    faults = [Fault(QuiverPoint.TRASH_MOVE, FaultKind.KILL_BEFORE)]
    quiver = still.start(faults=faults)
    lease = quiver.lease("one")
    sealed(quiver, 1)
    list(drain(lease))
    with pytest.raises(SimulatedCrash):
        keep(quiver)
    still.cut_power()
    quiver = still.start()
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.ACKED] == balance.accepted == Totals(1, 1)
    assert quiver.segments() == ()


def test_seqs_and_segment_numbers_go_on_after_everything_was_deleted(still: StillMachine) -> None:
    """Upstream used them again after a restart, and took new data for acknowledged."""
    quiver = still.start()
    quiver.register("slow")
    for life in range(4):
        lease = quiver.lease("fast")
        seqs = sealed(quiver, 2, bundles=2)
        assert list(drain(lease)) == seqs
        assert list(drain(quiver.lease("slow"))) == seqs
        keep(quiver)
        assert quiver.segments() == ()
        if life % 2:
            still.stop()
            quiver = still.start()
        else:
            quiver = still.restart(power=True)
    seqs = sealed(quiver, 1)
    quiver = still.restart()
    assert list(drain(quiver.lease("slow"))) == seqs
    assert check_books(quiver)["slow"].outcomes[Outcome.ACKED].bundles == 17


def test_all_log_files_lost_after_a_full_drain_new_data_is_not_taken_for_acknowledged(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 1, bundles=5)
    list(drain(lease))
    keep(quiver)
    still.stop()
    for path in still.wal_paths():
        still.disk.unlink(path, "test")
    quiver = still.start()
    assert "one" in quiver.subscribers() or quiver.recovery.new_identity
    seqs = append(quiver, 3)
    assert list(drain(quiver.lease("one"))) == seqs
    check_books(quiver)


def test_producers_are_remembered_when_their_segments_are_gone(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    receipt = quiver.append_raw(b"x", producer="p", epoch=7)
    quiver.flush()
    list(drain(lease))
    keep(quiver)
    assert quiver.segments() == ()
    quiver = still.restart(power=True)
    again = quiver.append_raw(b"x", producer="p", epoch=7)
    assert again.duplicate
    assert again.seq == receipt.seq


def test_a_producer_is_remembered_by_its_newest_segment_also_if_that_goes_first(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one", leasing=LeaseOptions(order="newest_first"))
    for epoch in (1, 2):
        quiver.append_raw(b"x", producer="p", epoch=epoch)
        quiver.flush()
    for _ in range(2):
        delivery = must_poll(lease)
        delivery.ack()
        keep(quiver)
    assert quiver.segments() == ()
    quiver = still.restart()
    assert quiver.append_raw(b"x", producer="p", epoch=2).duplicate


def test_age_counts_from_ingestion_also_in_a_directory_that_was_copied(
    still: StillMachine,
) -> None:
    """Upstream went by the time of the file."""
    retention = RetentionConfig(max_age_s=100.0)
    quiver = still.start(calm(retention))
    quiver.register("one")
    sealed(quiver, 1)
    still.clock.pass_time(60)
    sealed(quiver, 1)
    still.stop()
    still.disk = disk_with(contents(still.disk))
    still.clock.pass_time(50)
    quiver = still.start(calm(retention))
    keep(quiver)
    assert ranges(quiver) == [(1, 1)]
    check_books(quiver)


def test_an_old_correction_of_the_account_refuses_nobody(still: StillMachine) -> None:
    """Something large lay beside the quiver for a while; the next look is far away."""
    quiver = still.start(calm(small(), timeout_s=APPEND_S))
    still.disk.put(ROOT / "something else", bytes(4 * MB))
    quiver._engine.retention.look_at_disk()
    with pytest.raises(Overloaded):
        append(quiver, 1)
    still.disk.unlink(ROOT / "something else", "test")
    append(quiver, 1)


def test_used_bytes_follow_writes_and_deletions(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    before = quiver.statistics().used_bytes - reserved(quiver)
    sealed(quiver, 2, size_bytes=LARGE_BYTES)
    full = quiver.statistics().used_bytes
    assert full > before + 2 * LARGE_BYTES
    list(drain(lease))
    keep(quiver)
    assert quiver.statistics().used_bytes - reserved(quiver) < before + 64 * KB
    assert quiver._engine.retention.look_at_disk() == still.disk.used_bytes(ROOT)


def test_ages_and_pins_are_measured_by_time_that_does_not_jump(still: StillMachine) -> None:
    quiver = still.start()
    steady = quiver._engine.ledger.steady
    assert START_NS <= steady.now_ns() < START_NS + 60e9
    still.clock.jump(1e6)
    assert steady.now_ns() < START_NS + 60e9
    assert steady.earliest_now_ns() < START_NS + 60e9
    still.clock.jump(-2e6)
    assert steady.now_ns() >= START_NS
    assert steady.earliest_now_ns() == still.clock.wall_ns()
    still.clock.pass_time(100)
    assert START_NS + 100e9 <= steady.now_ns() < START_NS + 160e9
