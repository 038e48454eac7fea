"""What needs the token, over plain HTTP: refused without it, and done with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.console.running import RunningConsole, receiver
from tests.graph.lineage import run_event
from tests.patience import until
from tests.support.backend import HttpBackend

BODY = json.dumps(run_event(job="load_orders")).encode()


@pytest.fixture(scope="module")
def backend() -> Iterator[HttpBackend]:
    one = HttpBackend()
    yield one
    one.close()


@pytest.fixture(scope="module")
def console(
    tmp_path_factory: pytest.TempPathFactory, backend: HttpBackend
) -> Iterator[RunningConsole]:
    delivery = {"retry_max": "50ms"}
    to = {"kind": "exporter", "type": "http", "config": {"url": backend.url}, "delivery": delivery}
    with RunningConsole(
        tmp_path_factory.mktemp("console"), {"lineage": receiver("to"), "to": to}
    ) as running:
        until(lambda: running.get("/api/destinations/to").status == 200)
        yield running


def state(console: RunningConsole) -> dict[str, Any]:
    return dict(console.get("/api/destinations/to").json())


@pytest.mark.parametrize("token", [None, "wrong"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/parts/events?q=load_orders"),
        ("GET", "/parts/letters"),
        ("GET", "/parts/letters/rejected/0"),
        ("GET", "/parts/tap/to"),
        ("GET", "/parts/watermark/p"),
        ("GET", "/api/events?q=load_orders"),
        ("GET", "/api/dead-letters"),
        ("GET", "/api/dead-letters/rejected/0"),
        ("GET", "/api/tap/to"),
        ("GET", "/parts/store/commits"),
        ("GET", "/parts/store/files?commit=a"),
        ("GET", "/parts/store/diff?old=a&new=b"),
        ("GET", "/api/store/commits"),
        ("GET", "/api/store/files?commit=a"),
        ("GET", "/api/store/diff?old=a&new=b"),
        ("POST", "/actions/destinations/to/pause"),
        ("POST", "/actions/destinations/to/skip"),
        ("POST", "/actions/letters/purge"),
        ("POST", "/actions/letters/fix"),
        ("POST", "/actions/letters/redrive"),
        ("POST", "/actions/nodes/a/pause"),
    ],
)
def test_without_the_token_nothing_is_shown_or_done(
    console: RunningConsole, method: str, path: str, token: str | None
) -> None:
    refused = console.request(method, path, token=token)
    assert refused.status == 401
    assert "load_orders" not in refused.body
    assert state(console)["state"] == "running"


def test_an_action_is_no_get_and_comes_from_no_other_page(console: RunningConsole) -> None:
    path, token = "/actions/destinations/to/pause", console.token
    assert console.get(path, token=token).status == 405
    other = {"Origin": "http://attacker.example", "token": token}
    assert console.request("POST", path, **other).status == 403
    assert console.request("POST", path, token=token, body="{}").status == 400
    large = "payload=" + "x" * (4 * 1024 * 1024)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert console.request("POST", path, token=token, body=large, **kind).status == 400
    assert state(console)["state"] == "running"


def test_pause_and_resume(console: RunningConsole) -> None:
    assert console.post("/actions/destinations/to/pause", token=console.token).status == 200
    until(lambda: state(console)["state"] == "paused")
    assert (
        "to is resumed."
        in console.post("/actions/destinations/to/resume", token=console.token).body
    )
    until(lambda: state(console)["state"] == "running")
    wrong = console.post("/actions/destinations/nobody/pause", token=console.token)
    assert wrong.status == 400
    assert "there is no destination" in wrong.body


def test_what_holds_a_destination_up_can_be_skipped(
    console: RunningConsole, backend: HttpBackend
) -> None:
    backend.status = 500
    assert console.send(BODY) == [200]
    until(lambda: state(console)["held"])
    (held,) = state(console)["held"]
    page = console.get("/destinations/to").body
    assert f"Held up by event {held['seq']}/{held['row']}" in page
    fields = {"seq": held["seq"], "row": held["row"], "worker": 0}
    skip = "/actions/destinations/to/skip"
    unreasoned = console.post(skip, token=console.token, **fields, reason=" ")
    assert (unreasoned.status, "a reason is missing" in unreasoned.body) == (400, True)
    assert console.post(skip, token=console.token, seq="x", reason="no").status == 400
    done = console.post(skip, token=console.token, **fields, reason="a test")
    assert done.status == 200, done.body
    backend.status = 200
    until(lambda: console.get("/api/overview").json()["dead_letters"]["undelivered"] == 1)
    told = console.get("/api/dead-letters", token=console.token).json()
    assert [(one["origin"], one["reason"]) for one in told["piles"]] == [("to", "skipped")]
    (letter,) = told["letters"]
    whole = console.get(f"/api/dead-letters/{letter['id']}", token=console.token).json()
    assert "load_orders" in whole["text"]
    shown = console.get(f"/parts/letters/{letter['id']}", token=console.token)
    assert "load_orders" in shown.body
    # One letter, or a pile: an empty field never means all of them.
    vague = console.post("/actions/letters/redrive", token=console.token, letter="")
    assert (vague.status, "which letters" in vague.body) == (400, True)
    option = {"letter": "--all", "reason": "no"}
    assert console.post("/actions/letters/purge", token=console.token, **option).status == 400


def test_letters_are_redriven_and_purged(console: RunningConsole, backend: HttpBackend) -> None:
    backend.status = 400
    assert console.send(BODY, BODY) == [200, 200]

    def letters(reason: str) -> list[str]:
        told = console.get(f"/api/dead-letters?reason={reason}", token=console.token).json()
        return [one["id"] for one in told["letters"]]

    until(lambda: len(letters("permanent")) == 2)
    backend.status = 503
    redrive, pile = "/actions/letters/redrive", {"store": "undelivered", "origin": "to"}
    stopped = console.post(redrive, token=console.token, **pile, why="permanent")
    assert (stopped.status, "the rest is as it was" in stopped.body) == (400, True)
    assert len(letters("permanent")) == 2
    backend.status = 200
    one, other = letters("permanent")
    assert "delivered 1." in console.post(redrive, token=console.token, letter=one).body
    assert letters("permanent") == [other]
    purge = "/actions/letters/purge"
    assert console.post(purge, token=console.token, letter=other).status == 400, "without a reason"
    done = console.post(purge, token=console.token, letter=other, reason="a test")
    assert "1 dead letter given up." in done.body
    assert letters("permanent") == []
    until(lambda: console.get("/api/overview").json()["adds_up"])


def test_a_tap_shows_what_passes(console: RunningConsole) -> None:
    assert console.get("/parts/tap/to", token=console.token).status == 200
    assert console.send(BODY) == [200]
    until(lambda: "load_orders" in console.get("/api/tap/to", token=console.token).body)


def test_an_event_is_found_from_receipt_to_outcome(console: RunningConsole) -> None:
    run_id = "0190a3c0-2f0a-7c3b-9b63-9a4b5c6d7e8f"
    assert console.send(json.dumps(run_event(run_id)).encode()) == [200]

    def found() -> str:
        answer = console.get(f"/parts/events?q={run_id}", token=console.token)
        assert answer.status == 200, answer.body
        return answer.body

    until(lambda: "to: acked" in found())
    assert "accepted" in found()
    # What looks like an option is looked for like anything else.
    assert (
        "Nothing that is still there"
        in console.get("/parts/events?q=--help", token=console.token).body
    )
