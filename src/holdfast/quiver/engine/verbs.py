"""Subscribers registered by the owner, and what an operator's tools may ask of it (control.py).

A new subscriber starts somewhere, and what had been accepted before that is noted, so that its
account is true from the first day.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeGuard

from holdfast.errors import BadInput
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.engine.balance import balance, balance_fields
from holdfast.quiver.engine.control import Verbs
from holdfast.quiver.engine.decisions import replay_range, resolve_bundles
from holdfast.quiver.engine.engine import Engine
from holdfast.quiver.ledger.subscriber import Outcome, Subscriber, SubscriberOptions, check_name

StartPosition: TypeAlias = "Literal['oldest', 'latest'] | datetime"


def register(engine: Engine, name: str, start: StartPosition, options: SubscriberOptions) -> None:
    """Add a subscriber, durably."""
    check_name(name)
    _check_options(engine, options)
    with engine.ledger.lock:
        # Under the ledger's lock, and with one `extent` for both figures: were they read apart, an
        # append in between would be counted as before the start and still be handed out.
        start_seq, accepted_before = _start(engine, start)
        now_ns = engine.clock.wall_ns()
        fresh = Subscriber(name, start_seq, accepted_before, now_ns, options)
        # Nobody has attached yet: if nobody ever does, it is an orphan from now on.
        fresh.absent_since_ns = engine.ledger.steady.now_ns()
        engine.ledger.register(fresh)


def register_if_new(
    engine: Engine, name: str, start: StartPosition, options: SubscriberOptions | None
) -> None:
    """Register a subscriber that is not known; give a known one its new options."""
    with engine.ledger.lock:
        known = engine.ledger.state.subscribers.get(name)
        if known is None:
            register(engine, name, start, options or SubscriberOptions())
        elif options is not None and options != known.options:
            set_options(engine, name, options)


def set_options(engine: Engine, name: str, options: SubscriberOptions) -> None:
    """Change what a subscriber may hold back."""
    _check_options(engine, options)
    engine.ledger.subscriber(name)
    engine.ledger.change("options", name, options=asdict(options))


def _start(engine: Engine, start: StartPosition) -> tuple[int, Totals]:
    """Return the first seq for a new subscriber, and what was accepted before it.

    Only what can be read now is passed over: `extent` ends where the last sync does. A bundle that
    becomes durable a moment later belongs to the new subscriber, and counts for it.
    """
    last_seq, accepted = engine.readable.extent()
    if start == "latest":
        return last_seq + 1, accepted
    if start == "oldest":
        since_ns = None
    elif getattr(start, "tzinfo", None) is not None:
        since_ns = int(start.timestamp() * 1e9)
    else:
        raise BadInput(
            f"start is {start!r}", hint="use 'oldest', 'latest', or a datetime with a time zone"
        )
    first_seq, total = last_seq + 1, NOTHING
    for ref in engine.readable.refs(0):
        if ref.seq > last_seq:
            break
        # A start by time begins at the first bundle that is new enough and then takes everything
        # behind it: ingestion times may step back with the clock, seqs never do.
        if since_ns is None or ref.ingestion_ns >= since_ns or total != NOTHING:
            first_seq = min(first_seq, ref.seq)
            total = total.plus(1, ref.events)
    return first_seq, accepted.plus(-total.bundles, -total.events)


def _check_options(engine: Engine, options: SubscriberOptions) -> None:
    """A reader of sealed data gets nothing before a segment is full. With a cap below one segment,
    appends would be blocked, or its data dropped, before it could have read anything.
    """
    target = engine.config.segment.target_size_bytes
    for name in ("max_bytes", "max_segment_bytes"):
        limit = getattr(options, name)
        if limit is not None and limit < target:
            raise BadInput(
                f"{name} is {limit}, less than one segment ({target} bytes)",
                hint="raise it, or lower segment.target_size_bytes",
            )


# A copy in progress renews this; a tool that died holds nothing back for longer.
HOLD_MAX_S = 300.0


def owner_verbs(engine: Engine, flush: Callable[[], None]) -> Verbs:
    """Return what the owner of `engine` does on request."""
    verbs = _OwnerVerbs(engine, flush)
    return {
        "ping": verbs.ping,
        "balance": verbs.balance,
        "replay": verbs.replay,
        "resolve": verbs.resolve,
        "drop_subscriber": verbs.drop_subscriber,
        "checkpoint": verbs.checkpoint,
        "hold": verbs.hold,
    }


class _OwnerVerbs:
    def __init__(self, engine: Engine, flush: Callable[[], None]) -> None:
        self._engine = engine
        self._flush = flush

    def ping(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say who is there."""
        return {"process": os.getpid(), "quiver_id": self._engine.quiver_id}

    def balance(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the account of every subscriber."""
        ledger = self._engine.ledger
        with ledger.lock:
            accounts = [
                balance(s, self._engine.readable) for s in ledger.state.subscribers.values()
            ]
        return {"subscribers": [balance_fields(account) for account in accounts]}

    def replay(self, request: dict[str, Any]) -> dict[str, Any]:
        """Hand out a range again."""
        name = _text(request, "subscriber")
        first_seq, end_seq = _number(request, "first_seq"), _number(request, "end_seq")
        return replay_range(self._engine, name, first_seq, end_seq)._asdict()

    def resolve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Decide bundles by their seqs."""
        seqs = request.get("seqs")
        if not isinstance(seqs, list) or not all(_is_number(seq) for seq in seqs):
            raise BadInput("seqs is not a list of numbers", hint="send whole numbers from 0 on")
        name, outcome = _text(request, "subscriber"), _text(request, "outcome").upper()
        if outcome not in Outcome.__members__:
            known = ", ".join(one.name.lower() for one in Outcome)
            raise BadInput(f"there is no outcome {outcome!r}"[:200], hint=f"outcomes: {known}")
        reason = _text(request, "reason")
        return resolve_bundles(self._engine, name, seqs, Outcome[outcome], reason)._asdict()

    def drop_subscriber(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forget a subscriber; what waited for it is given up."""
        given_up = self._engine.retention.unregister(
            _text(request, "subscriber"), _text(request, "reason")
        )
        return given_up._asdict()

    def checkpoint(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seal what is open, and write down everything known, for a copy to be taken.

        The hold comes first: between the seal and the copy nothing may be removed, or the ledger
        that is copied would name segments that the copy lacks.
        """
        self.hold(request)
        self._flush()
        return {"ledger_file": self._engine.ledger.checkpoint()}

    def hold(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keep what nobody needs any more for so many seconds, unless room is needed."""
        seconds = _number(request, "seconds")
        if not 0 <= seconds <= HOLD_MAX_S:
            raise BadInput(f"seconds is {seconds}", hint=f"use 0 to {HOLD_MAX_S:g}")
        self._engine.retention.hold(seconds)
        return {}


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise BadInput(f"{name} is {value!r}"[:200], hint="send text")
    return value


def _number(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if not _is_number(value):
        raise BadInput(f"{name} is {value!r}"[:200], hint="send a whole number from 0 on")
    return value


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
