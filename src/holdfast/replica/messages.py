"""What a sender and a data node say to each other, and its form as JSON.

    offer      "I have these parts": an answer for each
    put        the bytes of some of them: an answer for each
    not owned  "these ranges are none of yours": closes the node's intervals
    health     who the node is, whether it takes parts, and which seqs it has and had
    parts      which parts it has of some ranges, and their checksums
    scrub      read every byte of some parts: what is damaged

docs/format/replica.md lists every field. A field that is unknown is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from xxhash import xxh3_128_hexdigest

from holdfast.errors import BadInput
from holdfast.quiver.base import names
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.remote.wire import SEQ_MAX, Fields
from holdfast.replica.part import FILES_MAX, Part, PartFile, PartId, checked_id, require_quiver_id

# Of one health statement; the rest follows on the next page.
PAGE_INTERVALS_MAX = 10_000
_PARTS_MAX = 10_000
# Of one list of a node's parts, and ranges that are asked for at once; the rest is asked for again.
PARTS_LISTED_MAX = 1000
RANGES_ASKED_MAX = 1000


class AnswerKind(StrEnum):
    """What a data node says of one part."""

    ACK = "ack"  # it is stored here now, durably
    HAVE = "have"  # it was stored here before
    EXPIRED = "expired"  # it was stored here, and was removed: by age, size, or an operator
    NEED = "need"  # send it
    BUSY = "busy"  # not now: somebody sends it, or there is no room; the node waits
    RETRY = "retry"  # something went wrong with this part; it may be sent again
    REJECT = "reject"  # never in this form
    CONFLICT = "conflict"  # some of its seqs are here, in a part of another range
    WRONG_NODE = "wrong_node"  # it was meant for another node; the whole node waits


# The node has, or had, every event of the part: nothing is left to send.
RESOLVED = frozenset({AnswerKind.ACK, AnswerKind.HAVE, AnswerKind.EXPIRED})
# The part is held: it waits for an operator, and others pass it.
HELD = frozenset({AnswerKind.REJECT, AnswerKind.CONFLICT})


@dataclass(frozen=True)
class PartAnswer:
    """What a data node says of one part."""

    part: PartId
    kind: AnswerKind
    # Why, in words for operators; empty where the kind says it all.
    reason: str = ""
    # With BUSY: when to ask again.
    retry_after_s: float | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        fields: dict[str, Any] = {"part": list(self.part), "answer": str(self.kind)}
        if self.reason:
            fields["reason"] = self.reason
        if self.retry_after_s is not None:
            fields["retry_after_s"] = self.retry_after_s
        return fields

    @classmethod
    def from_fields(cls, fields: Fields) -> PartAnswer:
        """Return what `to_fields` gave.

        A kind that is unknown here comes from a newer node: the part is tried again later.
        """
        kind = fields.text("answer")
        reason = fields.text("reason", "")
        if kind not in set(AnswerKind):
            kind, reason = AnswerKind.RETRY, f"an answer that is unknown here: {kind!r}"
        waits = fields.values.get("retry_after_s") is not None
        return cls(
            decode_part_id(fields.values.get("part")),
            AnswerKind(kind),
            reason,
            max(0.0, fields.number("retry_after_s")) if waits else None,
        )


def wrong_node(node_id: str, meant_id: str) -> str:
    """Return why a node gets nothing: the sender and the node itself say it in the same words."""
    return (
        f"node {node_id} answers at this address, and {meant_id} is bound to its name: rebind the "
        "name if this node is to take its place"
    )


def misdirected(node_id: str, meant_id: str, parts: Iterable[Part]) -> list[PartAnswer]:
    """Return a node's answers for parts that were meant for another one; none if for this one.

    A node that is new at the address of another must not answer in its name: what it takes, or says
    that it has, would be settled for the other one.
    """
    if meant_id == node_id:
        return []
    reason = wrong_node(node_id, meant_id)
    return [PartAnswer(part.id, AnswerKind.WRONG_NODE, reason) for part in parts]


def require_meant(node_id: str, meant_id: str) -> None:
    """Raise `BadInput` if another node was meant by a call in which no part is answered."""
    if meant_id != node_id:
        raise BadInput(
            f"node {node_id} answers at this address, and {meant_id} was meant",
            hint="rebind its name if this node is to take its place",
        )


# ----------------------------------------------------------------------- offers


def part_fields(part: Part) -> dict[str, Any]:
    """Return an offer of a part as JSON can hold it."""
    return {
        "part": list(part.id),
        "folder": part.folder_name,
        "segment_version": part.segment_version,
        "files": [list(file) for file in part.files],
    }


def decode_part(fields: Fields) -> Part:
    """Return the part that is offered; raise `BadInput` if no part is like that.

    Its names become files of the node: none may lead out of the part's own folder.
    """
    part_id = decode_part_id(fields.values.get("part"))
    folder = fields.text("folder")
    named = names.parse_segment_dir(folder)
    if named is None or (named.first_seq, named.last_seq) != part_id[1:]:
        raise BadInput(
            f"{folder!r} is not the folder of part {part_id}", hint="offer sealed segments"
        )
    given = fields.values.get("files")
    if not isinstance(given, list) or not 0 < len(given) <= FILES_MAX:
        raise BadInput(f"part {part_id} lists no files", hint=f"it has 1 to {FILES_MAX}")
    files = tuple(_part_file(part_id, one) for one in given)
    if len({file.name for file in files}) != len(files):
        raise BadInput(f"part {part_id} lists a file twice", hint="list each file once")
    return Part(part_id, folder, fields.whole("segment_version"), files)


def _part_file(part_id: PartId, given: object) -> PartFile:
    match given:
        case [str(name), int(size_bytes)] if 0 <= size_bytes < SEQ_MAX and _is_file_name(name):
            return PartFile(name, size_bytes)
    raise BadInput(
        f"part {part_id} lists {given!r}, which is no file of a segment",
        hint="list [name, bytes]; names are those of the segment's folder",
    )


def _is_file_name(name: str) -> bool:
    if name in (names.MANIFEST, names.BUNDLES):
        return True
    data = names.parse_data_file(name)
    return data is not None and names.SLOT_PATTERN.fullmatch(data[1]) is not None


def decode_part_id(given: object) -> PartId:
    """Return the part that is named as [quiver_id, first_seq, last_seq]."""
    match given:
        case [str(quiver_id), int(first_seq), int(last_seq)]:
            return checked_id(quiver_id, first_seq, last_seq)
    raise BadInput(f"{given!r} is not a part", hint="write [quiver_id, first_seq, last_seq]")


def decode_parts(fields: Fields, name: str = "parts") -> list[Part]:
    """Return the parts that a document offers."""
    return [decode_part(one) for one in documents(fields, name)]


@dataclass(frozen=True)
class ListedPart:
    """A part that a node has, and by what its bytes can be compared with those of others."""

    part: Part
    # See `content_checksum`.
    checksum: str

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**part_fields(self.part), "checksum": self.checksum}

    @classmethod
    def from_fields(cls, fields: Fields) -> ListedPart:
        """Return what `to_fields` gave."""
        return cls(decode_part(fields), fields.text("checksum"))


@dataclass(frozen=True)
class DamagedPart:
    """A part in which a scrub found damage."""

    part: PartId
    reason: str
    # Where it is now, on the node's machine.
    folder: str

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"part": list(self.part), "reason": self.reason, "folder": self.folder}

    @classmethod
    def from_fields(cls, fields: Fields) -> DamagedPart:
        """Return what `to_fields` gave."""
        part = decode_part_id(fields.values.get("part"))
        return cls(part, fields.text("reason"), fields.text("folder"))


@dataclass(frozen=True)
class ScrubPage:
    """What a scrub read in one call, and where the next one goes on."""

    parts: int
    size_bytes: int
    damaged: tuple[DamagedPart, ...]
    # The last part that was read; None: all are.
    after: PartId | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "parts": self.parts,
            "size_bytes": self.size_bytes,
            "damaged": [one.to_fields() for one in self.damaged],
            "after": None if self.after is None else list(self.after),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> ScrubPage:
        """Return what `to_fields` gave."""
        after = fields.values.get("after")
        return cls(
            fields.whole("parts"),
            fields.whole("size_bytes"),
            tuple(DamagedPart.from_fields(one) for one in documents(fields, "damaged")),
            None if after is None else decode_part_id(after),
        )


def documents(fields: Fields, name: str) -> Iterator[Fields]:
    """Yield the documents in a list of a document."""
    given = fields.values.get(name)
    if not isinstance(given, list) or len(given) > _PARTS_MAX:
        raise BadInput(f"{name!r} is missing, or too long", hint=f"at most {_PARTS_MAX} at once")
    for one in given:
        if not isinstance(one, dict):
            raise BadInput(f"{name!r} holds {one!r}", hint="see docs/format/replica.md")
        yield Fields(one)


# -------------------------------------------------------------------- intervals


def interval_fields(intervals: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return intervals as JSON can hold them: [first seq, end seq), in order."""
    return [[start, end] for start, end in intervals]


def decode_intervals(given: object) -> IntervalSet:
    """Return the set that `interval_fields` gave; raise `BadInput` for anything else."""
    intervals = IntervalSet()
    for one in given if isinstance(given, list) else [given]:
        match one:
            case [int(start), int(end)] if 0 <= start < end <= SEQ_MAX:
                intervals.add(start, end)
            case _:
                raise BadInput(f"{one!r} is not an interval", hint="write [first_seq, end_seq]")
    return intervals


@dataclass(frozen=True)
class Holding:
    """Which seqs of one quiver a node has, and which it will not ask for again."""

    quiver_id: str
    # In parts that are there now.
    stored: IntervalSet = field(default_factory=IntervalSet)
    # Those, and what was removed since, and what it was told is not its own.
    seen: IntervalSet = field(default_factory=IntervalSet)


def digest(holdings: Iterable[Holding]) -> str:
    """Return a short text that is the same for the same holdings, and for no others."""
    text = json.dumps(
        [
            [one.quiver_id, interval_fields(one.stored), interval_fields(one.seen)]
            for one in sorted(holdings, key=lambda one: one.quiver_id)
            if one.seen or one.stored
        ],
        separators=(",", ":"),
    )
    return xxh3_128_hexdigest(text.encode())


# ----------------------------------------------------------------------- health


@dataclass(frozen=True)
class HealthPage:
    """Where a page of a health statement begins: behind an interval of one of a quiver's sets.

    A place, not a number: the next page begins where this one ended, whatever came meanwhile.
    """

    quiver_id: str
    # "seen" comes first, then "stored".
    kind: str
    start_seq: int


@dataclass(frozen=True)
class NodeHealth:
    """What a data node says of itself, and a page of what it holds."""

    node_id: str
    # Of the process: another one means that the node was started again.
    boot_id: str
    version: str
    segment_versions: tuple[int, ...]
    free_bytes: int
    is_writable: bool
    # Of all holdings, at the moment of this page.
    digest: str
    holdings: tuple[Holding, ...] = ()
    next_page: HealthPage | None = None
    # Why it takes nothing now, in words for operators.
    reason: str = ""

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        fields: dict[str, Any] = {
            "node_id": self.node_id,
            "boot_id": self.boot_id,
            "version": self.version,
            "segment_versions": list(self.segment_versions),
            "free_bytes": self.free_bytes,
            "is_writable": self.is_writable,
            "reason": self.reason,
            "digest": self.digest,
            "holdings": [
                {
                    "quiver_id": one.quiver_id,
                    "stored": interval_fields(one.stored),
                    "seen": interval_fields(one.seen),
                }
                for one in self.holdings
            ],
        }
        if self.next_page is not None:
            fields["next_page"] = page_fields(self.next_page)
        return fields

    @classmethod
    def from_fields(cls, fields: Fields) -> NodeHealth:
        """Return what `to_fields` gave."""
        versions = fields.values.get("segment_versions")
        if not isinstance(versions, list) or not all(type(one) is int for one in versions):
            raise BadInput("'segment_versions' is missing or wrong", hint="it is a list of numbers")
        return cls(
            fields.text("node_id"),
            fields.text("boot_id"),
            fields.text("version"),
            tuple(versions),
            fields.whole("free_bytes"),
            fields.values.get("is_writable") is True,
            fields.text("digest"),
            tuple(_holding(one) for one in documents(fields, "holdings")),
            decode_page(fields.values.get("next_page")),
            fields.text("reason", ""),
        )


def _holding(fields: Fields) -> Holding:
    quiver_id = fields.text("quiver_id")
    require_quiver_id(quiver_id)
    stored = decode_intervals(fields.values.get("stored"))
    return Holding(quiver_id, stored, decode_intervals(fields.values.get("seen")))


def page_fields(page: HealthPage) -> list[object]:
    """Return where a page begins as JSON can hold it."""
    return [page.quiver_id, page.kind, page.start_seq]


def decode_page(given: object) -> HealthPage | None:
    """Return what `page_fields` gave; None stands for the first page."""
    match given:
        case None:
            return None
        case [str(quiver_id), "seen" | "stored" as kind, int(start_seq)]:
            return HealthPage(quiver_id, str(kind), start_seq)
    raise BadInput(f"{given!r} is not a page", hint="repeat the next_page that the node gave")


def page_of(
    holdings: Iterable[Holding], after: HealthPage | None, limit: int = PAGE_INTERVALS_MAX
) -> tuple[tuple[Holding, ...], HealthPage | None]:
    """Return what follows a place, at most so many intervals, and where the next page begins."""
    begin = ("", "", -1) if after is None else (after.quiver_id, after.kind, after.start_seq)
    found: dict[str, Holding] = {}
    last: HealthPage | None = None
    for one in sorted(holdings, key=lambda one: one.quiver_id):
        for kind, intervals in (("seen", one.seen), ("stored", one.stored)):
            for start, end in intervals:
                if (one.quiver_id, kind, start) <= begin:
                    continue
                if limit == 0:
                    return tuple(found.values()), last
                holding = found.setdefault(one.quiver_id, Holding(one.quiver_id))
                (holding.seen if kind == "seen" else holding.stored).add(start, end)
                last = HealthPage(one.quiver_id, kind, start)
                limit -= 1
    return tuple(found.values()), None
