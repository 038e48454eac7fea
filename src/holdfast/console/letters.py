"""Dead letters for pages: counted by reason, the newest of a selection, and one of them.

They are read from the files of the queue, as `holdfast dead-letters ls` does, in a thread; at most
`LOOKED_AT_MAX` of them, because a page is to come within a moment even if millions lie there.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from holdfast.dead_letters.queue import KEEPER
from holdfast.dead_letters.stored import (
    STORES,
    LetterId,
    LetterSelection,
    StoredLetter,
    letters_at,
)
from holdfast.errors import BadInput
from holdfast.graph.model import Graph
from holdfast.graph.paths import dead_letters_directory
from holdfast.quiver import Outcome
from holdfast.quiver.tools import changes
from holdfast.seam import Seam

# Letters that one page looks at, and that it shows.
LOOKED_AT_MAX = 5000
SHOWN_MAX = 50
# Of a payload; a longer one is shown in part, and cannot be edited here.
PAYLOAD_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class LetterRow:
    """One letter in a list."""

    worker: int
    id: str
    store: str
    filed_ns: int
    reason: str
    origin: str
    destination: str | None
    position: str | None
    attempts: int
    received_ns: int
    slot: str
    size_bytes: int
    problems: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class LetterPile:
    """What lies there for one reason."""

    store: str
    origin: str
    reason: str
    letters: int


@dataclass(frozen=True)
class LetterList:
    """Letters of a selection, newest first, and all of them by reason."""

    piles: tuple[LetterPile, ...]
    letters: tuple[LetterRow, ...]
    # Whether there are more than were looked at.
    is_cut: bool


@dataclass(frozen=True)
class WholeLetter:
    """One letter with its payload."""

    row: LetterRow
    # Indented, if it is JSON; None if it is not text.
    text: str | None
    is_whole: bool
    headers: Mapping[str, str]


def list_letters(graph: Graph, store: str, origin: str, reason: str) -> LetterList:
    """Return the letters there are; what is empty does not matter."""
    counts: Counter[tuple[str, str, str]] = Counter()
    newest: deque[LetterRow] = deque(maxlen=SHOWN_MAX)
    looked_at = 0
    for looked_at, (worker, stored) in enumerate(  # noqa: B007
        islice(_all(graph), LOOKED_AT_MAX + 1), start=1
    ):
        row = _row(worker, stored)
        counts[row.store, row.origin, row.reason] += 1
        wanted = (store in ("", row.store), origin in ("", row.origin), reason in ("", row.reason))
        if all(wanted):
            newest.append(row)
    piles = tuple(LetterPile(*key, count) for key, count in sorted(counts.items()))
    letters = sorted(newest, key=lambda one: one.filed_ns, reverse=True)
    return LetterList(piles, tuple(letters), looked_at > LOOKED_AT_MAX)


def show_letter(graph: Graph, worker: int, name: str) -> WholeLetter:
    """Return one letter."""
    letter_id = LetterId.parse(name)
    wanted = LetterSelection(seqs=frozenset({letter_id.seq}), from_seq=letter_id.seq)
    queue = _queue(graph, worker)
    found = None
    if Path(queue / letter_id.store).is_dir():
        found = next(letters_at(Seam(), queue, letter_id.store, wanted), None)
    if found is None:
        raise BadInput(f"there is no letter {name}, or no longer"[:200], hint="reload the list")
    payload = found.letter.payload
    try:
        text: str | None = payload[:PAYLOAD_BYTES_MAX].decode("utf-8", "strict")
    except UnicodeDecodeError:
        text = None
    is_whole = len(payload) <= PAYLOAD_BYTES_MAX
    return WholeLetter(_row(worker, found), _indented(text), is_whole, found.letter.headers)


def give_up(graph: Graph, worker: int, letter_id: LetterId, reason: str) -> int:
    """Resolve one letter as given up, through the gateway; return how many that were."""
    queue = _queue(graph, worker)
    done = changes.resolve(
        Seam(), queue / letter_id.store, KEEPER, [letter_id.seq], Outcome.GIVEN_UP, reason
    )
    return done.events


def _indented(text: str | None) -> str | None:
    try:
        return None if text is None else json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _all(graph: Graph) -> Iterator[tuple[int, StoredLetter]]:
    for worker in range(graph.settings.workers):
        queue = _queue(graph, worker)
        for store in STORES:
            if Path(queue / store).is_dir():
                yield from ((worker, one) for one in letters_at(Seam(), queue, store))


def _queue(graph: Graph, worker: int) -> PurePath:
    first = dead_letters_directory(graph)
    return PurePath(first.with_name(f"{first.name}-{worker:02d}") if worker else first)


def _row(worker: int, stored: StoredLetter) -> LetterRow:
    letter = stored.letter
    return LetterRow(
        worker,
        str(stored.id),
        stored.id.store,
        stored.filed_ns,
        letter.reason,
        letter.origin,
        letter.destination,
        letter.position,
        letter.attempts,
        letter.received_ns,
        letter.slot,
        len(letter.payload),
        letter.problems,
    )
