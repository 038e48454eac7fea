"""Holdfast's own log: lines of JSON or for people, bounded in length, number and patience."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from holdfast.graph.model import LoggingSettings
from holdfast.operate import logs

log = logging.getLogger("holdfast.tests")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Leave logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    levels = root.level, ours.level
    yield
    for handler in [one for one in root.handlers if isinstance(one, logs.LogHandler)]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def told(handler: logs.LogHandler, stream: io.StringIO) -> list[dict[str, Any]]:
    handler.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_with_everything_in_fields() -> None:
    stream = io.StringIO()
    handler = logs.set_up(LoggingSettings(format="json"), worker=3, stream=stream)
    log.info("events %d", 5, extra={"destination": "marquez"})
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    first, second = told(handler, stream)
    assert first["message"] == "events 5"
    assert first["level"] == "info"
    assert first["logger"] == "holdfast.tests"
    assert (first["destination"], first["worker"]) == ("marquez", 3)
    assert first["time"].endswith("Z")
    assert "ValueError: broken" in second["exception"]


def test_nothing_for_people_is_loaded_for_lines_of_json() -> None:
    """rich is 6 MB, in every service."""
    program = """
import logging, sys
from holdfast.graph.model import LoggingSettings
from holdfast.operate import logs
handler = logs.set_up(LoggingSettings(format=sys.argv[1]))
logging.getLogger("holdfast").warning("here")
handler.close()
print("rich" in sys.modules)
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", program, form],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        ).stdout.strip()
        for form in ("json", "console")
    ]
    assert found == ["False", "True"]


def test_lines_for_people_are_no_json() -> None:
    stream = io.StringIO()
    handler = logs.set_up(LoggingSettings(format="console"), stream=stream)
    log.warning("look here")
    handler.close()
    assert "look here" in stream.getvalue()
    assert "{" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_without_a_terminal_auto_is_json() -> None:
    stream = io.StringIO()
    handler = logs.set_up(LoggingSettings(), stream=stream)
    log.info("x")
    assert told(handler, stream)[0]["message"] == "x"


def test_levels_hold_and_other_libraries_speak_up_only_when_it_matters() -> None:
    stream = io.StringIO()
    handler = logs.set_up(LoggingSettings(format="json", level="info"), stream=stream)
    other = logging.getLogger("somebody.else")
    log.debug("no")
    other.info("no")
    other.warning("yes")
    log.info("yes")
    logs.set_level(LoggingSettings(level="error"))
    log.warning("no")
    assert {one["message"] for one in told(handler, stream)} == {"yes"}


def test_a_long_line_is_cut_and_still_json() -> None:
    stream = io.StringIO()
    handler = logs.set_up(LoggingSettings(format="json", max_line=400), stream=stream)
    log.info("x%s", "y" * 10_000)
    assert len(stream.getvalue()) <= 401
    (line,) = told(handler, stream)
    assert line["message"].startswith("xyyy")
    assert line["message"].endswith("…cut")


def test_a_flood_of_one_severity_is_counted_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("holdfast.operate.logs.time.monotonic", lambda: now_s)
    stream = io.StringIO()
    handler = logs.set_up(LoggingSettings(format="json", max_lines_per_s=5), stream=stream)
    for number in range(50):
        log.info("flood %d", number)
    log.error("important")
    now_s = 1001.0
    log.info("after")
    lines = [one["message"] for one in told(handler, stream)]
    assert lines[:5] == [f"flood {n}" for n in range(5)]
    assert "important" in lines
    assert "45 lines were left out" in lines
    assert lines[-1] == "after"
    assert handler.left_out == 45


def test_nobody_waits_for_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CLOSE_S", 0.05)
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    handler = logs.set_up(
        LoggingSettings(format="json", max_lines_per_s=100_000, max_line=8192), stream=stream
    )
    done = threading.Event()

    def talk() -> None:
        for _ in range(2 * logs.WAITING_LINES_MAX):
            log.info("z" * 1000)
        done.set()

    talker = threading.Thread(target=talk)
    talker.start()
    assert done.wait(PATIENCE_S)
    talker.join()
    assert handler.left_out > 0
    handler.close()
    os.close(reader)  # whoever still writes gets an error, and ends
    handler._thread.join(PATIENCE_S)
    with pytest.raises(BrokenPipeError):
        stream.close()
