"""explain: from receipt to outcome, the whole story of one bundle, for every subscriber.

The receipt comes from wherever the bundle is: a WAL file, a segment. Where it is gone, the ledger
says when its segment went and why. The outcomes come from the ledger's lines. The first line that
covers a bundle decides; later ones may cover it again without saying anything of it (a segment that
is dropped is dropped as a whole, whoever had read parts of it), until a replay takes the outcome
back. What was decided before the oldest line that is kept is known to be resolved, and no more.

`search` finds bundles by what is in them: a scan of everything that is still there, but for what a
filter rules out (segments/ids.py).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base import names
from holdfast.quiver.base.arrow import has_dictionary, plain_type
from holdfast.quiver.base.frame import BUNDLE_KINDS, Frame
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.quiver.log.quarantine import Damage
from holdfast.quiver.log.wal import HEADER_BYTES, walk
from holdfast.quiver.segments import ids
from holdfast.quiver.segments.segment import Bundle, Segment, held_bundle
from holdfast.quiver.tools.history import Line, ledger_files, lines_of
from holdfast.quiver.tools.inspect import Inventory
from holdfast.seam.disk import Disk

RESOLVED_EARLIER = "resolved before the oldest line that is kept (ledger.retain_s)"


@dataclass
class Fate:
    """What became of the bundle for one subscriber."""

    subscriber: str
    # "pending", "not for it", the name of an outcome, or "resolved" where the line is not kept.
    state: str = "pending"
    time_ns: int | None = None
    reason: str = ""
    generation: int | None = None
    # Events of the bundle that are committed while the rest is pending.
    events_done: int = 0
    # How often a lease handed it out, as far as that is on record.
    attempts: int = 0
    # What else happened to it, oldest first: (time, what).
    remarks: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class BundleExplanation:
    """The story of one bundle."""

    quiver_id: str | None
    seq: int
    # In one sentence: is it there, and where.
    place: str
    receipt: dict[str, Any] | None
    subscribers: list[Fate]


def explain(disk: Disk, inventory: Inventory, seq: int) -> BundleExplanation:
    """Return the story of the bundle with this number."""
    story = _Story(seq)
    for content in ledger_files(disk, inventory):
        checkpoint = content.checkpoint
        if checkpoint is not None:
            story.take_checkpoint([Subscriber.from_fields(s) for s in checkpoint["subscribers"]])
        for line in lines_of(content):
            story.take(line)
    place, receipt = _find(inventory, seq, story)
    identity = inventory.identity
    # A bundle that does not exist yet waits for nobody.
    fates = list(story.fates.values()) if seq <= inventory.last_seq else []
    return BundleExplanation(identity.quiver_id if identity else None, seq, place, receipt, fates)


class _Story:
    """Follows one bundle through the lines of the ledger."""

    def __init__(self, seq: int) -> None:
        self.fates: dict[str, Fate] = {}
        # The line that says that its segment went.
        self.deleted: Line | None = None
        self._seq = seq
        self._first = True

    def take_checkpoint(self, subscribers: list[Subscriber]) -> None:
        """Begin with what was known before the oldest line, or note what lines do not tell."""
        for subscriber in subscribers:
            fate = self.fates.get(subscriber.name)
            if fate is None:
                fate = self.fates[subscriber.name] = self._begin(subscriber)
            # A checkpoint that knows more than the lines before it: those lines are gone (the
            # oldest file kept) or damaged (a later one).
            if self._seq in subscriber.resolved and fate.state == "pending":
                fate.state = "resolved"
                fate.reason = RESOLVED_EARLIER if self._first else "its line is damaged"
        self._first = False

    def _begin(self, subscriber: Subscriber) -> Fate:
        fate = Fate(
            subscriber.name,
            events_done=subscriber.partial.get(self._seq, 0),
            attempts=subscriber.attempts.get(self._seq, 0),
        )
        if self._seq < subscriber.start_seq:
            fate.state = "not for it"
            fate.reason = f"it reads from {subscriber.start_seq} on"
        return fate

    def take(self, line: Line) -> None:
        """Follow one line.

        A subscriber that is registered again begins anew: what an earlier one of its name had read
        is no outcome of this one.
        """
        if line.resolution is not None:
            self._take_outcome(line)
            return
        assert line.change is not None
        verb = line.change["verb"]
        if verb == "register":
            self.fates[line.subscriber] = self._begin(Subscriber.from_fields(line.change["state"]))
        elif verb == "deleted" and line.covers(self._seq):
            self.deleted = line
        elif verb in ("nack", "attempt") and line.covers(self._seq):
            self._take_attempt(line)
        elif verb in ("unregister", "reopen"):
            fate = self.fates.get(line.subscriber)
            if fate is None:
                return
            if verb == "unregister":
                fate.remarks.append((line.time_ns, "the subscriber was unregistered"))
            elif line.covers(self._seq) and fate.state != "not for it":
                fate.remarks.append((line.time_ns, f"replayed; it had been {fate.state}"))
                fate.state, fate.time_ns, fate.reason, fate.events_done = "pending", None, "", 0
                fate.generation, fate.attempts = None, 0

    def _take_attempt(self, line: Line) -> None:
        fate = self.fates.get(line.subscriber)
        assert line.change is not None
        if fate is not None and fate.state == "pending":
            fate.attempts = max(fate.attempts, line.change["attempt"])
            if line.change["verb"] == "nack":
                fate.remarks.append((line.time_ns, f"given back, {line.attempt}"))

    def _take_outcome(self, line: Line) -> None:
        """Take a line that covers the bundle; the first one decides."""
        resolution, fate = line.resolution, self.fates.get(line.subscriber)
        assert resolution is not None
        if fate is None or fate.state != "pending" or not line.covers(self._seq):
            return
        # The range ends inside the bundle: some of its events have the outcome, and the rest
        # waits.
        if resolution.end.seq == self._seq:
            fate.events_done = resolution.end.row
            what = f"{resolution.end.row} of its events {resolution.outcome.name.lower()}"
            fate.remarks.append((line.time_ns, what))
            return
        fate.state = resolution.outcome.name.lower()
        fate.time_ns, fate.reason = line.time_ns, resolution.reason
        fate.generation = resolution.generation


# --------------------------------------------------------------------- the place


def _find(inventory: Inventory, seq: int, story: _Story) -> tuple[str, dict[str, Any] | None]:
    """From the surest witness to the vaguest: the bytes themselves, then the line of their removal,
    then damage that names the number, and last what can be said of a number that nobody knows.
    """
    held = next((held for held in inventory.unsealed if held.seq == seq), None)
    if held is not None:
        receipt = _receipt(held_bundle(held)) | {"payload_bytes": len(held.payload)}
        return f"in the write-ahead log, not sealed yet ({_wal_file(inventory, seq)})", receipt
    segment = inventory.catalog.find(seq)
    if segment is not None:
        return _find_in_segment(segment, seq)
    if story.deleted is not None and story.deleted.change is not None:
        change = story.deleted.change
        return f"gone: it was in segment {change['segment_seq']}, {_why_gone(change)}", None
    damage = _damage_of(inventory, seq)
    if damage is not None:
        return f"lost: {damage.source}: {damage.reason}", None
    return _nowhere(inventory, seq), None


def _wal_file(inventory: Inventory, seq: int) -> str:
    # By walking: nothing says where in a file a bundle is, and nobody needs to know but a person
    # who looks.
    for content in inventory.wal:
        start = HEADER_BYTES
        try:
            view = content.read()
        except FileNotFoundError:
            continue  # sealed since we looked
        for item in walk(view, content.header.salt):
            if isinstance(item, Frame) and item.seq == seq and item.kind in BUNDLE_KINDS:
                return f"{names.WAL_DIR}/{content.path.name} at byte {start}"
            start = item.end
    return f"{names.WAL_DIR}, and is being sealed"


def _find_in_segment(segment: Segment, seq: int) -> tuple[str, dict[str, Any] | None]:
    where = f"{names.SEGMENTS_DIR}/{segment.path.name}"
    try:
        index = segment.index()
    except Damaged:
        return f"gone this moment: its owner removes segment {segment.summary.segment_seq}", None
    if seq not in index.seqs:
        return f"nowhere: the number was skipped ({where} goes over it)", None
    place = index.seqs.index(seq)
    receipt = _receipt(segment.bundle_at(index, place))
    receipt["payload_bytes"] = index.ref(place, seq).size_bytes
    return f"in segment {segment.summary.segment_seq} ({where})", receipt


def _receipt(bundle: Bundle) -> dict[str, Any]:
    damage = bundle.damage
    return {
        "accepted_ns": bundle.ingestion_ns,
        "kind": bundle.kind.name.lower(),
        "events": bundle.events,
        "slots": {name: batch.num_rows for name, batch in bundle.sound_slots.items()},
        "producer": bundle.producer,
        "epoch": bundle.epoch or None,
        "watermark_ns": bundle.watermark_ns,
        "damage": None if damage is None else str(damage),
    }


def _why_gone(change: dict[str, Any]) -> str:
    """Return in words why a segment was removed."""
    reasons = {
        "processed": "which everyone had resolved",
        "age": "which was too old (retention.max_age_s)",
        "size": "which went to make room (retention.size_cap_bytes)",
        "segments": "which went to make room (retention.max_segments)",
    }
    return reasons.get(change["reason"], str(change["reason"]))


def _damage_of(inventory: Inventory, seq: int) -> Damage | None:
    for damage in (*inventory.wal_damages, *inventory.quarantined):
        first, last = damage.first_seq, damage.last_seq
        if first is not None and first <= seq <= (first if last is None else last):
            return damage
    return None


def _nowhere(inventory: Inventory, seq: int) -> str:
    if seq > inventory.last_seq:
        return f"nowhere: the newest bundle is {inventory.last_seq}"
    unreadable = [names.parse_segment_dir(name) for name in inventory.unreadable]
    if any(name and name.first_seq <= seq <= name.last_seq for name in unreadable):
        return "in a segment whose manifest cannot be read; `holdfast quiver salvage` may get it"
    return "nowhere: the number was skipped, or its segment went before the oldest line kept"


_EXCERPT_CHARACTERS = 80
# The id of a trace or of a span, as people write it.
_ID = re.compile("([0-9a-fA-F]{16}){1,2}")


class Match(NamedTuple):
    """One event that contains the text."""

    seq: int
    slot: str
    row: int
    column: str
    excerpt: str


# What makes JSON of the payloads of a slot that are not text.
PayloadReaders = Mapping[str, Callable[[bytes], object]]


class _Sought(NamedTuple):
    """What is searched for."""

    text: str
    # The same as bytes: of an id, which people write in hexadecimal digits, those that it stands
    # for, too.
    patterns: tuple[bytes, ...]
    readers: PayloadReaders
    # The id that items must have as their own; None if the text may stand anywhere.
    id: bytes | None = None


def search(
    inventory: Inventory,
    text: str,
    readers: PayloadReaders | None = None,
    *,
    anywhere: bool = True,
) -> Iterator[Match]:
    """Yield the events that contain a text, oldest first; damaged slots are passed over.

    `readers` show, by slot, what is not text. If it need not be found `anywhere`, what has a filter
    on the ids of its items is read only if one of them may have this id.
    """
    patterns = [text.encode()]
    if _ID.fullmatch(text):
        patterns.append(bytes.fromhex(text))
    is_id = len(patterns[-1]) == ids.ID_BYTES and len(patterns) > 1 and not anywhere
    sought = _Sought(text, tuple(patterns), readers or {}, patterns[-1] if is_id else None)
    for segment in inventory.segments:
        yield from _search_segment(segment, sought)
    for held in inventory.unsealed:
        for slot, batch in held_bundle(held).sound_slots.items():
            yield from (Match(held.seq, slot, *found) for found in _rows(batch, slot, sought))


def _search_segment(segment: Segment, sought: _Sought) -> Iterator[Match]:
    # Bundle by bundle costs a slice each: first ask the files whether it is there at all.
    if not any(_file_may_hold(segment, place, sought) for place in range(len(segment.files))):
        return
    try:
        bundles = list(segment.bundles())
    except Damaged:
        return  # its owner has removed it since we found it
    for bundle in bundles:
        for slot, batch in bundle.sound_slots.items():
            yield from (Match(bundle.seq, slot, *found) for found in _rows(batch, slot, sought))


def _file_may_hold(segment: Segment, place: int, sought: _Sought) -> bool:
    if sought.id is not None and not segment.may_hold_id(place, sought.id):
        return False
    # Rows of an opaque file are packed streams: a text in them cannot be seen from outside.
    file = segment.files[place]
    if file.summary.kind == "opaque":
        return True
    for index in range(len(file.summary.batches)):
        try:
            found = _rows(file.batch(index), file.summary.slot, sought)
            if next(found, None) is not None:
                return True
        except Damaged:
            continue
    return False


def _rows(batch: pa.RecordBatch, slot: str, sought: _Sought) -> Iterator[tuple[int, str, str]]:
    """Yield row, column and excerpt of every value that contains the text."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        read = sought.readers.get(slot) if name == "payload" else None
        for row in _matching(column, sought):
            value = column[row].as_py()
            shown = value if read is None else json.dumps(read(value), ensure_ascii=False)
            yield row, name, _excerpt(shown, sought.text)


def _matching(column: pa.Array, sought: _Sought) -> list[int]:
    kind = column.type
    if has_dictionary(kind) and not pa.types.is_nested(kind):
        kind = plain_type(kind)
        column = column.cast(kind)
    if pa.types.is_fixed_size_binary(kind):  # ids in tables; Arrow searches no such column
        kind = pa.binary()
        column = column.cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind):
        patterns = sought.patterns if _is_binary(kind) else (sought.text,)
        masks = [pc.match_substring(column, pattern=pattern) for pattern in patterns]
        mask = functools.reduce(pc.or_, masks)
        rows: list[int] = pc.indices_nonzero(mask.fill_null(False)).to_pylist()
        return rows
    # By the text of the whole value: slow, and rare. Arrow has no search inside of lists and
    # structs.
    if pa.types.is_nested(kind):
        return [row for row, value in enumerate(column) if sought.text in str(value.as_py())]
    return []


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _excerpt(value: object, text: str) -> str:
    shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if isinstance(value, bytes) and text.lower() not in shown.lower():
        shown = value.hex()  # found as the bytes that an id stands for
    start = max(0, shown.lower().find(text.lower()) - _EXCERPT_CHARACTERS // 4)
    return shown[start : start + _EXCERPT_CHARACTERS]
