"""What the log is told of a destination: once when it begins to fail, once when it works again."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import pytest
from tests.deliver.backend import (
    BAD,
    DOWN,
    NOT_FOUND,
    UNAUTHORIZED,
    Backend,
    Behaviour,
    fails,
    fails_for,
)
from tests.deliver.stage import Stage

from holdfast.deliver.destination import DeliverySettings, Destination
from holdfast.deliver.exporter import Answer, Failure, FailureClass
from holdfast.deliver.statistics import DeliveryLog
from holdfast.signals.event import Event


@pytest.fixture(autouse=True)
def everything_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.deliver")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records]


def test_an_outage_is_told_once_with_what_happens_next_and_its_end(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [fails(DOWN)] * 20
    stage.deliver_all(DeliverySettings(retention_time_s=5 * 3600.0, retention_bytes=10 * 2**20))
    (level, begin), end = told(caplog)
    assert level == "WARNING"
    assert begin == (
        "backend: fails, transient 503: service unavailable; it is tried again until it works, at "
        "most 60 s apart; events wait for at most 5 hours and 10 MB, then the oldest are dropped"
    )
    assert end[0] == "INFO"
    assert end[1].startswith("backend: works again, after 20 failed sends in ")
    assert {getattr(record, "destination", None) for record in caplog.records} == {"backend"}


def test_what_never_failed_is_not_spoken_of(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.append_each(b"a", b"b")
    stage.deliver_all()
    assert told(caplog) == []


def test_refused_credentials_are_an_error_that_says_how_to_go_on(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [fails(DOWN), fails(UNAUTHORIZED), fails(UNAUTHORIZED)]
    stage.deliver_all()
    levels = [level for level, _ in told(caplog)]
    assert levels == ["WARNING", "ERROR", "INFO"]
    _, (_, alarm), (_, end) = told(caplog)
    assert alarm.startswith(
        "backend: fails, our credentials were refused: unauthorized; nothing is sent for 300 s, or "
        "until `holdfast destination resume backend`; events wait"
    )
    assert "after 3 failed sends" in end


def test_an_outage_that_lasts_is_told_of_every_hour_with_code_age_and_attempts(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.otherwise = fails(NOT_FOUND)

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(3.5 * 3600)

    stage.run(play)
    (begin, *reminders) = told(caplog)
    assert begin[0] == "WARNING"
    assert [level for level, _ in reminders] == ["ERROR"] * 3
    found = re.fullmatch(
        r"backend: still fails, for (36\d\d) s, (\d+) times in a row, last with transient 404: not "
        r"found; nothing overtakes it; `holdfast destination ls` says which event it is",
        reminders[0][1],
    )
    assert found is not None
    assert int(found[2]) > 50


def test_an_event_that_is_set_aside_is_told_and_many_are_told_together(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {b"bad%d" % n: BAD for n in range(50)}
    for payload in bad:
        stage.append_each(payload, b"good")
    stage.backend.otherwise = fails_for(bad)
    stage.deliver_all()
    assert len(stage.letters.stored) == 50
    lines = [line for line in caplog.messages if "dead letter" in line]
    assert lines == [
        (
            "backend: 1 event is a dead letter now, permanent 400: bad request; "
            "see `holdfast dlq ls --destination backend`"
        )
    ]


def test_a_destination_that_fails_now_and_then_is_told_of_once_a_minute() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("holdfast.deliver")
    log.addHandler(handler)
    try:
        news = DeliveryLog("backend", DeliverySettings())
        down = Failure(FailureClass.TRANSIENT, "down", code="503")
        for second in range(600):
            news.failed(down, 1, second)
            news.worked(second + 0.5)
    finally:
        log.removeHandler(handler)
    assert len([line for line in lines if "fails" in line]) == 10
    assert len([line for line in lines if "works again" in line]) == 10


def test_what_is_set_aside_in_between_is_counted_in_the_next_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    news = DeliveryLog("backend", DeliverySettings())
    for second in range(100):
        news.set_aside("permanent 400: bad request", second)
    assert [line.partition(",")[0] for line in caplog.messages] == [
        "backend: 1 event is a dead letter now",
        "backend: 60 events are dead letters now",
    ]


def test_a_failure_of_some_of_a_batch_is_not_an_outage(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.backend.max_batch_events = 3
    stage.append_each(b"a", b"b", b"c")
    stage.backend.script = [half_of_it()]
    stage.deliver_all()
    assert told(caplog) == []


def half_of_it() -> Behaviour:
    def behave(backend: Backend, events: Sequence[Event]) -> Answer:
        backend.take(events[:1])
        return Answer(dict.fromkeys(range(1, len(events)), DOWN))

    return behave
