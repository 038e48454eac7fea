"""The checker must see every kind of broken promise, or a proof means nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.prove.checker import Verdict, check
from holdfast.prove.events import body_of, name_in, payload_of
from holdfast.prove.journal import Journal, read_journals
from holdfast.quiver import Quiver, QuiverConfig

CONFIG = QuiverConfig()


class Story:
    """A quiver and one client's journal, written by hand."""

    def __init__(self, directory: Path) -> None:
        self.quiver_dir, self.journal_dir = directory / "quiver", directory / "journals"
        self.journal_dir.mkdir()
        self.journal = Journal(self.journal_dir / "client.journal")

    def store(self, *names: str) -> list[int]:
        with Quiver.open(self.quiver_dir) as quiver:
            quiver.append({"arrow": pa.record_batch({"name": ["x.0"], "body": [body_of("x.0")]})})
            seqs = [quiver.append_raw(payload_of(name), slot="raw").seq for name in names]
        self.journal.sent("x", 1)
        self.journal.answered("x", 0)
        return seqs

    def verdict(self) -> Verdict:
        self.journal.close()
        return check(self.journal_dir, self.quiver_dir, CONFIG)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_what_was_answered_and_is_there_is_fine(story: Story) -> None:
    (seq,) = story.store("a.0")
    story.journal.sent("a", 1)
    story.journal.answered("a", seq)
    verdict = story.verdict()
    assert verdict.ok
    assert (verdict.accepted, verdict.recovered) == (2, 2)


def test_an_answered_event_that_is_missing_is_lost(story: Story) -> None:
    story.store("a.0")
    story.journal.sent("a", 1)
    story.journal.answered("a", 1)
    story.journal.sent("b", 1)
    story.journal.answered("b", 2)
    verdict = story.verdict()
    assert verdict.lost == 1
    assert not verdict.ok
    assert "lost: b" in verdict.examples


def test_an_event_stored_twice_is_a_duplicate(story: Story) -> None:
    story.store("a.0", "a.0")
    story.journal.sent("a", 1)
    story.journal.answered("a", 2)
    verdict = story.verdict()
    assert verdict.duplicated == 1
    assert not verdict.ok


def test_an_unanswered_event_may_be_there_or_not(story: Story) -> None:
    story.store("a.0")
    story.journal.sent("a", 1)
    story.journal.sent("b", 1)
    verdict = story.verdict()
    assert verdict.ok
    assert (verdict.unanswered, verdict.unanswered_found) == (2, 1)


def test_an_event_refused_for_certain_must_not_be_there(story: Story) -> None:
    story.store("a.0", "b.0")
    for name, stored in (("a", "no"), ("b", "maybe")):
        story.journal.sent(name, 1)
        story.journal.refused(name, stored, "DiskFull")
    verdict = story.verdict()
    assert verdict.resurrected == 1
    assert not verdict.ok


def test_an_event_nobody_sent_is_invented(story: Story) -> None:
    story.store("a.0")
    assert story.verdict().invented == 1


def test_changed_content_is_invented(story: Story) -> None:
    with Quiver.open(story.quiver_dir) as quiver:
        quiver.append_raw(payload_of("a.0") + b"!", slot="raw")
    story.store()
    assert story.verdict().invented == 1


def test_half_a_transaction_is_torn(story: Story) -> None:
    story.store("t.0", "t.2")
    story.journal.sent("t", 3)
    verdict = story.verdict()
    assert verdict.torn_transactions == 1
    assert not verdict.ok


def test_an_event_at_another_seq_than_promised_is_misplaced(story: Story) -> None:
    story.store("a.0")
    story.journal.sent("a", 1)
    story.journal.answered("a", 77)
    assert story.verdict().misplaced == 1


def test_a_journal_cut_off_in_the_middle_of_a_line_is_read_up_to_there(tmp_path: Path) -> None:
    (tmp_path / "client.journal").write_text("S a 1\nA a 5\nS b 1\nA b 1")
    sent = read_journals(tmp_path)
    assert sent["a"].seq == 5
    assert not sent["b"].answered


def test_an_events_content_follows_from_its_name() -> None:
    assert name_in(payload_of("3-1-17-raw.0")) == "3-1-17-raw.0"
    assert name_in(b"3-1-17-raw.0\0something else") is None
