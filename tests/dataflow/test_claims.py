"""One claim out of many statements: the minimum, never back, held by silence, explained."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from holdfast.dataflow.watermark.claims import (
    END_OF_TIME_US,
    NOTHING_CLAIMED_US,
    Claims,
    EventTimeReport,
    Reach,
    Silence,
    WatermarkSettings,
    bound_of,
)

SECOND = 1_000_000
NOW = int(datetime(2026, 5, 1, 10, tzinfo=UTC).timestamp()) * SECOND
DELAY = WatermarkSettings(max_delay=10.0)


def flowing(newest_s: float, pending_s: float | None = None) -> EventTimeReport:
    pending_us = None if pending_s is None else NOW + int(pending_s * SECOND)
    return EventTimeReport(pending_us, NOW + int(newest_s * SECOND), False, NOW + 60 * SECOND)


def idle(clock_s: float) -> EventTimeReport:
    return EventTimeReport(None, NOW, True, NOW + int(clock_s * SECOND), int(clock_s * SECOND))


def seconds(claimed_us: int) -> float:
    return (claimed_us - NOW) / SECOND


def test_the_slowest_gateway_decides() -> None:
    claims = Claims(DELAY)
    claim = claims.update({"one": flowing(30), "two": flowing(25)})
    assert seconds(claim.us) == 15
    assert [hold.gateway for hold in claim.holds] == ["two", "one"]


def test_a_waiting_event_holds_it_and_nothing_moves_it_back() -> None:
    """Hole H6 of Numaflow: what waits holds an idle watermark; a small step back stalls none."""
    claims = Claims(DELAY)
    assert seconds(claims.update({"one": flowing(30, pending_s=12)}).us) == 12
    assert seconds(claims.update({"one": flowing(30, pending_s=3)}).us) == 12
    assert seconds(claims.update({"one": flowing(30)}).us) == 20


def test_silence_is_not_idleness() -> None:
    """Hole H6 of Numaflow: an input that is slow to answer is not one that has nothing."""
    claims = Claims(DELAY)
    claims.update({"one": flowing(30), "two": flowing(30)})
    silent = Silence(NOW + 40 * SECOND)
    claim = claims.update({"one": flowing(60), "two": silent})
    assert seconds(claim.us) == 20
    assert claim.explain() == (
        "held at 2026-05-01 10:00:20.000 UTC by two: does not answer since "
        "2026-05-01 10:00:40.000 UTC"
    )
    assert seconds(claims.update({"one": idle(100), "two": idle(100)}).us) == 90


def test_a_gateway_may_be_released_and_that_is_counted() -> None:
    claims = Claims(DELAY.model_copy(update={"unreachable": "release"}))
    assert seconds(claims.update({"one": flowing(30), "two": Silence(NOW)}).us) == 20
    assert claims.released_total == 1
    held = claims.update({"one": Silence(NOW), "two": Silence(NOW)})
    assert (seconds(held.us), held.holds) == (20, ())
    assert "no gateway" in held.explain()


def test_a_gateway_that_said_nothing_yet_holds_everything() -> None:
    claims = Claims(DELAY)
    unheard = EventTimeReport(None, None, False, NOW)
    claim = claims.update({"one": flowing(30), "two": unheard})
    assert claim.us == NOTHING_CLAIMED_US
    assert claim.holds[0].gateway == "two"
    assert "has not accepted any event" in claim.explain()


def test_an_older_event_counts_until_the_claim_passed_it() -> None:
    """One gateway is ahead, another holds the claim: what comes in between is in time."""
    claims = Claims(DELAY)
    claims.update({"fast": flowing(100), "slow": flowing(20)})
    claim = claims.update({"fast": flowing(100, pending_s=50), "slow": flowing(100)})
    assert seconds(claim.us) == 50


def test_an_event_from_the_future_moves_nothing_beyond_the_clock() -> None:
    said = EventTimeReport(None, NOW + 280 * SECOND, False, NOW)
    assert bound_of(said, DELAY.max_delay_us, Reach()).us == NOW - 10 * SECOND


def test_a_pause_in_history_is_only_as_long_as_it_took() -> None:
    """A source reads events of last year, and stops for a moment: they go on where they were."""
    year_us = 365 * 24 * 3600 * SECOND
    paused = EventTimeReport(None, NOW, True, NOW + year_us, 12 * SECOND)
    assert seconds(bound_of(paused, DELAY.max_delay_us, Reach()).us or 0) == 2
    for_long = paused._replace(quiet_us=year_us)
    reach = Reach(NOW + 5 * SECOND, 60 * SECOND)
    assert seconds(bound_of(for_long, DELAY.max_delay_us, reach).us or 0) == 65


def test_an_idle_gateway_without_events_follows_the_others() -> None:
    empty = EventTimeReport(None, None, True, NOW + 100 * SECOND, 90 * SECOND)
    assert bound_of(empty, DELAY.max_delay_us, Reach()) == (None, "unheard")
    claims = Claims(DELAY, reach=Reach(None, 30 * SECOND))
    assert seconds(claims.update({"one": flowing(30), "two": empty}).us) == 20


def test_pipelines_that_write_there_replace_the_delay() -> None:
    said = flowing(60)._replace(producers_us=NOW + 2 * SECOND)
    assert bound_of(said, DELAY.max_delay_us, Reach()) == (NOW + 2 * SECOND, "producers")
    waiting = flowing(60, pending_s=1)._replace(producers_us=NOW + 2 * SECOND)
    assert bound_of(waiting, DELAY.max_delay_us, Reach()) == (NOW + SECOND, "pending")


def test_claims_are_whole_milliseconds() -> None:
    said = EventTimeReport(NOW + 1999, NOW + 60 * SECOND, False, NOW + 60 * SECOND)
    assert Claims(DELAY).update({"one": said}).us == NOW + 1000


def test_the_end_of_time_is_claimed_once_and_for_all() -> None:
    claims = Claims(DELAY)
    assert claims.close().us == END_OF_TIME_US
    assert claims.update({"one": flowing(10)}).us == END_OF_TIME_US
    assert "the end of time" in claims.update({"one": flowing(10)}).explain()


def test_settings_are_checked() -> None:
    with pytest.raises(ValidationError, match="unreachable"):
        WatermarkSettings.model_validate({"unreachable": "ignore"})
