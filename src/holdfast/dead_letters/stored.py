"""What the queue holds: letters that are not resolved, oldest first, by what is asked for.

Two ways to the same letters: of an open quiver through its engine (`letters_in`), and of files
that a running gateway may own (`letters_at`), which takes no lock and changes nothing. The second
sees the files at one moment, and may show a letter that was resolved just now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import KEEPER, REJECTED_DIR, UNDELIVERED_DIR
from holdfast.errors import BadInput, Damaged
from holdfast.quiver import Bundle, Quiver
from holdfast.quiver.base.frame import NOTHING
from holdfast.quiver.engine.decisions import waiting_refs
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.quiver.tools.changes import readable_of
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam
from holdfast.signals.event import events_of

STORES = (REJECTED_DIR, UNDELIVERED_DIR)
# How many numbers are looked up at once.
PAGE_LETTERS = 256


@dataclass(frozen=True)
class LetterId:
    """The name of a letter: its store and its number there, written `undelivered/17`."""

    store: str
    seq: int

    @classmethod
    def parse(cls, text: str) -> LetterId:
        """Return what a person wrote."""
        store, _, number = text.partition("/")
        if store not in STORES or not number.isdecimal():
            raise BadInput(
                f"{text!r} is not a letter",
                hint="write it like `rejected/12` or `undelivered/7`, as `holdfast dlq ls` does",
            )
        return cls(store, int(number))

    def __str__(self) -> str:
        return f"{self.store}/{self.seq}"


@dataclass(frozen=True)
class StoredLetter:
    """A letter in the queue."""

    id: LetterId
    filed_ns: int
    letter: Letter


@dataclass(frozen=True)
class LetterSelection:
    """Which letters are meant. What is None, or empty, does not matter."""

    destination: str | None = None
    reason: str | None = None
    # Filed at this moment or later, and before this one.
    since_ns: int | None = None
    before_ns: int | None = None
    seqs: frozenset[int] = field(default_factory=frozenset)
    from_seq: int = 0
    end_seq: int | None = None

    def covers(self, stored: StoredLetter) -> bool:
        """Whether a letter is meant."""
        letter = stored.letter
        return (
            (self.destination is None or letter.destination == self.destination)
            and (self.reason is None or letter.reason == self.reason)
            and (self.since_ns is None or stored.filed_ns >= self.since_ns)
            and (self.before_ns is None or stored.filed_ns < self.before_ns)
        )

    def covers_seq(self, seq: int) -> bool:
        """Whether the letter with this number may be meant."""
        before_end = self.end_seq is None or seq < self.end_seq
        return seq >= self.from_seq and before_end and (not self.seqs or seq in self.seqs)


EVERYTHING = LetterSelection()


def letters_in(
    quiver: Quiver, store: str, selection: LetterSelection = EVERYTHING
) -> Iterator[StoredLetter]:
    """Yield letters of an open quiver. Those that are resolved meanwhile are passed over."""
    return _letters(_waiting(quiver, selection), quiver.bundle, store, selection)


def letters_at(
    seam: Seam, root: PurePath, store: str, selection: LetterSelection = EVERYTHING
) -> Iterator[StoredLetter]:
    """Yield the letters of a queue that somebody else may own, as its files are now."""
    inventory = inspect(seam.disk, root / store)
    readable = readable_of(seam, inventory)
    nobody = Subscriber(KEEPER, 0, NOTHING, 0)
    keeper = inventory.ledger.state.subscribers.get(KEEPER, nobody)
    seqs = (ref.seq for ref in waiting_refs(readable, keeper, selection.from_seq))
    return _letters(seqs, readable.bundle, store, selection)


def _waiting(quiver: Quiver, selection: LetterSelection) -> Iterator[int]:
    """Yield the numbers of waiting letters.

    Page by page, so that a queue of millions is listed in little memory, and the ledger's lock
    is never held while somebody prints. What is resolved between two pages is simply missing
    from the next.
    """
    from_seq = selection.from_seq
    while page := quiver.waiting(KEEPER, from_seq=from_seq, limit=PAGE_LETTERS):
        yield from page
        from_seq = page[-1] + 1


def _letters(
    seqs: Iterator[int],
    bundle_of: Callable[[int], Bundle | None],
    store: str,
    selection: LetterSelection,
) -> Iterator[StoredLetter]:
    for seq in seqs:
        if selection.end_seq is not None and seq >= selection.end_seq:
            return
        bundle = bundle_of(seq) if selection.covers_seq(seq) else None
        if bundle is None:
            continue  # not meant, or gone since it was looked up
        try:
            (event,) = events_of(bundle, "")
        except Damaged:
            continue  # the ledger says so
        stored = StoredLetter(LetterId(store, seq), bundle.ingestion_ns, Letter.from_event(event))
        if selection.covers(stored):
            yield stored
