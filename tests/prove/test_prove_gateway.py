"""`holdfast prove gateway`: a short run of the real thing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.prove.lineage import Backend, event_of, name_of
from holdfast.signals.openlineage.validation import ValidationSettings, Validator


def test_the_events_of_a_proof_are_valid_and_all_different() -> None:
    validator = Validator(ValidationSettings(level="strict"))
    events = [event_of(f"0-{number}.0") for number in range(50)]
    assert len(set(events)) == len(events)
    for number, event in enumerate(events):
        _, verdict = validator.parse_and_check(event)
        assert (verdict.errors, verdict.warnings) == ((), ())
        assert name_of(event) == f"0-{number}.0"


def test_an_event_that_was_changed_on_the_way_has_no_name() -> None:
    event = event_of("0-1.0")
    assert name_of(event.replace(b"COMPLETE", b"START")) is None
    assert name_of(b"[]") is None
    assert name_of(b"{") is None


class Transport:
    """Keeps what a backend answers."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


@pytest.mark.parametrize("cut", [1, 40, 4000])
def test_the_backend_writes_down_what_came_before_it_answers(tmp_path: Path, cut: int) -> None:
    one, two = event_of("a.0"), event_of("b.0")
    batch = b"[%s,%s]" % (one, two)
    stream = b"".join(
        b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        for body in (one, batch, b"{}")
    )
    with (tmp_path / "journal").open("wb") as journal:
        backend = Backend(journal.fileno())
        transport = Transport()
        backend._transport = transport  # type: ignore[assignment]
        for start in range(0, len(stream), cut):
            backend.data_received(stream[start : start + cut])
    lines = (tmp_path / "journal").read_text().splitlines()
    assert [line.split(" ")[2] for line in lines] == ["a.0", "a.0", "b.0", "?"]
    assert transport.written.count(b"200 OK") == 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_both_ends_are_killed() -> None:
    command = [sys.executable, "-m", "holdfast", "prove", "gateway", "--kills", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["accepted"] > 0
    assert found["kills"] == 4
