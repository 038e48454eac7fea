"""A destination's side of the quiver: a cursor, in a thread of its own.

Reading waits for the disk, and every line of the ledger is written under a lock that others hold
while they sync. Neither may stop the event loop, which all receivers and destinations share. A
shared pool of threads would let one blocked destination stop the others. So each has one thread,
which also keeps the calls of its cursor one after another. Where one event is sent at a time, each
waits for the line of the one before: so the way to the thread and back is one queue and one call
into the loop, and not an executor, whose futures cost more than a commit does. The loop does not
write a line itself while nobody holds the lock either: it would spare an event 19 µs, but a write
to a file may wait for the disk, above all beside a log that syncs, and ext4 has no write that would
say so instead (`RWF_NOWAIT`).

Plans are not synced: after a power cut the destination makes a new plan anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from holdfast.deliver.settings import DeliverySettings
from holdfast.deliver.window import DELIVERED, Decision, Item, LedgerLine, TrackedBundle
from holdfast.errors import UnknownPosition
from holdfast.quiver import Bundle, Outcome, Position, Quiver, Range
from holdfast.signals.event import Unit
from holdfast.signals.registry import signal_of
from holdfast.signals.signal import Form, Signal

# How often to look for data that nobody announced.
LOOK_EVERY_S = 60.0
# How long a disk that hangs may keep a destination from ending.
CLOSE_TIMEOUT_S = 5.0
# Of a unit that has none: its signal has no such key, or it is not what the key is made of.
NO_KEY = ""
NOT_WANTED = Decision(Outcome.FILTERED, "not one of delivery.signals")

Result = TypeVar("Result")

log = logging.getLogger("holdfast.deliver")


class _Handling(NamedTuple):
    """What this destination does with the units of one signal."""

    is_wanted: bool
    # Why the destination cannot take them; None if it can.
    refusal: str | None
    # None: all units have the same key.
    key_of: Callable[[Any], str] | None


# What to do, the loop that waits for it, and where it waits.
_Errand = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class _FeedThread:
    """Does one thing after another; nobody waits for it when the process ends."""

    def __init__(self, name: str) -> None:
        errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._errands = errands
        threading.Thread(target=_run_errands, args=(errands,), name=name, daemon=True).start()
        # Also if whoever attached was cut off, and could not close.
        self._ending = weakref.finalize(self, errands.put, None)

    def run(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return the result to come; `work` is done also if nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Result] = loop.create_future()
        self._errands.put((work, loop, found))
        return found

    def end(self) -> None:
        """End after everything that was begun."""
        self._ending()


def _run_errands(errands: SimpleQueue[_Errand | None]) -> None:
    while (errand := errands.get()) is not None:
        work, loop, found = errand
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_report, found, result, error)
        # Not kept until the next one comes: ranges and bundles are large.
        del errand, work, found, result, error


def _report(found: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if found.done():
        return
    if error is None:
        found.set_result(result)
    else:
        found.set_exception(error)


class Feed:
    """Attached to one subscriber; the previous holder is fenced off."""

    def __init__(
        self,
        quiver: Quiver,
        name: str,
        settings: DeliverySettings,
        refusal_of: Callable[[Signal], str | None],
    ) -> None:
        self._quiver_id = quiver.quiver_id
        self._settings = settings
        self._refusal_of = refusal_of
        self._handlings: dict[tuple[str, Form], _Handling] = {}
        options = settings.subscriber_options()
        # `count`: a loss is in the statistics and in the ledger already. Stopping at it would add
        # an outage to the loss, and no one here could accept it.
        self._cursor = quiver.cursor(name, options=options, on_data_loss="count")
        self._thread = _FeedThread(f"deliver-{name}")
        # A range that was planned, and could not be read yet.
        self._unread: Range | None = None
        self._newest_first = settings.after_outage == "newest_first"
        self._sends_rest = settings.on_damage == "send_rest"
        # With it: where the next plan of what is new begins; before which seq the next one of what
        # waited ends (0: nothing waits); and of which state of the subscriber that is.
        self._fresh_seq = 0
        self._waited_until_seq = 0
        self._reopened = -1
        self._is_outage_over = True

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused the subscriber."""
        return self._cursor.subscriber.paused

    def pause(self) -> None:
        """Pause, also over a restart."""
        self._cursor.pause()

    def resume(self) -> None:
        """End a pause."""
        self._cursor.resume()

    def outage_ended(self) -> None:
        """Note that the destination works again: with `newest_first`, what waits has time."""
        self._is_outage_over = True

    async def load(self, max_events: int, max_bytes: int) -> list[TrackedBundle]:
        """Return the next bundles; waits until there are some."""
        while True:
            # Before the look, or an append between look and wait would be found only after
            # `LOOK_EVERY_S`.
            seen = self._cursor.arrivals.version
            loaded = await self._in_thread(partial(self._load, max_events, max_bytes))
            if loaded is not None:
                return loaded
            await self._cursor.arrivals.wait_async(seen, LOOK_EVERY_S)

    async def commit(self, pieces: Sequence[LedgerLine]) -> int:
        """Write outcomes; return how many of the pieces are written. The rest failed: try again."""
        return await self._in_thread(partial(self._commit, pieces))

    async def waiting(self, ranges: Sequence[Range]) -> set[int]:
        """Return the seqs of these ranges that have no outcome yet."""
        return await self._in_thread(
            lambda: {seq for planned in ranges for seq in self._cursor.rows_done(planned)}
        )

    async def close(self) -> None:
        """Detach, after everything that was begun; the subscriber keeps its place."""
        closing = asyncio.ensure_future(self._in_thread(self._cursor.close))
        try:
            await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        finally:
            self._thread.end()
        if closing.done():
            closing.result()
        else:
            closing.cancel()
            log.warning("%s: the disk did not answer for %g s", self._cursor.name, CLOSE_TIMEOUT_S)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await self._thread.run(work)

    # -------------------------------------------------------------- in the thread

    def _load(self, max_events: int, max_bytes: int) -> list[TrackedBundle] | None:
        """Plan a range, unless one could not be read last time, and read what has no outcome yet.

        The plan is kept until it is read: a second one would skip what the first one covers.
        """
        if self._unread is None:
            self._unread = self._plan(max_events, max_bytes)
        planned = self._unread
        if planned is None:
            return None
        rows_done = self._cursor.rows_done(planned)
        places = {ref.seq: place for place, ref in enumerate(planned.refs)}
        bundles = [
            self._track(planned, places[bundle.seq], rows_done[bundle.seq], bundle)
            for bundle in self._cursor.read(planned, partial=self._sends_rest)
            # Decided since the range was planned; the window would have nothing to record for it.
            if bundle.seq in rows_done
        ]
        self._unread = None
        return bundles

    def _plan(self, max_events: int, max_bytes: int) -> Range | None:
        """Return the next range: in order or, after an outage, first what came in since.

        What waited is planned backwards, as many bundles at once as there is room for, and these
        are sent in their order.
        """
        cursor = self._cursor
        if not self._newest_first:
            return cursor.plan(max_events=max_events, max_bytes=max_bytes, durable=False)
        subscriber = cursor.subscriber
        if subscriber.paused:
            return None
        if self._is_outage_over:
            self._is_outage_over = False
            self._fresh_seq = max(self._fresh_seq, cursor.newest_seq + 1)
            self._waited_until_seq = self._fresh_seq
        if self._reopened != subscriber.reopened:
            # An operator took outcomes back: anything may wait again.
            self._reopened, self._waited_until_seq = subscriber.reopened, self._fresh_seq
        start = Position(self._fresh_seq)
        planned = cursor.plan(
            max_events=max_events, max_bytes=max_bytes, durable=False, start=start
        )
        if planned is not None:
            self._fresh_seq = planned.end.seq
            return planned
        planned = cursor.plan_back(
            self._waited_until_seq, max_events=max_events, max_bytes=max_bytes
        )
        self._waited_until_seq = 0 if planned is None else planned.start.seq
        return planned

    def _track(self, planned: Range, place: int, rows_done: int, bundle: Bundle) -> TrackedBundle:
        """Make items of a bundle: the units that its signal says, each with its key."""
        tracked = TrackedBundle(planned, place, rows_done)
        if bundle.events == rows_done:
            tracked.whole = DELIVERED  # a heartbeat has nothing to deliver
            return tracked
        damaged_slots = bundle.damaged_slots
        signal = signal_of(bundle.kind, [*bundle.sound_slots, *damaged_slots])
        # Per signal, not per bundle: whether a signal is wanted and what its key is made of do not
        # change while a destination runs.
        known = signal.name, signal.form
        handling = self._handlings.get(known)
        if handling is None:
            handling = self._handlings[known] = self._handling(signal)
        if not handling.is_wanted:
            tracked.whole = NOT_WANTED
            return tracked
        if damaged_slots and not signal.can_do_without(damaged_slots):
            tracked.whole = Decision(Outcome.DAMAGED, str(bundle.damage))
            return tracked
        units = signal.units(bundle, self._quiver_id, rows_done)
        _check_units(units, bundle, rows_done)
        refusal, key_of = handling.refusal, handling.key_of
        tracked.items += [
            Item(unit, NO_KEY if key_of is None else _key(key_of, unit), tracked, refusal)
            for unit in units
        ]
        return tracked

    def _handling(self, signal: Signal) -> _Handling:
        settings, refusal = self._settings, self._refusal_of(signal)
        if self._newest_first and signal.promises_order:
            refusal = (
                f"{signal.name} promises an order, and `after_outage: newest_first` keeps none"
            )
        return _Handling(
            settings.signals is None or signal.name in settings.signals,
            refusal,
            signal.order_key(settings.key) if settings.order == "key" else None,
        )

    def _commit(self, pieces: Sequence[LedgerLine]) -> int:
        """Write line after line; what was written before one fails is done, and reported so."""
        for done, piece in enumerate(pieces):
            try:
                self._commit_piece(piece)
            except Exception:
                if done == 0:
                    raise
                return done
        return len(pieces)

    def _commit_piece(self, piece: LedgerLine) -> None:
        """Write one line; bundle by bundle if somebody else has decided a part of it.

        A line over many bundles is refused as a whole if one of them is resolved up to another row
        than we think. Written bundle by bundle, all others get their outcome; for the one that
        somebody else has decided the ledger keeps the first word.
        """
        spans = [(piece.since, piece.through)]
        while spans:
            since, through = spans.pop()
            outcome, reason = piece.decision
            try:
                self._cursor.commit(
                    piece.planned, since=since, through=through, outcome=outcome, reason=reason
                )
            except UnknownPosition as error:
                # Retention, or an operator, has decided some of it meanwhile.
                if (since, through) == (piece.since, piece.through) and len(piece.parts) > 1:
                    spans = piece.spans()
                else:
                    log.info("%s: an outcome came too late: %s", self._cursor.name, error)


def _key(key_of: Callable[[Any], str], unit: Unit) -> str:
    try:
        # Of a copy: the parsed form is many times the payload, and would wait with it.
        return key_of(replace(unit))
    except Exception:
        return NO_KEY


def _check_units(units: Sequence[Unit], bundle: Bundle, rows_done: int) -> None:
    """Raise if a signal left out rows at an end: they would never have an outcome."""
    ends = (units[0].position.row, units[-1].position.row + units[-1].rows) if units else (0, 0)
    if not (ends[0] <= rows_done and ends[1] == bundle.events):
        raise AssertionError(
            f"BUG: of bundle {bundle.seq}, rows {rows_done} to {bundle.events}, "
            f"rows {ends[0]} to {ends[1]} are to be delivered"
        )
