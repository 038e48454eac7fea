"""What a check found: how bad it is, where, what, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """How bad a finding is."""

    # Something is lost, or will be if nobody acts.
    ERROR = "error"
    # Nothing is lost, and somebody should look.
    WARNING = "warning"
    # As it should be after a crash, and mended by itself.
    NOTE = "note"


class QuiverFinding(NamedTuple):
    """One thing that is not as it should be."""

    severity: Severity
    where: str
    what: str
    next: str
    # Ranges of seqs, both ends included, that it concerns; not all of them need exist.
    seqs: tuple[tuple[int, int], ...] = ()


@dataclass
class Report:
    """What was checked, and what was found."""

    findings: list[QuiverFinding] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is lost or about to be."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def as_ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return numbers as ranges, both ends included."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if ranges and ranges[-1][1] + 1 == seq:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return tuple(ranges)
