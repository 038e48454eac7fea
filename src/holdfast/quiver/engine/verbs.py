"""What an operator's tools may ask of the process that owns a quiver (control.py carries it)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeGuard

from holdfast.errors import BadInput
from holdfast.quiver.engine.balance import Balance, balance
from holdfast.quiver.engine.control import Verbs
from holdfast.quiver.engine.decisions import resolve_bundles
from holdfast.quiver.engine.engine import Engine
from holdfast.quiver.engine.registration import replay_range
from holdfast.quiver.ledger.outcome import Outcome

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


def balance_fields(account: Balance) -> dict[str, Any]:
    """Return a subscriber's account as JSON can hold it."""
    return {
        "subscriber": account.subscriber,
        "accepted": account.accepted._asdict(),
        "outcomes": {o.name.lower(): counts._asdict() for o, counts in account.outcomes.items()},
        "pending": account.pending._asdict(),
        "pending_bytes": account.pending_bytes,
        "holds": account.holds,
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
        """Seal what is open, and write down everything known, for a copy to be taken."""
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
