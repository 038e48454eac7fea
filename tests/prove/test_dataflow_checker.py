"""The checker of pipelines sees every way in which an event can count wrongly."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.prove.dataflow_checker import DataflowVerdict, check_dataflow
from holdfast.prove.journal import ProofJournal

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


class Sinks:
    """Journals and files as a proof leaves them: four events of one client, one of them late."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "journals").mkdir()
        self.journal = ProofJournal(root / "journals" / "0.journal")
        self.journal.sent("0-1", 3)
        self.journal.answered("0-1", 7)
        self.journal.sent("0-2", 1)
        self.journal.refused("0-2", "maybe", "ConnectionResetError")
        self.journal.sent("0-3", 1)
        self.journal.refused("0-3", "no", "400")
        self.names = ["0-1.0", "0-1.1", "0-1.2", "0-2.0"]
        self.copies = list(self.names)
        self.late = ["0-1.2"]
        self.counts = {NOON: 3}

    def check(self) -> DataflowVerdict:
        """Write the files, and check."""
        for folder, names in (("names", self.names), ("copies", self.copies), ("late", self.late)):
            table = {"name": names, "client": ["0"] * len(names), "at_us": [NOON_US] * len(names)}
            self._write(folder, pa.table(table))
        windows = {
            "window_start": pa.array(list(self.counts), pa.timestamp("us", tz="UTC")),
            "client": ["0"] * len(self.counts),
            "n": list(self.counts.values()),
        }
        self._write("counts", pa.table(windows))
        self.journal.close()
        return check_dataflow(self.root / "journals", self.root)

    def _write(self, folder: str, table: pa.Table) -> None:
        (self.root / folder).mkdir()
        pq.write_table(table, self.root / folder / "part-0.parquet")


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    return Sinks(tmp_path)


def test_what_was_accepted_is_counted(sinks: Sinks) -> None:
    verdict = sinks.check()
    assert verdict.ok
    assert (verdict.accepted, verdict.answered, verdict.unanswered_kept) == (4, 3, 1)
    assert (verdict.counted, verdict.late, verdict.refused) == (4, 1, 1)


def test_an_event_without_an_answer_may_be_gone(sinks: Sinks) -> None:
    sinks.names.remove("0-2.0")
    sinks.copies.remove("0-2.0")
    sinks.counts[NOON] = 2
    verdict = sinks.check()
    assert verdict.ok
    assert (verdict.accepted, verdict.unanswered_gone) == (3, 1)


def test_an_event_without_an_answer_is_everywhere_or_nowhere(sinks: Sinks) -> None:
    sinks.copies.remove("0-2.0")
    assert sinks.check().lost == 1


def test_an_answered_event_that_is_nowhere_is_lost(sinks: Sinks) -> None:
    sinks.names.remove("0-1.0")
    sinks.copies.remove("0-1.0")
    sinks.counts[NOON] = 2
    verdict = sinks.check()
    assert (verdict.ok, verdict.lost) == (False, 1)
    assert verdict.examples == ["names: lost 0-1.0"]


@pytest.mark.parametrize("sink", ["names", "copies", "late"])
def test_an_event_that_is_there_twice_is_told(sinks: Sinks, sink: str) -> None:
    getattr(sinks, sink).append("0-1.2")
    verdict = sinks.check()
    assert (verdict.ok, verdict.duplicated) == (False, 1)


@pytest.mark.parametrize(("counted", "lost", "duplicated"), [(2, 1, 0), (4, 0, 1)])
def test_a_window_that_counts_wrongly_is_told(
    sinks: Sinks, counted: int, lost: int, duplicated: int
) -> None:
    sinks.counts[NOON] = counted
    verdict = sinks.check()
    assert not verdict.ok
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)


def test_a_late_event_that_is_counted_too_is_told(sinks: Sinks) -> None:
    sinks.late.append("0-1.1")
    verdict = sinks.check()
    assert (verdict.ok, verdict.duplicated) == (False, 1)


@pytest.mark.parametrize("name", ["0-3.0", "9-9.0"])
def test_an_event_that_was_refused_or_never_sent_is_told(sinks: Sinks, name: str) -> None:
    sinks.names.append(name)
    sinks.copies.append(name)
    sinks.counts[NOON] = 4
    if name.startswith("9"):
        sinks.counts[NOON] = 3
    assert sinks.check().invented == 1


def test_a_proof_of_nothing_proves_nothing(tmp_path: Path) -> None:
    assert not check_dataflow(tmp_path, tmp_path).ok
