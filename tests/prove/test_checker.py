"""The checker must see every kind of broken promise, or a proof means nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.prove.checker import QuiverVerdict, check
from holdfast.prove.journal import CURSOR, LEASE, ProofJournal, read_journals
from holdfast.prove.quiver_victim import body_of, name_in, names_of, payload_of
from holdfast.quiver import Quiver


class Story:
    """Journals of one client and two readers, written by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._client = ProofJournal(directory / "client.journal")

    def sent(self, name: str, bundles: int = 1, seq: int | None = None) -> None:
        self._client.sent(name, bundles)
        if seq is not None:
            self._client.answered(name, seq)

    def refused(self, name: str, stored: str) -> None:
        self._client.sent(name, 1)
        self._client.refused(name, stored, "DiskFull")

    def read(self, subscriber: str, *lines: str, incarnation: int = 0) -> None:
        path = self.directory / f"{incarnation:06d}.{subscriber}"
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def both_read(self, *lines: str, incarnation: int = 0) -> None:
        for subscriber in (CURSOR, LEASE):
            self.read(subscriber, *lines, incarnation=incarnation)

    def verdict(self) -> QuiverVerdict:
        self._client.close()
        return check(self.directory)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_what_was_answered_and_read_is_fine(story: Story) -> None:
    story.sent("a", seq=0)
    story.sent("t", bundles=3, seq=1)
    story.both_read("D 0 a.0", "K 0", "D 1 t.0", "D 2 t.1", "D 3 t.2")
    verdict = story.verdict()
    assert verdict.ok
    assert (verdict.accepted, verdict.recovered, verdict.delivered) == (4, 4, 8)


def test_an_answered_event_that_one_reader_never_saw_is_lost(story: Story) -> None:
    story.sent("a", seq=0)
    story.read(CURSOR, "D 0 a.0", "K 0")
    verdict = story.verdict()
    assert verdict.lost == 1
    assert not verdict.ok
    assert f"{LEASE}: lost a" in verdict.examples


def test_an_event_read_again_after_its_acknowledgement_is_a_duplicate(story: Story) -> None:
    story.sent("a", seq=0)
    story.both_read("D 0 a.0", "K 0")
    story.read(LEASE, "D 0 a.0", incarnation=1)
    verdict = story.verdict()
    assert verdict.duplicated == 1
    assert not verdict.ok


def test_an_event_in_flight_at_a_kill_may_come_again(story: Story) -> None:
    story.sent("a", seq=0)
    story.both_read("D 0 a.0")
    story.both_read("D 0 a.0", "K 0", incarnation=1)
    verdict = story.verdict()
    assert verdict.ok
    assert verdict.redelivered_in_flight == 2


def test_a_cursor_that_goes_back_within_one_life_breaks_order(story: Story) -> None:
    story.sent("a", seq=0)
    story.sent("b", seq=1)
    story.read(LEASE, "D 1 b.0", "D 0 a.0")
    story.read(CURSOR, "D 1 b.0", "D 0 a.0")
    verdict = story.verdict()
    assert verdict.order_violations == 1
    assert not verdict.ok


def test_an_unanswered_event_may_be_there_or_not(story: Story) -> None:
    story.sent("a")
    story.sent("b")
    story.both_read("D 0 a.0", "K 0")
    verdict = story.verdict()
    assert verdict.ok
    assert (verdict.unanswered, verdict.unanswered_found) == (2, 1)


def test_an_event_refused_for_certain_must_not_be_there(story: Story) -> None:
    story.refused("a", "no")
    story.refused("b", "maybe")
    story.both_read("D 0 a.0", "D 1 b.0")
    verdict = story.verdict()
    assert verdict.resurrected == 2
    assert not verdict.ok


def test_an_event_nobody_sent_and_content_that_changed_are_invented(story: Story) -> None:
    story.both_read("D 0 stranger.0", "D 1 ?")
    verdict = story.verdict()
    assert verdict.invented == 4
    assert not verdict.ok


def test_half_a_transaction_is_torn(story: Story) -> None:
    story.sent("t", bundles=3)
    story.both_read("D 0 t.0", "D 2 t.2")
    verdict = story.verdict()
    assert verdict.torn_transactions == 2
    assert not verdict.ok


def test_an_event_at_another_seq_than_promised_is_misplaced(story: Story) -> None:
    story.sent("a", seq=77)
    story.both_read("D 0 a.0")
    assert story.verdict().misplaced == 2


def test_books_that_do_not_balance_break_the_proof(story: Story) -> None:
    verdict = story.verdict()
    verdict.equation = False
    assert not verdict.ok


def test_a_journal_cut_off_in_the_middle_of_a_line_is_read_up_to_there(tmp_path: Path) -> None:
    (tmp_path / "client.journal").write_text("S a 1\nA a 5\nS b 1\nA b 1")
    sent = read_journals(tmp_path)
    assert sent["a"].seq == 5
    assert not sent["b"].answered


def test_an_events_content_follows_from_its_name() -> None:
    assert name_in(payload_of("3-1-17-raw.0")) == "3-1-17-raw.0"
    assert name_in(b"3-1-17-raw.0\0something else") is None


def test_a_reader_checks_the_content_of_what_it_is_handed(tmp_path: Path) -> None:
    with Quiver.open(tmp_path) as quiver:
        quiver.append_raw([payload_of("a.0"), payload_of("b.0") + b"!"], slot="raw")
        batch = pa.record_batch({"name": ["c.0", "d.0"], "body": [body_of("c.0"), b"else"]})
        quiver.append({"arrow": batch})
        raw, arrow = quiver.bundle(0), quiver.bundle(1)
        assert raw is not None
        assert arrow is not None
        assert names_of(raw) == ["a.0", "?"]
        assert names_of(arrow) == ["c.0", "?"]
