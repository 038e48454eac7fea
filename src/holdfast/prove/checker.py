"""The checker: what the clients' journals say against what the readers' journals say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.prove.journal import Sent, read_journals, whole_lines
from holdfast.prove.readers import CURSOR, INVENTED, LEASE

EXAMPLES_MAX = 20


@dataclass
class Reading:
    """What one subscriber's journals say."""

    # By event: how often it was handed to the reader.
    delivered: Counter[str] = field(default_factory=Counter)
    # By event: the seq of its bundle.
    seqs: dict[str, int] = field(default_factory=dict)
    # Handed out again although the reader had been told that it is off its hands.
    after_acknowledgement: list[str] = field(default_factory=list)
    # Handed out again because nobody had said so before a kill: the price of at-least-once.
    in_flight_again: int = 0
    order_violations: int = 0


@dataclass
class QuiverVerdict:
    """Counts of events, and the names of those that break a promise (the first few)."""

    sent: int = 0
    accepted: int = 0
    recovered: int = 0
    delivered: int = 0
    unanswered: int = 0
    unanswered_found: int = 0
    lost: int = 0
    duplicated: int = 0
    redelivered_in_flight: int = 0
    resurrected: int = 0
    invented: int = 0
    torn_transactions: int = 0
    misplaced: int = 0
    order_violations: int = 0
    equation: bool = True
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = self.lost + self.duplicated + self.resurrected + self.invented
        broken += self.torn_transactions + self.misplaced + self.order_violations
        return broken == 0 and self.equation

    def note(self, text: str, count: int = 1) -> None:
        """Keep an example of a broken promise."""
        if count and len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def read_reader(directory: Path, subscriber: str) -> Reading:
    """Return what a subscriber's readers wrote down, over all incarnations."""
    reading = Reading()
    acknowledged: set[int] = set()
    for path in sorted(directory.glob(f"*.{subscriber}")):
        last_seq = -1
        for line in whole_lines(path):
            fact, seq_text, *names = line.split(" ")
            seq = int(seq_text)
            if fact == "K":
                acknowledged.add(seq)
                continue
            if subscriber == CURSOR and seq <= last_seq:
                reading.order_violations += 1
            last_seq = seq
            _take(reading, seq, names, seq in acknowledged)
    return reading


def _take(reading: Reading, seq: int, names: list[str], acknowledged: bool) -> None:
    for name in names:
        if reading.delivered[name]:
            if acknowledged:
                reading.after_acknowledgement.append(name)
            else:
                reading.in_flight_again += 1
        reading.delivered[name] += 1
        reading.seqs[name] = seq


def check(journal_dir: Path) -> QuiverVerdict:
    """Compare the clients' journals with those of both readers."""
    verdict = QuiverVerdict()
    sent = read_journals(journal_dir)
    known = {event for one in sent.values() for event in one.events()}
    for subscriber in (CURSOR, LEASE):
        reading = read_reader(journal_dir, subscriber)
        verdict.invented += reading.delivered.pop(INVENTED, 0)
        for name in [name for name in reading.delivered if name not in known]:
            verdict.invented += 1
            verdict.note(f"{subscriber}: invented {name}")
        verdict.duplicated += len(reading.after_acknowledgement)
        for name in reading.after_acknowledgement:
            verdict.note(f"{subscriber}: again after acknowledgement {name}")
        verdict.redelivered_in_flight += reading.in_flight_again
        verdict.order_violations += reading.order_violations
        verdict.delivered += len(reading.delivered)
        for append in sent.values():
            _check_append(verdict, subscriber, append, reading)
        if subscriber == CURSOR:
            verdict.recovered = len(reading.delivered)
            _count(verdict, sent, reading)
    return verdict


def _count(verdict: QuiverVerdict, sent: dict[str, Sent], reading: Reading) -> None:
    """Count the appends themselves, once, against the reader that sees everything in order."""
    for append in sent.values():
        events = append.events()
        found = sum(1 for event in events if event in reading.delivered)
        verdict.sent += len(events)
        if append.answered:
            verdict.accepted += len(events)
        elif append.refused != "no":
            verdict.unanswered += len(events)
            verdict.unanswered_found += found


def _check_append(verdict: QuiverVerdict, subscriber: str, append: Sent, reading: Reading) -> None:
    events = append.events()
    present = sum(1 for event in events if event in reading.delivered)
    if append.answered:
        missing = len(events) - present
        verdict.lost += missing
        verdict.note(f"{subscriber}: lost {append.name}", missing)
        if present and reading.seqs[events[0]] != append.seq:
            verdict.misplaced += 1
            verdict.note(f"{subscriber}: misplaced {append.name}")
    elif append.refused == "no":
        verdict.resurrected += present
        verdict.note(f"{subscriber}: refused, yet there {append.name}", present)
    if 0 < present < len(events):
        verdict.torn_transactions += 1
        verdict.note(f"{subscriber}: torn transaction {append.name}")
