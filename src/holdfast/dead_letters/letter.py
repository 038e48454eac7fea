"""A dead letter: the event's bytes as they came, and why it went no further.

In a quiver the payload is the event itself, untouched, in the slot it had. Everything else is in
the stored headers, under the names of the fields (docs/format/dead-letter.md). Every text has a
bound, so that a letter is never much larger than its event, and credentials are left out here, at
the one place that every letter passes.

Fields are read more forgivingly than they are written: a letter of another version, or one whose
headers somebody edited, is still listed, and its payload can be taken out, which is the point of
it.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.quiver import Position
from holdfast.quiver.base.bundle import decode_arrow, encode_arrow, read_slot
from holdfast.quiver.base.frame import FrameKind
from holdfast.signals.event import ArrowData, Event, Unit
from holdfast.signals.registry import signal_named, signal_of
from holdfast.signals.signal import Form

# Of the stored headers; a reader of a later version still finds what it knows.
LETTER_VERSION = "1"

WORD_CHARACTERS_MAX = 64
PLACE_CHARACTERS_MAX = 256
TEXT_CHARACTERS_MAX = 500
PROBLEMS_MAX = 32
HEADERS_MAX = 32
HEADERS_LOOKED_AT_MAX = 1000
# All headers of a letter together, and all its problems.
HEADERS_CHARACTERS_MAX = 8 * 1024
PROBLEMS_CHARACTERS_MAX = 16 * 1024

# A header whose name contains one of these is not stored, whatever it holds.
SECRET_NAMES = (
    "auth",
    "cookie",
    "credential",
    "key",
    "passw",
    "proxy-",
    "secret",
    "session",
    "signature",
    "token",
)


def safe_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that may be stored: no credentials, and bounded in number and length.

    Names are compared by what they contain, so `X-Api-Key` and `my_session_id` are left out
    without anybody having listed them. That drops a few harmless headers; storing one credential
    is worse.
    """
    safe = [
        (_text(name, WORD_CHARACTERS_MAX), _text(value, TEXT_CHARACTERS_MAX))
        for name, value in itertools.islice(headers.items(), HEADERS_LOOKED_AT_MAX)
        if not any(secret in name.lower() for secret in SECRET_NAMES)
    ]
    sizes = [len(name) + len(value) for name, value in safe]
    return dict(safe[: _how_many(sizes, HEADERS_MAX, HEADERS_CHARACTERS_MAX)])


@dataclass(frozen=True)
class Letter:
    """An event that was not accepted, or that one destination will never take."""

    payload: bytes
    # One short word: invalid, too_large, permanent, poison, skipped, processor.
    reason: str
    # Who set it aside: the name of a receiver or of a destination.
    origin: str
    # What is wrong with it, for people; as `Problem.to_fields` gives it. Never the payload's text.
    problems: tuple[Mapping[str, str], ...] = ()
    # As they came with the event.
    headers: Mapping[str, str] = field(default_factory=dict)
    # None: it was never accepted.
    destination: str | None = None
    # Where the event stands in the buffer it was accepted into: "quiver_id/seq/row".
    position: str | None = None
    # How often it was sent to the destination.
    attempts: int = 0
    # When the event came in; 0 if nobody knows.
    received_ns: int = 0
    # What the payload is, as the receiver said. Of several slots, the first.
    slot: str = "openlineage"
    # Of a bundle of record batches, which is the payload as the log encodes it: its signal.
    arrow_signal: str = ""

    @classmethod
    def of_event(
        cls,
        event: Unit,
        *,
        reason: str,
        destination: str,
        attempts: int,
        problems: Sequence[Mapping[str, str]] = (),
    ) -> Letter:
        """Return the letter for an accepted event that a destination will not take."""
        seq, row = event.position
        if isinstance(event, ArrowData):
            payload, slot, arrow_signal = _encoded(event), next(iter(event.slots)), event.signal
        else:
            payload, slot, arrow_signal = event.payload, event.slot, ""
        return cls(
            payload=payload,
            reason=reason,
            origin=destination,
            problems=tuple(problems),
            headers=event.headers,
            destination=destination,
            position=f"{event.quiver_id}/{seq}/{row}",
            attempts=attempts,
            received_ns=event.ingestion_ns,
            slot=slot,
            arrow_signal=arrow_signal,
        )

    @classmethod
    def from_event(cls, event: Event) -> Letter:
        """Return the letter that an event of a dead-letter quiver is."""
        stored = event.headers
        return cls(
            payload=event.payload,
            reason=stored.get("reason", "unknown"),
            origin=stored.get("origin", "unknown"),
            problems=tuple(p for p in _parsed(stored.get("problems"), list) if isinstance(p, dict)),
            headers=_parsed(stored.get("headers"), dict),
            destination=stored.get("destination"),
            position=stored.get("position"),
            attempts=_number(stored.get("attempts")),
            received_ns=_number(stored.get("received_ns")) or event.ingestion_ns,
            slot=event.slot,
            arrow_signal=stored.get("arrow_signal", ""),
        )

    def stored_headers(self) -> dict[str, str]:
        """Return everything but the payload, as a quiver stores it."""
        stored = {
            "letter": LETTER_VERSION,
            "reason": _text(self.reason, WORD_CHARACTERS_MAX),
            "origin": _text(self.origin, PLACE_CHARACTERS_MAX),
            "problems": _dumped(_bounded(self.problems)),
            "headers": _dumped(safe_headers(self.headers)),
            "destination": _text(self.destination or "", PLACE_CHARACTERS_MAX),
            "position": _text(self.position or "", PLACE_CHARACTERS_MAX),
            "attempts": str(self.attempts or ""),
            "received_ns": str(self.received_ns or ""),
            "arrow_signal": _text(self.arrow_signal, WORD_CHARACTERS_MAX),
        }
        return {name: value for name, value in stored.items() if value}

    def event(self) -> Unit:
        """Return the event, or the bundle of record batches, as it was accepted.

        Under its own position, so a destination that was sent it before sees the same idempotency
        key.
        """
        quiver_id, seq, row = parse_position(self.position)
        if self.arrow_signal:
            return self._arrow_data(quiver_id, Position(seq, row))
        signal = signal_of(FrameKind.RAW, (self.slot,))
        return Event(
            quiver_id=quiver_id,
            position=Position(seq, row),
            slot=self.slot,
            payload=self.payload,
            headers=self.headers,
            ingestion_ns=self.received_ns,
            signal=signal.name,
            read=signal.read,
            count=signal.count,
        )

    def _arrow_data(self, quiver_id: str, position: Position) -> ArrowData:
        known = signal_named(self.arrow_signal, Form.ARROW)
        slots, damaged_slots = _decoded(self.payload)
        return ArrowData(
            quiver_id,
            position,
            slots,
            self.received_ns,
            self.arrow_signal,
            self.headers,
            damaged_slots=damaged_slots,
            count=None if known is None else known.count,
        )

    def failed_again(
        self, reason: str, problem: Mapping[str, str] | None, attempts: int = 1
    ) -> Letter:
        """Return the letter after another try, with the newest answer in place of the last."""
        problems = self.problems if problem is None else (problem,)
        return replace(self, reason=reason, problems=problems, attempts=self.attempts + attempts)


def parse_position(position: str | None) -> tuple[str, int, int]:
    """Return quiver id, seq and row of a position in a letter."""
    # Refused, not guessed at: a made-up position would be an idempotency key under which the
    # destination has never seen the event.
    parts = (position or "").split("/")
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):  # noqa: PLR2004
        raise BadInput(
            "the letter does not say where its event was accepted",
            hint="submit it as a new event: `holdfast dlq fix`",
        )
    return parts[0], int(parts[1]), int(parts[2])


def _encoded(data: ArrowData) -> bytes:
    # Its size is checked where it is stored.
    return bytes(encode_arrow(data.slots, sys.maxsize, data.damaged_slots).payload)


def _decoded(payload: bytes) -> tuple[dict[str, pa.RecordBatch], tuple[str, ...]]:
    """Return the slots of a letter, and those that its bundle had lost when it was sent."""
    slots: dict[str, pa.RecordBatch] = {}
    damaged_slots: tuple[str, ...] = ()
    try:
        for slot in decode_arrow(memoryview(payload)):
            slots[slot.name], damaged_slots = read_slot(slot.stream)
    except (pa.ArrowException, struct.error, ValueError, OSError) as error:
        raise BadInput(
            f"the letter does not hold a bundle of record batches: {error}",
            hint="look at it with `holdfast dlq show --raw`",
        ) from error
    return slots, damaged_slots


def _bounded(problems: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    kept = [
        {
            _text(str(name), WORD_CHARACTERS_MAX): _text(str(value), TEXT_CHARACTERS_MAX)
            for name, value in problem.items()
        }
        for problem in problems[:PROBLEMS_MAX]
    ]
    sizes = [sum(len(name) + len(value) for name, value in one.items()) for one in kept]
    del kept[_how_many(sizes, PROBLEMS_MAX, PROBLEMS_CHARACTERS_MAX) :]
    if len(kept) < len(problems):
        more = len(problems) - len(kept)
        kept.append({"rule": "more", "message": f"and {more} more problems"})
    return kept


def _how_many(sizes: Sequence[int], count_max: int, total_max: int) -> int:
    """Return how many of the first stay within both bounds.

    Sums only grow, so the number of those within the bound is also where the first is cut off.
    """
    within = [total <= total_max for total in itertools.accumulate(sizes[:count_max])]
    return sum(within)


def _text(text: str, characters_max: int) -> str:
    """Return a text that UTF-8 can hold, cut where it is too long.

    A lone surrogate, as JSON may bring it in an escape, becomes a question mark: it would make the
    letter itself impossible to store.
    """
    kept = text[:characters_max].encode("utf-8", "replace").decode()
    return kept if len(text) <= characters_max else kept[:-1] + "…"


def _dumped(value: list[dict[str, str]] | dict[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False) if value else ""


def _parsed(stored: str | None, kind: type[Any]) -> Any:
    """Return a field that holds JSON; empty if it is missing or is not what it should be."""
    try:
        value = orjson.loads(stored or "null")
    except orjson.JSONDecodeError:
        return kind()
    return value if isinstance(value, kind) else kind()


def _number(stored: str | None) -> int:
    return int(stored) if stored is not None and stored.isdecimal() else 0
