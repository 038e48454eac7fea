"""The checker: what the clients' journals say against what the quiver holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.prove.events import body_of, name_in
from holdfast.prove.journal import Sent, read_journals
from holdfast.quiver import Quiver, QuiverConfig


@dataclass
class Verdict:
    """Counts of events, and the names of those that break a promise (the first few)."""

    sent: int = 0
    accepted: int = 0
    recovered: int = 0
    unanswered: int = 0
    unanswered_found: int = 0
    lost: int = 0
    duplicated: int = 0
    resurrected: int = 0
    invented: int = 0
    torn_transactions: int = 0
    misplaced: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = self.lost + self.duplicated + self.resurrected + self.invented
        return broken + self.torn_transactions + self.misplaced == 0


def read_events(quiver_dir: Path, config: QuiverConfig) -> list[tuple[str | None, int]]:
    """Open the quiver, as after any crash, and return (name, seq) of all it holds."""
    found: list[tuple[str | None, int]] = []
    with Quiver.open(quiver_dir, config) as quiver:
        for batch in quiver.scan(["_seq", "payload"], slot="raw"):
            payloads, seqs = batch.column("payload").to_pylist(), batch.column("_seq").to_pylist()
            found += zip(map(name_in, payloads), seqs, strict=True)
        for batch in quiver.scan(["_seq", "name", "body"], slot="arrow"):
            for row in batch.to_pylist():
                sound = row["body"] == body_of(row["name"])
                found.append((row["name"] if sound else None, row["_seq"]))
    return found


def check(journal_dir: Path, quiver_dir: Path, config: QuiverConfig) -> Verdict:
    """Compare the journals with the quiver."""
    verdict = Verdict()
    found = read_events(quiver_dir, config)
    counts = Counter(name for name, _ in found)
    seqs = dict(found)
    verdict.recovered = len(found)
    verdict.invented = counts.pop(None, 0)
    _note(verdict, "invented: content does not match its name", verdict.invented)
    known: set[str] = set()
    for sent in read_journals(journal_dir).values():
        known.update(sent.events())
        _check_append(verdict, sent, counts, seqs)
    strangers = [name for name in counts if name not in known]
    verdict.invented += len(strangers)
    for name in strangers:
        _note(verdict, f"invented: {name}", 1)
    return verdict


def _check_append(
    verdict: Verdict, sent: Sent, counts: Counter[str | None], seqs: dict[str | None, int]
) -> None:
    events = sent.events()
    there = [counts[event] for event in events]
    present = sum(1 for count in there if count)
    verdict.sent += len(events)
    verdict.duplicated += sum(count - 1 for count in there if count > 1)
    if sent.answered:
        verdict.accepted += len(events)
        verdict.lost += len(events) - present
        _note(verdict, f"lost: {sent.name}", len(events) - present)
        if present and seqs[events[0]] != sent.seq:
            verdict.misplaced += 1
            _note(verdict, f"misplaced: {sent.name} at {seqs[events[0]]}, not {sent.seq}", 1)
    elif sent.refused == "no":
        verdict.resurrected += present
        _note(verdict, f"refused, yet there: {sent.name}", present)
    else:
        verdict.unanswered += len(events)
        verdict.unanswered_found += present
    if 0 < present < len(events):
        verdict.torn_transactions += 1
        _note(verdict, f"torn transaction: {sent.name}", 1)
    _note(verdict, f"twice: {sent.name}", sum(1 for count in there if count > 1))


def _note(verdict: Verdict, text: str, count: int) -> None:
    examples_max = 20
    if count and len(verdict.examples) < examples_max:
        verdict.examples.append(text)
