"""Letters: the bytes stay as they are, everything else has a bound, and no secret is kept."""

from __future__ import annotations

import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dead_letters.letters import LETTERS, invalid, poison
from tests.signals.otlp.telemetry import request

from holdfast.dead_letters import letter as letter_module
from holdfast.dead_letters.letter import Letter, parse_position, safe_headers
from holdfast.dead_letters.queue import ENVELOPE_BYTES
from holdfast.errors import BadInput
from holdfast.quiver import Position
from holdfast.quiver.base.bundle import encode_raw
from holdfast.signals.event import Event
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind

LONG = "🜁" * 100_000


def stored(letter: Letter) -> Event:
    """Return a letter as it is read from a quiver."""
    headers = orjson.loads(orjson.dumps(letter.stored_headers()))
    return Event("office", Position(3, 0), letter.slot, letter.payload, headers, 77)


def readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@given(letter=LETTERS)
def test_a_letter_is_read_as_it_was_filed(letter: Letter) -> None:
    found = Letter.from_event(stored(letter))
    assert found.payload == letter.payload
    assert found.reason == (readable(letter.reason) or "unknown")
    assert found.destination == (readable(letter.destination or "") or None)
    assert found.position == letter.position
    assert found.attempts == letter.attempts
    assert found.received_ns == (letter.received_ns or 77)
    assert [dict(p) for p in found.problems] == [
        {readable(name): readable(value) for name, value in problem.items()}
        for problem in letter.problems
    ]
    assert found.headers == {
        readable(name): readable(value) for name, value in safe_headers(letter.headers).items()
    }


@given(letter=LETTERS)
def test_filing_again_what_was_read_changes_nothing(letter: Letter) -> None:
    once = Letter.from_event(stored(letter))
    assert Letter.from_event(stored(once)) == once


@given(headers=st.dictionaries(st.text(max_size=20), st.text(max_size=20)))
def test_what_a_stored_letter_says_can_always_be_read(headers: dict[str, str]) -> None:
    letter = Letter.from_event(Event("q", Position(0), "openlineage", b"", headers, 1))
    assert letter.attempts >= 0
    assert isinstance(letter.headers, dict)


@pytest.mark.parametrize("odd", ["{", "3", "null", '"x"', "[1, {}]", '{"a": 1}'])
def test_fields_that_are_not_what_they_should_be_are_passed_over(odd: str) -> None:
    headers = {"problems": odd, "headers": odd, "attempts": odd, "received_ns": "x"}
    letter = Letter.from_event(Event("q", Position(0), "openlineage", b"", headers, 1))
    assert letter.received_ns == 1
    assert all(isinstance(problem, dict) for problem in letter.problems)


def test_however_much_is_said_a_letter_is_hardly_larger_than_its_event() -> None:
    letter = Letter(
        b"",
        LONG,
        LONG,
        problems=({LONG: LONG, "message": LONG},) * 10_000,
        headers={f"x{number}": LONG for number in range(10_000)},
        destination=LONG,
        position=LONG,
    )
    encoded = encode_raw("openlineage", [b""], [letter.stored_headers()], 1 << 30)
    assert len(encoded.payload) < ENVELOPE_BYTES
    found = Letter.from_event(stored(letter))
    assert len(found.problems) <= letter_module.PROBLEMS_MAX + 1
    assert found.problems[-1]["rule"] == "more"
    assert len(found.headers) <= letter_module.HEADERS_MAX


def test_what_is_left_off_is_counted() -> None:
    problems = tuple({"rule": "required", "message": str(n)} for n in range(100))
    found = Letter.from_event(stored(invalid(problems=problems)))
    assert found.problems[0] == problems[0]
    assert found.problems[-1]["message"] == "and 68 more problems"


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "authorization",
        "Proxy-Authorization",
        "Proxy-Anything",
        "Cookie",
        "Set-Cookie",
        "X-Api-Key",
        "X-Amz-Security-Token",
        "X-Auth-User",
        "Session-Id",
        "x-client-secret",
        "X-Password",
        "X-Goog-Signature",
        "Credential",
    ],
)
def test_headers_with_credentials_are_not_kept(name: str) -> None:
    headers = {name: "s3cret", "User-Agent": "openlineage-python"}
    assert safe_headers(headers) == {"User-Agent": "openlineage-python"}
    letter = invalid(headers=headers)
    assert "s3cret" not in str(letter.stored_headers())


def test_the_event_of_a_letter_is_the_one_that_was_accepted() -> None:
    event = Event(
        "q-7", Position(41, 2), "openlineage", b"{}", {"tenant": "a"}, 99, signal="openlineage"
    )
    letter = Letter.of_event(event, reason="permanent", destination="marquez", attempts=3)
    again = Letter.from_event(stored(letter)).event()
    assert again == event
    assert again.idempotency_key == event.idempotency_key


def test_telemetry_in_a_letter_is_read_and_counted_like_any_other() -> None:
    body = request(OtlpKind.LOGS, random.Random(1))
    letter = Letter(
        payload=body, reason="permanent", origin="q", position="q/1/0", slot=OtlpKind.LOGS.slot
    )
    event = letter.event()
    assert isinstance(event, Event)
    assert event.items == codec.check(OtlpKind.LOGS, body)
    assert orjson.loads(event.json_text) == request_document(OtlpKind.LOGS, body)


@pytest.mark.parametrize("position", [None, "", "q", "q/1", "q/1/x", "q/-1/0", "q/1/2/3"])
def test_a_position_that_is_none_is_refused(position: str | None) -> None:
    with pytest.raises(BadInput, match="does not say where"):
        parse_position(position)


def test_another_try_is_counted_and_its_answer_replaces_the_last() -> None:
    letter = poison(attempts=5, problems=({"rule": "500", "message": "boom"},))
    again = letter.failed_again("permanent", {"rule": "400", "message": "no"})
    assert (again.reason, again.attempts) == ("permanent", 6)
    assert again.problems == ({"rule": "400", "message": "no"},)
    assert again.payload == letter.payload
