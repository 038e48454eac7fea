"""The checker of handoff: the clients' journals against every folder of every data node.

It asks no node and no sender. A part counts as often as there is a folder with it, whatever it is
called and whatever the node would serve of it; who owns a seq is computed from the placement. So:

- what a client was answered is at each owner once;
- what one owner has, every other owner has, too, answered or not;
- nobody has what he does not own, what was refused for certain, or what nobody sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.handoff.owners import Owners
from holdfast.prove.checker import EventVerdict
from holdfast.prove.journal import UNKNOWN, Sent, read_journals
from holdfast.quiver.segments.segment import Bundle, Segment
from holdfast.replica.part import PartId, part_id
from holdfast.replica.verify import verify
from holdfast.seam.disk import RealDisk

EventNames = Callable[[Bundle], list[str]]


class FoundPart(NamedTuple):
    """A sound part in a folder."""

    part: PartId
    # Seq and name of every event in it.
    events: list[tuple[int, str]]


class NodeFolders:
    """Reads the folders of data nodes. A sound part is read once: nobody changes it any more."""

    def __init__(self, names_of: EventNames) -> None:
        self._names_of = names_of
        self._known: dict[Path, FoundPart] = {}

    def parts(self, node_dir: Path) -> Iterator[FoundPart | str]:
        """Yield each part of a node, or what is wrong with a folder."""
        for folder in sorted(node_dir.glob("replicas/*/segments/*")):
            if folder not in self._known:
                try:
                    self._known[folder] = self._read(folder)
                except HoldfastError as error:
                    yield f"{folder.name}: {error}"
                    continue
            yield self._known[folder]

    def _read(self, folder: Path) -> FoundPart:
        disk = RealDisk()
        summary = verify(disk, folder)
        events = [
            (bundle.seq, name)
            for bundle in Segment(disk, folder, summary).bundles()
            for name in self._names_of(bundle)
        ]
        return FoundPart(part_id(summary), events)


@dataclass
class HandoffVerdict(EventVerdict):
    """Events of a sender, as they are in the folders of its data nodes. One that is missing at
    several owners is lost as often.
    """

    # By data node: events that are there, each counted once, and folders with parts.
    stored: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    # There more than once, at one node.
    applied_twice: int = 0
    # At a node that owns none of its part.
    not_owned: int = 0
    # At another seq than its client was told.
    misplaced: int = 0
    torn_transactions: int = 0
    damaged_parts: int = 0

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = self.lost + self.applied_twice + self.not_owned + self.misplaced
        broken += self.resurrected + self.invented + self.torn_transactions + self.damaged_parts
        return broken == 0 and self.equation


def check_handoff(
    journals: Path, node_dirs: Mapping[str, Path], owners: Owners, folders: NodeFolders
) -> HandoffVerdict:
    """Compare the clients' journals with the folders of all nodes."""
    verdict = HandoffVerdict()
    sent = read_journals(journals)
    verdict.count_sent(sent)
    _HandoffCheck(sent, owners, verdict).check(
        {name: list(folders.parts(path)) for name, path in node_dirs.items()}
    )
    return verdict


class _HandoffCheck:
    """All nodes together: only they say what there is besides what was answered."""

    def __init__(self, sent: dict[str, Sent], owners: Owners, verdict: HandoffVerdict) -> None:
        self._sent = sent
        self._owners = owners
        self._verdict = verdict
        # By event: its seq, and by node how often it is there.
        self._seqs: dict[str, int] = {}
        self._there: dict[str, Counter[str]] = {}
        self._quiver_id = ""

    def check(self, found: Mapping[str, list[FoundPart | str]]) -> None:
        for node, parts in found.items():
            self._there[node] = Counter()
            for part in parts:
                self._take(node, part)
            self._verdict.stored[node] = len(self._there[node])
            self._verdict.parts[node] = len(parts)
        for node, there in self._there.items():
            for event, count in there.items():
                if count > 1:
                    self._verdict.applied_twice += count - 1
                    self._verdict.note(f"{node}: {count} times {event}")
        for append in self._sent.values():
            self._check_append(append)

    def _take(self, node: str, found: FoundPart | str) -> None:
        verdict = self._verdict
        if isinstance(found, str):
            verdict.damaged_parts += 1
            verdict.note(f"{node}: {found}")
            return
        part = found.part
        self._quiver_id = part.quiver_id
        if node not in self._owners.owners(part.quiver_id, part.first_seq, part.end_seq):
            verdict.not_owned += 1
            verdict.note(f"{node}: owns nothing of {part}")
        for seq, event in found.events:
            if event == UNKNOWN or event.rpartition(".")[0] not in self._sent:
                verdict.invented += 1
                verdict.note(f"{node}: nobody sent {event} at {seq}")
                continue
            self._there[node][event] += 1
            if self._seqs.setdefault(event, seq) != seq:
                verdict.misplaced += 1
                verdict.note(f"{node}: {event} at {seq}, elsewhere at {self._seqs[event]}")

    def _check_append(self, append: Sent) -> None:
        """Compare what a client was answered with what its owners have of it."""
        verdict, events = self._verdict, append.events()
        there = sum(event in self._seqs for event in events)
        if append.refused == "no" and not append.answered and there:
            verdict.resurrected += there
            verdict.note(f"refused, yet there {append.name}")
        if 0 < there < len(events):
            verdict.torn_transactions += 1
            verdict.note(f"in part {append.name}")
        if append.seq is not None and self._seqs.get(events[0], append.seq) != append.seq:
            verdict.misplaced += 1
            verdict.note(f"{events[0]} at {self._seqs[events[0]]}, told as {append.seq}")
        for event in events:
            seq = self._seqs.get(event, append.seq)
            if seq is not None:
                self._check_owners(event, seq)

    def _check_owners(self, event: str, seq: int) -> None:
        for node in sorted(self._owners.owners(self._quiver_id, seq, seq + 1)):
            if not self._there[node][event]:
                self._verdict.lost += 1
                self._verdict.note(f"{node}: lost {event} at {seq}")
