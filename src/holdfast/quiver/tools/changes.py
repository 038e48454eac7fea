"""What a tool changes: through the owner where there is one, else by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.engine.balance import balance
from holdfast.quiver.engine.control import ask
from holdfast.quiver.engine.decisions import resolve_bundles
from holdfast.quiver.engine.registration import replay_range
from holdfast.quiver.engine.verbs import balance_fields
from holdfast.quiver.ledger.outcome import Outcome
from holdfast.quiver.tools.inspect import Inventory, require_quiver
from holdfast.quiver.tools.offline import offline, readable_of
from holdfast.seam import Seam

# A seq has up to 19 digits; a request up to 64 kB.
SEQS_PER_REQUEST = 2000


def ask_owner(
    seam: Seam, root: PurePath, verb: str, *, timeout_s: float = 60.0, **fields: Any
) -> dict[str, Any] | None:
    """Ask the owner of a directory; None if nobody listens."""
    if not seam.disk.is_shared:
        return None
    return ask(root, verb, timeout_s=timeout_s, **fields)


def replay(seam: Seam, root: PurePath, subscriber: str, first_seq: int, end_seq: int) -> Totals:
    """Hand out again, to one subscriber, what is still there of a range; return how much."""
    require_quiver(seam.disk, root)
    told = ask_owner(
        seam, root, "replay", subscriber=subscriber, first_seq=first_seq, end_seq=end_seq
    )
    if told is not None:
        return Totals(**told)
    with offline(seam, root) as held:
        return replay_range(held, subscriber, first_seq, end_seq)


def drop_subscriber(seam: Seam, root: PurePath, subscriber: str, reason: str) -> Totals:
    """Forget a subscriber; return what is given up with it."""
    require_quiver(seam.disk, root)
    told = ask_owner(seam, root, "drop_subscriber", subscriber=subscriber, reason=reason)
    if told is not None:
        return Totals(**told)
    with offline(seam, root) as held:
        return held.drop_subscriber(subscriber, reason)


def resolve(
    seam: Seam, root: PurePath, subscriber: str, seqs: Sequence[int], outcome: Outcome, reason: str
) -> Totals:
    """Decide bundles by their seqs; return what was not decided before."""
    require_quiver(seam.disk, root)
    total = NOTHING
    for first in range(0, len(seqs), SEQS_PER_REQUEST):
        asked = list(seqs[first : first + SEQS_PER_REQUEST])
        told = ask_owner(
            seam,
            root,
            "resolve",
            subscriber=subscriber,
            seqs=asked,
            outcome=outcome.name,
            reason=reason,
        )
        if told is not None:
            total = total.plus(**told)
            continue
        with offline(seam, root) as held:
            return total.plus(*resolve_bundles(held, subscriber, seqs[first:], outcome, reason))
    return total


def balances(seam: Seam, inventory: Inventory) -> list[dict[str, Any]]:
    """Return every subscriber's account: the owner's own, or counted from the files."""
    told = ask_owner(seam, inventory.root, "balance")
    if told is not None:
        accounts: list[dict[str, Any]] = told["subscribers"]
        return accounts
    readable = readable_of(seam, inventory)
    known = inventory.ledger.state.subscribers.values()
    return [balance_fields(balance(subscriber, readable)) for subscriber in known]
