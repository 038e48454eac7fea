"""What a quiver tells about itself is true, also in odd moments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.patience import APPEND_S
from tests.quiver.machine import SEGMENTS, Machine, quiet
from tests.readers.setting import StillMachine

from holdfast.errors import Overloaded
from holdfast.quiver import AppendConfig, LeaseOptions, Quiver, QuiverConfig, RetentionConfig
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.statistics import SubscriberStatistics

CALM = RetentionConfig(size_cap_bytes=64 * MB, tick_s=3600.0)


def config(retention: RetentionConfig = CALM, timeout_s: float = 60.0) -> QuiverConfig:
    """Return a configuration under which the keeper looks only when asked."""
    return replace(quiet(), retention=retention, append=AppendConfig(timeout_s=timeout_s))


def of(quiver: Quiver, name: str) -> SubscriberStatistics:
    """Return what the statistics say about one subscriber."""
    (found,) = [s for s in quiver.statistics().subscribers if s.name == name]
    return found


def append_for_ever(quiver: Quiver) -> None:
    """Append until it is refused."""
    while True:
        quiver.append_raw(bytes(512 * KB))


def test_the_gap_set_is_counted_also_while_the_very_first_bundle_waits(machine: Machine) -> None:
    quiver = machine.start(config())
    for number in range(5):
        quiver.append_raw(b"%d" % number)
    lease = quiver.lease("archive")
    deliveries = [lease.poll() for _ in range(5)]
    for place in (1, 3):
        delivery = deliveries[place]
        assert delivery is not None
        delivery.ack()
    assert (of(quiver, "archive").high_water_seq, of(quiver, "archive").gap_ranges) == (0, 2)
    first = deliveries[0]
    assert first is not None
    first.ack()
    assert (of(quiver, "archive").high_water_seq, of(quiver, "archive").gap_ranges) == (2, 1)


def test_newest_first_leaves_one_gap_range_beyond_the_mark(machine: Machine) -> None:
    quiver = machine.start(config())
    for number in range(4):
        quiver.append_raw(b"%d" % number)
    lease = quiver.lease("alerts", leasing=LeaseOptions(order="newest_first"))
    for _ in range(3):
        delivery = lease.poll()
        assert delivery is not None
        delivery.ack()
    assert of(quiver, "alerts").gap_ranges == 1


def test_the_oldest_of_each_slot_is_found_wherever_the_subscriber_stands(
    still: StillMachine,
) -> None:
    quiver = still.start(config())
    cursor = quiver.cursor("archive")
    for slots in (["a", "b", "a"], ["a"], ["b", "c"]):  # two segments, and what is not sealed
        for slot in slots:
            still.clock.pass_time(10.0)
            quiver.append_raw(b"event", slot=slot)
        if slots != ["b", "c"]:
            quiver.flush()

    def ages_s() -> dict[str, int]:
        return {
            slot: round(age) for slot, age in of(quiver, "archive").oldest_age_s_by_slot.items()
        }

    assert ages_s() == {"a": 50, "b": 40, "c": 0}
    for left in (
        {"a": 30, "b": 40, "c": 0},
        {"a": 30, "b": 10, "c": 0},
        {"a": 20, "b": 10, "c": 0},
    ):
        planned = cursor.plan(max_events=1)
        assert planned is not None
        cursor.commit(planned)
        assert ages_s() == left
    planned = cursor.plan()
    assert planned is not None
    cursor.commit(planned)
    assert ages_s() == {}


def test_the_oldest_age_is_never_negative_when_the_clock_jumps_back(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"event")
    machine.clock.jump(-3600.0)
    age_s = of(quiver, "archive").oldest_age_s
    assert age_s is not None
    assert age_s >= 0


def test_a_damaged_bundle_table_does_not_stop_the_statistics(machine: Machine) -> None:
    quiver = machine.start(config())
    quiver.register("archive")
    quiver.append_raw(b"event")
    machine.stop()
    (folder,) = machine.disk.list(SEGMENTS)
    machine.scribble(SEGMENTS / folder.name / "bundles.arrow", 0, 100)
    quiver = machine.start(config())
    found = of(quiver, "archive")
    assert found.pending.bundles == 1
    assert found.oldest_age_s is not None


def test_the_time_appends_were_blocked_is_counted(machine: Machine) -> None:
    full = RetentionConfig(size_cap_bytes=4 * MB, tick_s=3600.0)
    quiver = machine.start(config(full, timeout_s=APPEND_S))
    quiver.append_raw(b"event")
    assert quiver.statistics().writer.blocked_seconds == 0
    with pytest.raises(Overloaded):
        append_for_ever(quiver)
    now = quiver.statistics()
    assert now.retention.throttled > 0
    assert now.writer.blocked_seconds > 0
