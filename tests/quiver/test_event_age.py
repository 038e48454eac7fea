"""Retention by event time: what happened long ago goes, however recently it came."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.quiver.machine import START_NS
from tests.readers.setting import StillMachine, calm, check_books, keep

from holdfast.errors import BadInput
from holdfast.quiver import Outcome, Quiver, QuiverConfig, RetentionConfig
from holdfast.quiver.base.frame import Totals

HOUR_S = 3600.0


class AgoExtractor:
    """Reads from a payload how many seconds before the start it happened; empty: it says not."""

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = rows.column("payload").to_pylist()
        times = [START_NS // 1000 - int(text) * 1_000_000 if text else None for text in texts]
        return pa.record_batch({"event_time": pa.array(times, pa.timestamp("us", "UTC"))})


def by_events(max_age_s: float | None = None) -> QuiverConfig:
    retention = RetentionConfig(max_event_age_s=HOUR_S, max_age_s=max_age_s)
    return replace(calm(retention), extractors={"events": AgoExtractor()})


def seal(quiver: Quiver, *ago_s: int) -> None:
    for one in ago_s:
        quiver.append_raw(b"%d" % one, slot="events")
    quiver.flush()


def left(quiver: Quiver) -> list[int]:
    keep(quiver)
    return [segment.summary.first_seq for segment in quiver.segments()]


def test_a_segment_goes_when_its_newest_event_is_too_old(still: StillMachine) -> None:
    quiver = still.start(by_events())
    quiver.register("one")
    seal(quiver, 7200, 3000)
    seal(quiver, 3000, 10)
    seal(quiver, 5000)  # it came too late
    assert left(quiver) == [0, 2]
    still.clock.pass_time(700)
    assert left(quiver) == [2]
    still.clock.pass_time(3000)
    assert left(quiver) == []
    outcomes = check_books(quiver)["one"].outcomes
    assert outcomes[Outcome.EXPIRED] == Totals(5, 5)
    assert quiver.statistics().retention.evictions == {"age": 3}


def test_what_has_no_time_of_its_own_is_as_old_as_its_arrival(still: StillMachine) -> None:
    quiver = still.start(by_events())
    quiver.register("one")
    quiver.append_raw(b"", slot="events")
    quiver.flush()
    quiver.append_raw(b"no extractor", slot="others")
    quiver.flush()
    quiver.heartbeat("producer", 1)
    quiver.flush()
    still.clock.pass_time(HOUR_S - 1)
    assert left(quiver) == [0, 1, 2]
    still.clock.pass_time(2)
    assert left(quiver) == []


def test_an_event_of_the_future_does_not_stay_for_ever(still: StillMachine) -> None:
    quiver = still.start(by_events())
    seal(quiver, -100 * 366 * 86400)
    still.clock.pass_time(HOUR_S + quiver._engine.config.max_skew_s + 1)
    assert left(quiver) == []


def test_both_limits_hold_side_by_side(still: StillMachine) -> None:
    quiver = still.start(by_events(max_age_s=100.0))
    quiver.register("one")
    seal(quiver, 4000)
    seal(quiver, 0)
    assert left(quiver) == [1]
    still.clock.pass_time(101)
    assert left(quiver) == []


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(BadInput, match="max_event_age_s"):
        RetentionConfig(max_event_age_s=limit_s)
