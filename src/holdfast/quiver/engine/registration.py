"""Registering subscribers: where they start, and what had been accepted before that."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Literal, TypeAlias

from holdfast.errors import BadInput, UnknownPosition
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.engine.engine import Engine
from holdfast.quiver.ledger.subscriber import Subscriber, SubscriberOptions, check_name
from holdfast.quiver.read.attachment import ReadableQuiver

StartPosition: TypeAlias = "Literal['oldest', 'latest'] | datetime"


def register(engine: Engine, name: str, start: StartPosition, options: SubscriberOptions) -> None:
    """Add a subscriber, durably."""
    check_name(name)
    _check_options(engine, options)
    with engine.ledger.lock:
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


def replay_range(store: ReadableQuiver, name: str, first_seq: int, end_seq: int) -> Totals:
    """Take back the outcomes of a range, so that what is still there is handed out again.

    It counts as accepted once more, so that the subscriber's account stays true.
    """
    with store.ledger.lock:
        subscriber = store.ledger.subscriber(name)
        if not subscriber.start_seq <= first_seq < end_seq:
            raise UnknownPosition(
                f"no range from {first_seq} to {end_seq} for a subscriber that starts at "
                f"{subscriber.start_seq}",
                hint="name a range from its start on, first before end",
            )
        again = NOTHING
        for ref in store.readable.refs(first_seq):
            if ref.seq >= end_seq:
                break
            if ref.seq in subscriber.resolved:
                again = again.plus(1, ref.events)
        before = subscriber.accepted_before.plus(-again.bundles, -again.events)
        store.ledger.change(
            "reopen", name, first_seq=first_seq, end_seq=end_seq, accepted_before=list(before)
        )
        store.ledger.sync()
    store.arrivals.notify()
    return again


def _start(engine: Engine, start: StartPosition) -> tuple[int, Totals]:
    """Return the first seq for a new subscriber, and what was accepted before it."""
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
        if since_ns is None or ref.ingestion_ns >= since_ns or total != NOTHING:
            first_seq = min(first_seq, ref.seq)
            total = total.plus(1, ref.events)
    return first_seq, accepted.plus(-total.bundles, -total.events)


def _check_options(engine: Engine, options: SubscriberOptions) -> None:
    target = engine.config.segment.target_size_bytes
    if options.max_bytes is not None and options.max_bytes < target:
        raise BadInput(
            f"max_bytes is {options.max_bytes}, less than one segment ({target} bytes)",
            hint="raise it, or lower segment.target_size_bytes",
        )
