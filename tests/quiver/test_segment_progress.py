"""Progress in segments: the same as looking at every segment, and told where people look."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.machine import Machine, quiet

from holdfast.operate.cli.quiver.show import list_command, show_command
from holdfast.quiver import Quiver, RetentionConfig, SubscriberOptions
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.frame import NOTHING
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.quiver.read.segment_progress import (
    GAPS_TOLD_MAX,
    outstanding,
    segment_progress,
    unresolved_places,
)

KEPT = RetentionConfig(size_cap_bytes=64 * MB, steady_state_headroom_bytes=MB, tick_s=3600.0)
INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def made_up(lengths: list[tuple[int, int]]) -> list[Any]:
    """Return segments of so many seqs, with so many unused ones before each."""
    segments, seq = [], 0
    for number, (unused, length) in enumerate(lengths, 1):
        first = seq + unused
        seq = first + length
        summary = SimpleNamespace(segment_seq=number, first_seq=first, last_seq=seq - 1)
        segments.append(SimpleNamespace(summary=summary))
    return segments


def made_subscriber(start_seq: int, intervals: list[tuple[int, int]]) -> Subscriber:
    resolved = IntervalSet((start_seq + first, start_seq + first + n) for first, n in intervals)
    return Subscriber("s", start_seq, NOTHING, 0, resolved=resolved)


def waits(subscriber: Subscriber, segment: Any) -> bool:
    return subscriber.unresolved(segment.summary.first_seq, segment.summary.last_seq + 1)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=12),
    removed=st.sets(st.integers(1, 12)),
    subscribers=st.lists(st.tuples(st.integers(0, 20), INTERVALS), max_size=3),
)
def test_it_is_what_a_look_at_every_segment_says(
    lengths: list[tuple[int, int]],
    removed: set[int],
    subscribers: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    everything = made_up(lengths)
    known = [made_subscriber(*one) for one in subscribers]
    # Only what nobody waits for is ever removed.
    gone = [
        one
        for one in everything
        if one.summary.segment_seq in removed and not any(waits(s, one) for s in known)
    ]
    deleted = IntervalSet((one.summary.segment_seq, one.summary.segment_seq + 1) for one in gone)
    segments = [one for one in everything if one not in gone]
    counts = dict.fromkeys(range(len(known) + 1), 0)
    for segment in segments:
        counts[sum(waits(s, segment) for s in known)] += 1
    assert outstanding(segments, known) == counts
    for subscriber in known:
        waiting = [one.summary.segment_seq for one in everything if waits(subscriber, one)]
        places = [place for one in unresolved_places(segments, subscriber) for place in one]
        assert [segments[place].summary.segment_seq for place in places] == waiting
        mark = waiting[0] - 1 if waiting else len(everything)
        beyond = {one.summary.segment_seq for one in everything} - set(waiting)
        beyond = {number for number in beyond if number > mark}
        told = segment_progress(segments, subscriber, deleted)
        assert (told.high_water_segment, told.gap_segments) == (mark, len(beyond))
        ranges = [range(first, last + 1) for first, last in told.gap_set]
        assert {number for one in ranges for number in one} == beyond


def test_of_many_gaps_the_lowest_are_told() -> None:
    segments = made_up([(0, 1)] * 1000)
    subscriber = made_subscriber(0, [(seq, 1) for seq in range(1, 1000, 2)])
    told = segment_progress(segments, subscriber, IntervalSet())
    assert (told.high_water_segment, told.gap_segments) == (0, 500)
    assert len(told.gap_set) == GAPS_TOLD_MAX
    assert told.gap_set[:2] == ((2, 2), (4, 4))


def three_segments(quiver: Quiver) -> None:
    for number in range(3):
        quiver.append_raw(b"%d" % number)
        quiver.flush()


def test_statistics_have_the_mark_the_gap_set_and_who_is_outstanding(machine: Machine) -> None:
    quiver = machine.start(replace(quiet(), retention=KEPT))
    quiver.register("other")
    lease = quiver.lease("archive")
    three_segments(quiver)
    deliveries = [lease.poll() for _ in range(3)]
    assert quiver.statistics().outstanding == {0: 0, 1: 0, 2: 3}
    for place, mark, gaps in ((1, 0, ((2, 2),)), (0, 2, ()), (2, 3, ())):
        delivery = deliveries[place]
        assert delivery is not None
        delivery.ack()
        archive, other = sorted(quiver.statistics().subscribers)
        assert (archive.high_water_segment, archive.gap_set) == (mark, gaps)
        assert archive.gap_segments == len(gaps)
        assert other.high_water_segment == 0
    assert quiver.statistics().outstanding == {0: 0, 1: 3, 2: 0}


def test_tools_tell_who_a_segment_waits_for(tmp_path: Path) -> None:
    with Quiver.open(tmp_path, replace(quiet(), retention=KEPT)) as quiver:
        quiver.register("other")
        lease = quiver.lease("archive")
        three_segments(quiver)
        deliveries = [lease.poll() for _ in range(2)]
        for delivery in deliveries[1:]:
            assert delivery is not None
            delivery.ack()
    show = CliRunner().invoke(show_command, [str(tmp_path), "2", "--json"])
    told = json.loads(show.output)
    assert (told["outstanding"], told["waits_for"]) == (1, ["other"])
    assert "2: " in CliRunner().invoke(show_command, [str(tmp_path), "1"]).output
    listed = json.loads(CliRunner().invoke(list_command, [str(tmp_path), "--json"]).output)
    archive = next(one for one in listed["subscribers"] if one["subscriber"] == "archive")
    assert (archive["high_water_segment"], archive["gap_set"]) == (0, [[2, 2]])
    assert "outstanding" in CliRunner().invoke(list_command, [str(tmp_path)]).output


def test_segments_that_its_own_cap_took_are_counted_for_the_subscriber(machine: Machine) -> None:
    quiver = machine.start(replace(quiet(), retention=KEPT))
    options = SubscriberOptions(max_bytes=MB, on_full="drop_oldest")
    quiver.register("live", options=options)
    quiver.register("patient")
    for number in range(6):
        quiver.append_raw(bytes([number]) * (300 * KB))
        if number % 2:
            quiver.flush()
    quiver._engine.retention.tick()
    live, patient = sorted(quiver.statistics().subscribers)
    # Of the second segment one bundle is left, and it still waits.
    assert live.outcomes["dropped"].bundles == 3
    assert (live.dropped_segments, patient.dropped_segments) == (1, 0)
    assert quiver.statistics().retention.subscriber_dropped_segments == 1
