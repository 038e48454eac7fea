"""A data node and a way to it in this process, both as unkind as one likes.

The node does what a real one promises: it takes a part as a whole or not at all, answers by range,
and remembers what it ever had. The transport loses requests and answers, and repeats calls. Tests,
simulations and demonstrations drive a real sender with them, without a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.errors import OwnerGone, UnknownPosition
from holdfast.quiver.base import names
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.manifest import READABLE_VERSIONS
from holdfast.replica.messages import (
    AnswerKind,
    HealthPage,
    Holding,
    ListedPart,
    NodeHealth,
    PartAnswer,
    digest,
    misdirected,
    require_meant,
)
from holdfast.replica.part import Part, PartId, Slice, content_checksum
from holdfast.replica.transport import FetchedPart, OutgoingPart

_T = TypeVar("_T")

# What it asks for when it has no room.
BUSY_S = 5.0


@dataclass
class StoredPart:
    """A part as a fake node has it: every file, byte for byte."""

    part: Part
    files: dict[str, bytes]


@dataclass
class FakeNode:
    """A data node in memory. What it adopted survives `restart`, as on a disk."""

    node_id: str
    capacity_bytes: int | None = None
    segment_versions: tuple[int, ...] = READABLE_VERSIONS
    is_up: bool = True
    # Parts as they were adopted, one after another: one that is here twice was applied twice.
    adopted: list[StoredPart] = field(default_factory=list)
    # What it ever adopted, in order, also what it removed since.
    history: list[PartId] = field(default_factory=list)
    stored: dict[str, IntervalSet] = field(default_factory=dict)
    # What it ever had: by that it answers. `seen` has also what it was told is not its own, which
    # is taken all the same: owners change, and a part may lie across the border of two blocks.
    had: dict[str, IntervalSet] = field(default_factory=dict)
    seen: dict[str, IntervalSet] = field(default_factory=dict)
    # Answers for parts that it should give instead of its own, by part.
    lies: dict[PartId, PartAnswer] = field(default_factory=dict)
    offers: int = 0
    boots: int = 1

    @property
    def used_bytes(self) -> int:
        """What its parts occupy."""
        return sum(one.part.size_bytes for one in self.adopted)

    def restart(self) -> None:
        """Begin a new process on what is stored."""
        self.boots += 1
        self.is_up = True

    # ------------------------------------------------------------------ answers

    def offer(self, parts: Sequence[Part]) -> list[PartAnswer]:
        """PartAnswer as a real node does: by range, by version, by room."""
        self.offers += len(parts)
        return [self.lies.get(part.id) or self._answer(part) for part in parts]

    def _answer(self, part: Part) -> PartAnswer:
        quiver_id, start, end = part.id.quiver_id, part.id.first_seq, part.id.end_seq
        had = self.had.get(quiver_id, IntervalSet())
        if self.stored.get(quiver_id, IntervalSet()).covers(start, end):
            return PartAnswer(part.id, AnswerKind.HAVE)
        if had.covers(start, end):
            return PartAnswer(part.id, AnswerKind.EXPIRED)
        if had.overlaps(start, end):
            return PartAnswer(part.id, AnswerKind.CONFLICT, "some of its seqs are in another part")
        if part.segment_version not in self.segment_versions:
            return PartAnswer(part.id, AnswerKind.REJECT, f"segment version {part.segment_version}")
        room_bytes = math.inf if self.capacity_bytes is None else self.capacity_bytes
        if self.used_bytes + part.size_bytes > room_bytes:
            return PartAnswer(part.id, AnswerKind.BUSY, "the disk is full", BUSY_S)
        return PartAnswer(part.id, AnswerKind.NEED)

    def put(self, one: OutgoingPart | FetchedPart) -> PartAnswer:
        """Adopt a part: all of it, or nothing."""
        if one.part.id in self.lies:
            return self.lies[one.part.id]
        answer = self._answer(one.part)
        if answer.kind is not AnswerKind.NEED:
            return answer
        content: dict[str, bytes] = {file.name: b"" for file in one.part.files}
        for piece in one.slices:
            content[one.part.files[piece.file].name] += piece.data
        self.adopt(StoredPart(one.part, content))
        return PartAnswer(one.part.id, AnswerKind.ACK)

    def adopt(self, stored: StoredPart) -> None:
        """Store a part, whatever there is."""
        self.adopted.append(stored)
        part = stored.part.id
        self.history.append(part)
        for intervals in (self.stored, self.had, self.seen):
            intervals.setdefault(part.quiver_id, IntervalSet()).add(part.first_seq, part.end_seq)

    def remove(self, place: int) -> StoredPart:
        """Remove a part, as retention does: it stays seen."""
        gone = self.adopted.pop(place)
        part = gone.part.id
        self.stored[part.quiver_id].remove(part.first_seq, part.end_seq)
        return gone

    def listed(self, quiver_id: str, ranges: IntervalSet) -> list[ListedPart]:
        """Return which parts it has of some ranges, all of them in one list."""
        found = [
            ListedPart(one.part, content_checksum(manifest.decode(one.files[names.MANIFEST])))
            for one in self.adopted
            if one.part.id.quiver_id == quiver_id
            and ranges.overlaps(one.part.id.first_seq, one.part.id.end_seq)
        ]
        return sorted(found, key=lambda one: one.part.id)

    def fetch(self, part_id: PartId) -> FetchedPart:
        """Return a part that it has."""
        for one in self.adopted:
            if one.part.id == part_id:
                pieces = (
                    Slice(place, 0, one.files[file.name])
                    for place, file in enumerate(one.part.files)
                )
                return FetchedPart(one.part, pieces)
        raise UnknownPosition(f"part {part_id} is not here", hint="ask another node")

    def tell_not_owned(self, quiver_id: str, ranges: IntervalSet) -> None:
        """Close intervals."""
        self.seen[quiver_id] = self.seen.get(quiver_id, IntervalSet()).union(ranges)

    def health(self, known_digest: str) -> NodeHealth:
        """Return the statement of this moment, in one page."""
        nothing = IntervalSet()
        holdings = tuple(
            Holding(key, IntervalSet(self.stored.get(key, nothing)), IntervalSet(seen))
            for key, seen in self.seen.items()
        )
        now = digest(holdings)
        return NodeHealth(
            self.node_id,
            f"{self.node_id}/{self.boots}",
            "fake",
            self.segment_versions,
            1 << 40 if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes,
            is_writable=True,
            digest=now,
            holdings=() if now == known_digest else holdings,
        )


def _no_trouble(verb: str, moment: str) -> None:
    """Let every call through."""


class FakeTransport:
    """The way to a fake node.

    `trouble` is called with the verb before the node gets a call ("before") and when it has done it
    ("after"): what it raises is what the sender sees. With `repeats` the node gets every call so
    many times more, and the last answer counts: a network that duplicates.
    """

    def __init__(
        self,
        node: Callable[[], FakeNode | None],
        trouble: Callable[[str, str], None] = _no_trouble,
        repeats: int = 0,
    ) -> None:
        self._node = node
        self._trouble = trouble
        self.repeats = repeats

    def offer(self, node_id: str, parts: Sequence[Part]) -> list[PartAnswer]:
        """Offer parts."""
        return self._call(
            "offer", lambda node: misdirected(node.node_id, node_id, parts) or node.offer(parts)
        )

    def send(self, node_id: str, parts: Sequence[OutgoingPart | FetchedPart]) -> list[PartAnswer]:
        """Send parts."""

        def put(node: FakeNode) -> list[PartAnswer]:
            refused = misdirected(node.node_id, node_id, [one.part for one in parts])
            return refused or [node.put(one) for one in parts]

        return self._call("send", put)

    def tell_not_owned(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> None:
        """Say what is not the node's."""

        def tell(node: FakeNode) -> None:
            require_meant(node.node_id, node_id)
            node.tell_not_owned(quiver_id, ranges)

        self._call("tell_not_owned", tell)

    def health(self, page: HealthPage | None = None, known_digest: str = "") -> NodeHealth:
        """Ask how it is; there is one page."""
        assert page is None, "BUG: a fake node has one page"
        return self._call("health", lambda node: node.health(known_digest))

    def parts(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> list[ListedPart]:
        """Ask which parts it has."""

        def listed(node: FakeNode) -> list[ListedPart]:
            require_meant(node.node_id, node_id)
            return node.listed(quiver_id, ranges)

        return self._call("parts", listed)

    def fetch(self, node_id: str, part_id: PartId) -> FetchedPart:
        """Ask for the bytes of a part."""

        def fetched(node: FakeNode) -> FetchedPart:
            require_meant(node.node_id, node_id)
            return node.fetch(part_id)

        return self._call("fetch", fetched)

    def close(self) -> None:
        """Nothing to do."""

    def _call(self, verb: str, work: Callable[[FakeNode], _T]) -> _T:
        self._trouble(verb, "before")
        node = self._node()
        if node is None or not node.is_up:
            raise OwnerGone("the connection was refused", hint="start the node")
        for _ in range(self.repeats):
            work(node)
        result = work(node)
        self._trouble(verb, "after")
        return result
