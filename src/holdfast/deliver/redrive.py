"""Sending undelivered letters once more, to the destination that did not take them.

A replay goes beside the destination's own loop, so it is out of order, which is why an operator
asks for it and nothing does it alone. Each letter is sent by itself and has its own answer:

    delivered         the letter is resolved as `acked`
    refused for good  it is filed anew, with one attempt more and the new answer, and the old one
                      resolved as `dead_lettered`
    anything else     (the destination is down, or our credentials are bad) nothing is known of the
                      letter: it stays as it is, and the replay ends

Between an answer and its line in the ledger the process may die; then a letter is sent twice, or
lies there twice. It is never gone.

The running gateway serves the verb `dlq_replay` on its control socket with `serve_replay`; a long
replay is asked for in turns of at most `TURN_S`, because that socket serves one request at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import KEEPER, UNDELIVERED_DIR, DeadLetterQueue
from holdfast.dead_letters.stored import LetterSelection, StoredLetter, letters_in
from holdfast.deliver.exporter import Answer, Failure, FailureClass
from holdfast.deliver.judge import FILTERED
from holdfast.errors import BadInput
from holdfast.quiver import Outcome
from holdfast.seam.clock import Clock, RealClock

VERB = "dlq_replay"
# How long one turn works, and how many letters it takes at most.
TURN_S = 20.0
TURN_LETTERS = 500
# What an exporter says that leaves no doubt about the event itself.
FINAL_FAILURES = frozenset({FailureClass.PERMANENT, FailureClass.TOO_LARGE})


# Sends one event to a destination, through its processors.
SendUnits = Callable[[Sequence[Any]], Awaitable[Answer]]


@dataclass
class Replayed:
    """What one turn of a replay did."""

    delivered: int = 0
    # Processors on the way let it go no further.
    filtered: int = 0
    # Refused for good once more, and filed anew.
    filed_again: int = 0
    # It does not say where its event was accepted; only `fix` can send it.
    skipped: int = 0
    # Why it ended before the last letter, if the destination gave no answer about one.
    stopped_by: str | None = None
    # Where the next turn begins; None if there is nothing left to do.
    next_seq: int | None = None
    # Letters filed from here on are not part of this replay.
    end_seq: int = 0

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @property
    def letters(self) -> int:
        """How many letters have a new outcome."""
        return self.delivered + self.filtered + self.filed_again


async def redrive(
    dead_letters: DeadLetterQueue,
    selection: LetterSelection,
    send: SendUnits,
    clock: Clock | None = None,
) -> Replayed:
    """Send the selected undelivered letters, oldest first, until a turn is over."""
    clock = clock or RealClock()
    quiver = dead_letters.undelivered_quiver
    end_seq = selection.end_seq
    if end_seq is None:
        # Fixed when the replay begins and handed from turn to turn: letters that this replay files
        # anew lie behind it. Otherwise a destination that refuses everything would keep it busy
        # for ever.
        end_seq = (await asyncio.to_thread(quiver.statistics)).next_seq
    done = Replayed(end_seq=end_seq)
    turn_ends_s = clock.monotonic_s() + TURN_S
    # Two replays at once could both read a letter before either has resolved it.
    async with dead_letters.replaying:
        letters = letters_in(quiver, UNDELIVERED_DIR, replace(selection, end_seq=end_seq))
        # In a thread: before the next one that is meant there may be very many of others.
        while (stored := await asyncio.to_thread(next, letters, None)) is not None:
            if done.letters >= TURN_LETTERS or clock.monotonic_s() >= turn_ends_s:
                done.next_seq = stored.id.seq
                break
            await _replay_one(dead_letters, stored, send, done)
            if done.stopped_by is not None:
                break
    return done


async def _replay_one(
    dead_letters: DeadLetterQueue, stored: StoredLetter, send: SendUnits, done: Replayed
) -> None:
    """Send one letter, and write what became of it; a failure that may pass ends the turn.

    A letter that is refused again is stored anew before the old one is resolved, so that a crash
    between the two leaves one too many, never none.
    """
    letter = stored.letter
    try:
        event = letter.event()
    except BadInput:
        done.skipped += 1
        return
    failure = (await send([event])).failed.get(0)
    if failure is not None and failure.code == FILTERED:
        await _resolve(dead_letters, stored, Outcome.FILTERED, "filtered on its way at a replay")
        done.filtered += 1
    elif failure is None:
        await _resolve(dead_letters, stored, Outcome.ACKED, f"replayed to {letter.destination}")
        done.delivered += 1
    elif failure.kind in FINAL_FAILURES:
        await dead_letters.undelivered([_failed_again(letter, failure)])
        attempts = letter.attempts + 1
        reason = f"refused again, filed anew with {attempts} attempts"
        await _resolve(dead_letters, stored, Outcome.DEAD_LETTERED, reason)
        done.filed_again += 1
    else:
        done.stopped_by = f"{failure.kind}: {failure.reason}"


def _failed_again(letter: Letter, failure: Failure) -> Letter:
    problem = {"rule": failure.code or str(failure.kind), "message": failure.reason}
    return letter.failed_again(str(failure.kind), problem)


async def _resolve(
    dead_letters: DeadLetterQueue, stored: StoredLetter, outcome: Outcome, reason: str
) -> None:
    quiver = dead_letters.undelivered_quiver
    await asyncio.to_thread(quiver.resolve, KEEPER, [stored.id.seq], outcome, reason)


# ------------------------------------------------------------------ the request


def replay_request(selection: LetterSelection) -> dict[str, Any]:
    """Return the fields of a request for a replay; `parse_request` reads them."""
    return {**asdict(selection), "seqs": sorted(selection.seqs)}


def parse_request(request: Mapping[str, Any]) -> LetterSelection:
    """Return what a request asks for; anything may stand in it."""
    destination = request.get("destination")
    if not isinstance(destination, str):
        raise BadInput("a replay needs a destination", hint="say --destination NAME")
    reason, seqs = request.get("reason"), request.get("seqs") or []
    if not isinstance(seqs, list) or not (reason is None or isinstance(reason, str)):
        raise BadInput("the request to redrive is malformed", hint="use `holdfast dlq redrive`")
    return LetterSelection(
        destination=destination,
        reason=reason,
        since_ns=_number(request.get("since_ns")),
        before_ns=_number(request.get("before_ns")),
        seqs=frozenset(number for seq in seqs if (number := _number(seq)) is not None),
        from_seq=_number(request.get("from_seq")) or 0,
        end_seq=_number(request.get("end_seq")),
    )


async def serve_replay(
    dead_letters: DeadLetterQueue,
    request: Mapping[str, Any],
    sender_to: Callable[[str], SendUnits | None],
) -> dict[str, Any]:
    """Serve the verb: `sender_to` returns what sends to a destination, None if there is none."""
    selection = parse_request(request)
    # `parse_request` has refused a request without one.
    assert selection.destination is not None
    send = sender_to(selection.destination)
    if send is None:
        raise BadInput(
            f"there is no destination {selection.destination!r}"[:200],
            hint="name one of the running graph: `holdfast graph CONFIG` shows them",
        )
    done = await redrive(dead_letters, selection, send)
    return done.to_fields()


def _number(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise BadInput("the request to redrive is malformed", hint="use `holdfast dlq redrive`")
    return value
