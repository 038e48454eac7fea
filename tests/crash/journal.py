"""The journal: what producers were told, and what a store must therefore hold.

An append ends in one of three ways: acknowledged, certainly not stored ("no"), or open ("maybe").
Each restart closes what was open: what a reader found then must stay for ever, under its seq, and
what was not there must not come back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.crash.contents import Content, Shape, stored_rows, token_of

from holdfast.errors import Damaged, NotAccepted
from holdfast.quiver import AckLevel, Quiver, Receipt
from holdfast.quiver.log.quarantine import NO_NOTE, Damage

# What a reader must find: it (acked, if the level promises it, and found), either (maybe), or
# nothing (no, and gone: it was lost with a promise that allowed it).
Fate = Literal["new", "acked", "maybe", "no", "found", "gone"]


@dataclass
class Entry:
    """One append: one bundle, or the bundles of a transaction."""

    contents: tuple[Content, ...]
    level: AckLevel
    producer: str | None = None
    epoch: int | None = None
    fate: Fate = "new"
    receipt: Receipt | None = None

    def must_be_there(self, promised: AckLevel) -> bool:
        return self.fate == "found" or (self.fate == "acked" and self.level >= promised)

    def must_not_be_there(self) -> bool:
        return self.fate in ("no", "gone")


@dataclass
class Journal:
    """Everything that was tried, over all lives of one store."""

    entries: list[Entry] = field(default_factory=list)
    # What a seq stands for, once anybody was told.
    owners: dict[int, str] = field(default_factory=dict)
    quiver_id: str | None = None
    # Bundles whose bytes were damaged on purpose: they may be missing.
    damaged: set[str] = field(default_factory=set)

    def entry(
        self,
        *shapes: Shape,
        size_bytes: int = 40,
        level: AckLevel = AckLevel.FSYNCED,
        producer: str | None = None,
        epoch: int | None = None,
    ) -> Entry:
        """Write down an append that is going to be tried: one bundle, or a transaction."""
        number = sum(len(entry.contents) for entry in self.entries)
        contents = tuple(
            Content(f"t{number + place}", shape, size_bytes)
            for place, shape in enumerate(shapes or (Shape.RAW,))
        )
        entry = Entry(contents, level, producer, epoch)
        self.entries.append(entry)
        return entry

    # --------------------------------------------------------------- appending

    def append(
        self,
        quiver: Quiver,
        *shapes: Shape,
        size_bytes: int = 40,
        level: AckLevel = AckLevel.FSYNCED,
        producer: str | None = None,
        epoch: int | None = None,
    ) -> Entry:
        """Append a bundle, or commit a transaction (its `level` must be the quiver's own)."""
        entry = self.entry(
            *shapes, size_bytes=size_bytes, level=level, producer=producer, epoch=epoch
        )
        self._try(entry, quiver)
        return entry

    def repeat(self, quiver: Quiver, entry: Entry, level: AckLevel | None = None) -> None:
        """Send an append with an epoch once more, as a producer does that got no answer.

        With a higher level an answer promises that level from now on.
        """
        before = None if entry.fate == "gone" else entry.receipt
        promised, asked = entry.level, level or entry.level
        entry.level, answered = asked, False
        try:
            answered = self._try(entry, quiver)
        finally:
            if not answered:
                entry.level = promised
            elif before is not None:
                entry.level = max(asked, promised)
        if answered and before is not None and entry.receipt is not None:
            assert entry.receipt.seq == before.seq, "a repeated epoch was given another seq"
            assert entry.receipt.duplicate

    def repeat_last_epochs(self, quiver: Quiver) -> None:
        """Let every producer send its newest epoch once more."""
        for entry in self.newest_epochs().values():
            if not self.is_damaged(entry):
                self.repeat(quiver, entry)

    def newest_epochs(self) -> dict[str, Entry]:
        """Return the newest entry of each producer."""
        newest: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.producer is not None:
                known = newest.get(entry.producer)
                if known is None or (known.epoch or 0) < (entry.epoch or 0):
                    newest[entry.producer] = entry
        return newest

    def abort(self, quiver: Quiver) -> None:
        """Stage a bundle in a transaction, and abort it."""
        entry = self.entry()
        entry.fate = "no"
        transaction = quiver.transaction()
        entry.contents[0].stage(transaction)
        transaction.abort()

    def _try(self, entry: Entry, quiver: Quiver) -> bool:
        """Append; return whether it was answered with a receipt."""
        with self.trying(entry) as receipts:
            receipts.append(_put(entry, quiver))
        return bool(receipts)

    @contextlib.contextmanager
    def trying(self, entry: Entry) -> Iterator[list[Receipt]]:
        """Note how an attempt ends: with the receipt put into the list, or with an error."""
        before = entry.fate
        certain = before in ("new", "no", "gone")
        if certain:
            entry.fate, entry.receipt = "maybe", None
        receipts: list[Receipt] = []
        try:
            yield receipts
        except NotAccepted as error:
            if certain and error.stored == "no":
                entry.fate = "no" if before == "new" else before
            return
        (entry.receipt,) = receipts
        entry.fate = "found" if before == "found" else "acked"
        assert entry.receipt.bundles == len(entry.contents)
        self._own_id(entry.receipt.quiver_id)
        for place, content in enumerate(entry.contents):
            self._own(entry.receipt.seq + place, content.token)

    def _own(self, seq: int, token: str) -> None:
        owner = self.owners.setdefault(seq, token)
        assert owner == token, f"seq {seq} stood for {owner} and now stands for {token}"

    def _own_id(self, quiver_id: str) -> None:
        assert self.quiver_id in (None, quiver_id), "the quiver changed its id"
        self.quiver_id = quiver_id

    # --------------------------------------------------------------- verifying

    def verify(self, quiver: Quiver, promised: AckLevel, *, restarted: bool) -> None:
        """Compare a store with what was told about it.

        `promised` is the lowest level whose acknowledged appends must be there. After a restart
        the answer to every "maybe" is final.
        """
        if self.quiver_id is not None:
            self._own_id(quiver.quiver_id)
        places = self._places(quiver)
        self._check_segments(quiver)
        for entry in self.entries:
            if entry.contents[0].shape is not Shape.HEARTBEAT:
                self._check(entry, places, quiver, promised)
                if restarted and entry.fate != "no" and not self.is_damaged(entry):
                    there = entry.contents[0].token in places
                    entry.fate = "found" if there else "gone"
            elif entry.receipt is not None and not self.is_damaged(entry):
                found = quiver.bundle(entry.receipt.seq)
                assert found is not None or not entry.must_be_there(promised), f"{entry} is lost"
                assert found is None or found.producer == entry.contents[0].token
                if restarted:
                    entry.fate = "gone" if found is None else "found"

    def verify_damages(self, quiver: Quiver, notes: Sequence[Damage]) -> None:
        """See that what is missing because of damage is named by a note in quarantine."""
        for entry in self.entries:
            for place, content in enumerate(entry.contents):
                if content.token in self.damaged and entry.receipt is not None:
                    seq = entry.receipt.seq + place
                    with contextlib.suppress(Damaged):
                        there = quiver.bundle(seq) is not None
                        assert there or any(_names(note, seq) for note in notes)

    def _places(self, quiver: Quiver) -> dict[str, int]:
        """Return the seq of every stored bundle by its token; nothing may be there twice."""
        by_token = {c.token: c for entry in self.entries for c in entry.contents}
        places: dict[str, int] = {}
        for seq, slots in stored_rows(quiver, skip_damage=bool(self.damaged)).items():
            tokens = {token_of(slot, row) for slot, rows in slots.items() for row in rows}
            assert len(tokens) == 1, f"seq {seq} mixes {tokens}"
            (token,) = tokens
            assert token not in places, f"{token} is stored twice: {places[token]} and {seq}"
            places[token] = seq
            if token not in self.damaged:
                assert slots == by_token[token].rows(), f"{token} came back with other bytes"
            self._own(seq, token)
        return places

    def _check(
        self, entry: Entry, places: dict[str, int], quiver: Quiver, promised: AckLevel
    ) -> None:
        there = [content for content in entry.contents if content.token in places]
        missing = [content for content in entry.contents if content.token not in places]
        if entry.must_not_be_there():
            assert not there, f"{entry} came from nowhere"
        if not self.is_damaged(entry):
            assert not (there and missing), f"{entry} is there in part: {there}"
            assert there or not entry.must_be_there(promised), f"{entry} is lost"
        for content in there:
            seq = places[content.token]
            if entry.receipt is not None:
                assert seq == entry.receipt.seq + entry.contents.index(content)
            if content.token in self.damaged:
                continue
            bundle = quiver.bundle(seq)
            assert bundle is not None
            slots = {slot: batch.to_pylist() for slot, batch in bundle.slots.items()}
            assert (bundle.seq, bundle.kind, slots) == (seq, content.kind, content.rows())
            assert (bundle.producer, bundle.epoch) == (entry.producer, entry.epoch or 0)

    def is_damaged(self, entry: Entry) -> bool:
        """Whether a bundle of the entry was damaged on purpose."""
        return not self.damaged.isdisjoint(content.token for content in entry.contents)

    def _check_segments(self, quiver: Quiver) -> None:
        seen: set[int] = set()
        for segment in quiver.segments():
            for seq in segment.bundle_table.column("seq").to_pylist():
                assert seq not in seen, f"seq {seq} is in two segments"
                seen.add(seq)


def _names(note: Damage, seq: int) -> bool:
    if note.first_seq is None:
        return note.reason == NO_NOTE  # it may have said anything
    return note.first_seq <= seq <= (note.last_seq or seq)


def _put(entry: Entry, quiver: Quiver) -> Receipt:
    if len(entry.contents) == 1:
        return entry.contents[0].put(quiver, entry.level, entry.producer, entry.epoch)
    transaction = quiver.transaction(producer=entry.producer, epoch=entry.epoch)
    for content in entry.contents:
        content.stage(transaction)
    return transaction.commit()
