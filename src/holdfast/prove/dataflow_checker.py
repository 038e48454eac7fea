"""The checker of pipelines: what clients were answered against the files of the sinks, no more.

One pipeline writes the name of every event, into two sinks; another one counts events per window
and client, and writes those that came too late aside. Every event that was answered is in each of
the first two once. The counts are those of the names, window by window, less the late ones, whose
names are known. An event that was never answered may be there, or not: but then everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from holdfast.prove.journal import read_journals

# The folders of the sinks: names of all events, twice, and counts of windows.
NAMES, COPIES, COUNTS, LATE = "names", "copies", "counts", "late"
WINDOW_S = 5
EXAMPLES_MAX = 20


@dataclass
class DataflowVerdict:
    """Counts of events, and the names of those that break a promise (the first few)."""

    # The gateway has them: what it answered for, and what it took without being able to answer.
    accepted: int = 0
    answered: int = 0
    unanswered_kept: int = 0
    unanswered_gone: int = 0
    # Said to be wrong, or sent while nobody listened.
    refused: int = 0
    # In windows and among the late rows.
    counted: int = 0
    windows: int = 0
    late: int = 0
    duplicated: int = 0
    lost: int = 0
    # Refused, or sent by nobody, and yet there.
    invented: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = self.duplicated + self.lost + self.invented
        return broken == 0 and self.counted == self.accepted > 0

    def note(self, text: str) -> None:
        """Keep an example of a broken promise."""
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def check_dataflow(journals: Path, sinks: Path) -> DataflowVerdict:
    """Compare the clients' journals with the sinks' files."""
    verdict = DataflowVerdict()
    times_us: dict[str, int] = {}
    names, copies = Counter[str](), Counter[str]()
    for row in _rows(sinks / NAMES):
        names[row["name"]] += 1
        times_us[row["name"]] = row["at_us"]
    copies.update(row["name"] for row in _rows(sinks / COPIES))
    _check_names(journals, names, verdict)
    for sink, found in ((NAMES, names), (COPIES, copies)):
        _compare(verdict, sink, found, Counter(dict.fromkeys(names, 1)))
    _check_windows(sinks, times_us, verdict)
    return verdict


def _check_names(journals: Path, names: Counter[str], verdict: DataflowVerdict) -> None:
    """Compare the names with what clients were answered."""
    known = set[str]()
    for sent in read_journals(journals).values():
        there = [name for name in sent.events() if name in names]
        known.update(sent.events())
        if sent.answered:
            verdict.answered += sent.bundles
            _missing(verdict, NAMES, set(sent.events()) - set(there))
        elif sent.refused == "no":
            verdict.refused += sent.bundles
            verdict.invented += len(there)
        else:
            verdict.unanswered_kept += len(there)
            verdict.unanswered_gone += sent.bundles - len(there)
    verdict.invented += len(set(names) - known)
    verdict.accepted = verdict.answered + verdict.unanswered_kept


def _check_windows(sinks: Path, times_us: dict[str, int], verdict: DataflowVerdict) -> None:
    """Compare the counts of windows with what the names say they must be.

    The expected counts come from the first sink, which has every event once; whatever is late is
    expected in the late rows instead.
    """
    late = Counter(row["name"] for row in _rows(sinks / LATE))
    _compare(verdict, LATE, late, Counter(dict.fromkeys(set(late) & set(times_us), 1)))
    expected, counted = Counter[str](), Counter[str]()
    for name, at_us in times_us.items():
        if name not in late:
            start_s = at_us // 1_000_000 // WINDOW_S * WINDOW_S
            expected[f"{start_s} of client {name.partition('-')[0]}"] += 1
    for row in _rows(sinks / COUNTS):
        start_s = int(row["window_start"].timestamp())
        counted[f"{start_s} of client {row['client']}"] += row["n"]
        verdict.windows += 1
    _compare(verdict, COUNTS, counted, expected)
    verdict.late = late.total()
    verdict.counted = counted.total() + verdict.late


def _compare(
    verdict: DataflowVerdict, sink: str, found: Counter[str], expected: Counter[str]
) -> None:
    """Count what is there too often, and what is not there."""
    over = found - expected
    verdict.duplicated += over.total()
    for name in list(over)[:EXAMPLES_MAX]:
        verdict.note(f"{sink}: {name} is there {found[name]} times, not {expected[name]}")
    _missing(verdict, sink, (expected - found).elements())


def _missing(verdict: DataflowVerdict, sink: str, names: Any) -> None:
    for name in names:
        verdict.lost += 1
        verdict.note(f"{sink}: lost {name}")


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a files sink, as any reader of such a folder sees them."""
    for path in sorted(folder.glob("*.parquet")):
        yield from pq.read_table(path).to_pylist()
