"""The checker of the gateway sees every kind of broken promise, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.prove.checker import KILLS, GatewayVerdict, check_gateway
from holdfast.prove.journal import UNKNOWN, ProofJournal


class Story:
    """Journals written by hand; time is a count of lines."""

    def __init__(self, directory: Path, in_flight_max: int = 1) -> None:
        self._directory = directory
        self._in_flight_max = in_flight_max
        self._now_ns = 0
        self._arrivals: list[str] = []
        self._kills: list[str] = []
        self._client = ProofJournal(directory / "0.journal")

    def accept(self, name: str, seq: int, events: int = 1) -> None:
        self._client.sent(name, events)
        self._client.answered(name, seq)

    def refuse(self, name: str, stored: str, events: int = 1) -> None:
        self._client.sent(name, events)
        self._client.refused(name, stored, "error")

    def arrive(self, *names: str) -> None:
        self._now_ns += 1
        self._arrivals += [f"R {self._now_ns} {name}\n" for name in names]

    def kill(self) -> None:
        self._now_ns += 1
        self._kills.append(f"{self._now_ns}\n")

    def verdict(self) -> GatewayVerdict:
        (self._directory / "0001.here").write_text("".join(self._arrivals))
        (self._directory / KILLS).write_text("".join(self._kills))
        return check_gateway(self._directory, {"here": self._in_flight_max})


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_what_arrives_once_and_in_order_is_fine(story: Story) -> None:
    story.accept("a", 1)
    story.accept("b", 2, events=2)
    story.arrive("a.0")
    story.arrive("b.0", "b.1")
    verdict = story.verdict()
    assert verdict.ok
    assert (verdict.accepted, verdict.delivered) == (3, {"here": 3})


def test_what_was_accepted_and_never_arrives_is_lost(story: Story) -> None:
    story.accept("a", 1)
    verdict = story.verdict()
    assert (verdict.lost, verdict.ok) == (1, False)


def test_a_batch_that_arrives_in_part_is_torn(story: Story) -> None:
    story.refuse("a", "maybe", events=2)
    story.arrive("a.0")
    verdict = story.verdict()
    assert (verdict.lost, verdict.torn_batches, verdict.ok) == (0, 1, False)


def test_what_was_accepted_first_arrives_first(story: Story) -> None:
    story.accept("a", 1)
    story.accept("b", 2)
    story.arrive("b.0")
    story.arrive("a.0")
    verdict = story.verdict()
    assert (verdict.order_violations, verdict.ok) == (1, False)


def test_rows_of_one_bundle_arrive_in_order(story: Story) -> None:
    story.accept("a", 1, events=2)
    story.arrive("a.1")
    story.arrive("a.0")
    assert story.verdict().order_violations == 1


def test_the_last_one_before_a_kill_may_come_again(story: Story) -> None:
    story.accept("a", 1)
    story.arrive("a.0")
    story.kill()
    story.arrive("a.0")
    verdict = story.verdict()
    assert (verdict.redelivered_in_flight, verdict.duplicated, verdict.ok) == (1, 0, True)


def test_without_a_kill_nothing_may_come_again(story: Story) -> None:
    story.accept("a", 1)
    story.kill()
    story.arrive("a.0")
    story.arrive("a.0")
    story.kill()
    verdict = story.verdict()
    assert (verdict.redelivered_in_flight, verdict.duplicated, verdict.ok) == (0, 1, False)


def test_what_was_answered_for_long_before_a_kill_may_not_come_again(story: Story) -> None:
    story.accept("a", 1)
    story.accept("b", 2)
    story.arrive("a.0")
    story.arrive("b.0")
    story.kill()
    story.arrive("a.0")
    verdict = story.verdict()
    assert (verdict.duplicated, verdict.ok) == (1, False)


def test_a_whole_request_may_come_again(tmp_path: Path) -> None:
    story = Story(tmp_path, in_flight_max=2)
    story.accept("a", 1, events=2)
    story.arrive("a.0", "a.1")
    story.kill()
    story.arrive("a.0", "a.1")
    verdict = story.verdict()
    assert (verdict.redelivered_in_flight, verdict.ok) == (2, True)


def test_what_was_refused_for_certain_must_not_arrive(story: Story) -> None:
    story.refuse("a", "no")
    story.arrive("a.0")
    verdict = story.verdict()
    assert (verdict.resurrected, verdict.ok) == (1, False)


def test_what_may_have_been_stored_may_arrive(story: Story) -> None:
    story.refuse("a", "maybe")
    story.arrive("a.0")
    verdict = story.verdict()
    assert (verdict.unanswered, verdict.ok) == (1, True)


@pytest.mark.parametrize("name", [UNKNOWN, "b.0"])
def test_content_that_nobody_sent_is_seen(story: Story, name: str) -> None:
    story.accept("a", 1)
    story.arrive("a.0")
    story.arrive(name)
    verdict = story.verdict()
    assert (verdict.invented, verdict.ok) == (1, False)
