"""The ledger as it was written: every line of the open file and of those kept, oldest first.

The owner knows what is true now; this is how it came to be. Nothing is added up here, because a
line may be the only witness of something that later lines have overtaken. Lines that cannot be read
are left out, and reported by `scrub`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.quiver.base.frame import Frame
from holdfast.quiver.ledger.log import (
    LedgerContent,
    LineKind,
    decode_resolutions,
    read_ledger_file,
)
from holdfast.quiver.ledger.subscriber import Outcome, Resolution
from holdfast.quiver.log.wal import HeaderFault, NewerVersion
from holdfast.quiver.tools.inspect import Inventory
from holdfast.seam.disk import Disk


class Line(NamedTuple):
    """One line: an outcome, or a change."""

    file: str
    time_ns: int
    resolution: Resolution | None
    change: dict[str, Any] | None

    @property
    def subscriber(self) -> str:
        """Whom it concerns; empty for what concerns all."""
        if self.resolution is not None:
            return self.resolution.subscriber
        assert self.change is not None
        name: str = self.change.get("state", self.change)["name"]
        return name

    def covers(self, seq: int) -> bool:
        """Whether it says something of this bundle."""
        if self.resolution is not None:
            start, end = self.resolution.start, self.resolution.end
            # The end is exclusive, unless it is inside of a bundle: then it says something of that
            # bundle, too.
            return start.seq <= seq < end.seq or (seq == end.seq and end.row > 0)
        assert self.change is not None
        if "seqs" in self.change:
            first, last = self.change["seqs"]
            return bool(first <= seq <= last)
        if "seq" in self.change:
            return bool(self.change["seq"] == seq)
        if "first_seq" in self.change:
            return bool(self.change["first_seq"] <= seq < self.change["end_seq"])
        return False

    def fields(self) -> dict[str, Any]:
        """Return the line as flat columns: those of an export.

        The same for outcomes and for changes, so that all of it is one table: who looks for what
        happened to a bundle asks for its seq, and does not know which kind of line will tell.
        """
        if self.resolution is not None:
            r = self.resolution
            return {
                "time_ns": self.time_ns,
                "file": self.file,
                "line": "outcome",
                "subscriber": r.subscriber,
                "what": r.outcome.name.lower(),
                "generation": r.generation,
                "first_seq": r.start.seq,
                "first_row": r.start.row,
                "end_seq": r.end.seq,
                "end_row": r.end.row,
                "bundles": r.counts.bundles,
                "events": r.counts.events,
                "reason": r.reason,
            }
        assert self.change is not None
        change = self.change
        first, last = change.get("seqs", (change.get("first_seq", change.get("seq")), None))
        bundles, events = change.get("totals", (None, None))
        return {
            "time_ns": self.time_ns,
            "file": self.file,
            "line": "change",
            "subscriber": self.subscriber,
            "what": change["verb"],
            "generation": change.get("generation"),
            "first_seq": first,
            "first_row": None,
            "end_seq": change.get("end_seq", None if last is None else last + 1),
            "end_row": None,
            "bundles": bundles,
            "events": events,
            "reason": self.attempt if "attempt" in change else change.get("reason", ""),
        }

    @property
    def attempt(self) -> str:
        """Which attempt to hand out a bundle it tells of, and why that failed."""
        assert self.change is not None
        number, reason = self.change["attempt"], self.change.get("reason", "")
        return f"attempt {number}" + (f": {reason}" if reason else "")


@dataclass(frozen=True)
class LineFilter:
    """Which lines are wanted; None is all."""

    subscriber: str | None = None
    outcomes: frozenset[Outcome] | None = None
    seq: int | None = None
    # From `since` up to, not including, `until`.
    since_ns: int | None = None
    until_ns: int | None = None

    def wants(self, line: Line) -> bool:
        """Whether a line is wanted."""
        if self.subscriber is not None and line.subscriber != self.subscriber:
            return False
        if self.outcomes is not None and (
            line.resolution is None or line.resolution.outcome not in self.outcomes
        ):
            return False
        if self.seq is not None and not line.covers(self.seq):
            return False
        if self.since_ns is not None and line.time_ns < self.since_ns:
            return False
        return self.until_ns is None or line.time_ns < self.until_ns


def ledger_files(disk: Disk, inventory: Inventory) -> Iterator[LedgerContent]:
    """Yield the ledger's files, oldest first; one that is removed meanwhile is left out.

    From the inventory's list, so that a file which is being begun right now is not half read.
    """
    for path, _, _ in inventory.ledger.files:
        try:
            yield read_ledger_file(disk, path)
        except (OSError, HeaderFault, NewerVersion):
            continue


def lines_of(content: LedgerContent) -> Iterator[Line]:
    """Yield the sound lines of one file."""
    for item in content.items:
        if not isinstance(item, Frame):
            continue
        name = content.path.name
        if item.kind == LineKind.RESOLUTIONS:
            for resolution in decode_resolutions(item.payload):
                yield Line(name, resolution.time_ns, resolution, None)
        elif item.kind == LineKind.CHANGE:
            yield Line(name, item.ingestion_ns, None, json.loads(bytes(item.payload)))


def lines(disk: Disk, inventory: Inventory, wanted: LineFilter) -> Iterator[Line]:
    """Yield the wanted lines of all files."""
    for content in ledger_files(disk, inventory):
        yield from (line for line in lines_of(content) if wanted.wants(line))
