"""Whole segments for a reader that takes them as they are."""

from __future__ import annotations

import pytest
from tests.quiver.machine import Machine

from holdfast.errors import Fenced
from holdfast.quiver import Outcome, Quiver


def seal(quiver: Quiver, bundles: int = 2) -> None:
    for number in range(bundles):
        quiver.append_raw([b"%d" % number, b"x"])
    quiver.flush()


def firsts(segments: object) -> list[int]:
    return [segment.summary.first_seq for segment in segments]  # type: ignore[attr-defined]


def test_segments_wait_until_they_are_resolved_in_any_order() -> None:
    with Machine() as machine:
        quiver = machine.start()
        reader = quiver.part_reader("node.a")
        for _ in range(3):
            seal(quiver)
        quiver.append_raw([b"open"])
        assert firsts(reader.waiting()) == [0, 2, 4]
        assert firsts(reader.waiting(3)) == [2, 4]
        assert firsts(reader.waiting_newest(2)) == [4, 2]
        middle = quiver.segments()[1]
        assert reader.resolve(middle, Outcome.ACKED)
        assert not reader.resolve(middle, Outcome.ACKED)
        assert firsts(reader.waiting()) == [0, 4]
        balance = quiver.balance("node.a")
        assert (balance.pending.bundles, balance.pending.events) == (5, 9)


def test_numbers_that_no_bundle_has_do_not_hold_back_the_high_water_mark() -> None:
    machine = Machine()
    quiver = machine.start()
    quiver.register("node.a")
    seal(quiver)
    machine.cut_power()
    quiver = machine.start()
    seal(quiver)
    first, second = quiver.segments()
    assert second.summary.first_seq > first.summary.last_seq + 1
    with machine:
        reader = quiver.part_reader("node.a")
        reader.resolve(second, Outcome.ACKED)
        assert firsts(reader.waiting()) == [0]
        reader.resolve(first, Outcome.ACKED)
        assert quiver.subscriber("node.a").high_water_seq == second.summary.last_seq + 1


def test_a_loss_names_nothing_but_the_segment() -> None:
    with Machine() as machine:
        quiver = machine.start()
        reader = quiver.part_reader("node.a")
        seal(quiver)
        seal(quiver)
        reader.resolve(quiver.segments()[1], Outcome.DROPPED, "discarded")
        assert quiver.subscriber("node.a").losses == [(2, 4, Outcome.DROPPED)]


def test_a_reader_that_was_replaced_resolves_nothing() -> None:
    with Machine() as machine:
        quiver = machine.start()
        old = quiver.part_reader("node.a")
        seal(quiver)
        quiver.part_reader("node.a")
        with pytest.raises(Fenced):
            old.resolve(quiver.segments()[0], Outcome.ACKED)
        assert quiver.resolve_segment("node.a", quiver.segments()[0], Outcome.FILTERED)


def test_a_segment_on_its_way_is_pinned_for_as_long_as_the_call_may_take() -> None:
    with Machine() as machine:
        quiver = machine.start()
        reader = quiver.part_reader("node.a")
        seal(quiver)
        (segment,) = quiver.segments()
        retention = quiver._engine.retention
        subscriber = quiver.subscriber("node.a")
        reader.pin([segment], 60.0, 3600.0)
        assert retention._is_pinned(subscriber, 0, 2)
        reader.pin([segment], -60.0, 3600.0)  # its time is over
        assert not retention._is_pinned(subscriber, 0, 2)


def test_a_subscriber_that_begins_later_waits_for_the_part_that_holds_its_beginning() -> None:
    with Machine() as machine:
        quiver = machine.start()
        quiver.append_raw([b"before"])
        reader = quiver.part_reader("node.a", start="latest")
        quiver.append_raw([b"after"])
        quiver.flush()
        assert firsts(reader.waiting()) == [0]
        assert reader.resolve(quiver.segments()[0], Outcome.ACKED)
        assert quiver.balance("node.a").pending.bundles == 0
