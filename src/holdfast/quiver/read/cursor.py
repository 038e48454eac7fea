"""The cursor: ranges of bundles, in order.

    range = cursor.plan(max_events=10_000)
    for bundle in cursor.read(range): …
    cursor.commit(range)

A plan is a promise: it writes a durable pin, and until it is committed (or `retention.max_pin_s`
has passed) neither age nor a size cap takes its data, so the same range reads the same rows after a
crash. Plans may be made ahead of commits. A commit may stop at any event inside its range, and
begin at any bundle: events of one bundle are resolved in order, bundles in any.

A reader that keeps its own account of what it planned (a Spark checkpoint does) says where a plan
begins, and after a crash asks for exactly the same range with `replan`. It gets all of it or an
error: what was dropped meanwhile is `DataLoss`, what is committed already `UnknownPosition`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import pyarrow as pa

from holdfast.errors import BadInput, DataLoss, UnknownPosition
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import Outcome, Position
from holdfast.quiver.read.attachment import Attachment, ReadableQuiver
from holdfast.quiver.read.readable_bundles import SEQ_MAX
from holdfast.quiver.segments.segment import Bundle, BundleRef

OnDataLoss = Literal["fail", "count"]


@dataclass(frozen=True)
class Range:
    """Consecutive events from `start` up to, not including, `end`."""

    start: Position
    end: Position
    events: int
    size_bytes: int
    refs: tuple[BundleRef, ...]


class Cursor(Attachment):
    """Reads a subscriber's data in order. One thread at a time."""

    def __init__(
        self, store: ReadableQuiver, name: str, on_data_loss: OnDataLoss, resumed: int | None = None
    ) -> None:
        if on_data_loss not in ("fail", "count"):
            raise BadInput(f"on_data_loss is {on_data_loss!r}", hint="use 'fail' or 'count'")
        super().__init__(store, name, resumed)
        self._on_data_loss = on_data_loss
        # Where the next plan begins by itself. It runs ahead of the committed position, and falls
        # back to it only when outcomes were taken back (`reopened`).
        self._planned = self.subscriber.position
        self._reopened = self.subscriber.reopened
        # Of ranges that were read and are not committed: up to which seq they were handed out.
        self._handed: dict[tuple[Position, Position], int] = {}

    @property
    def position(self) -> Position:
        """The first event that is not committed."""
        return self.subscriber.position

    def plan(
        self,
        *,
        max_events: int = 100_000,
        max_bytes: int = 64 << 20,
        wait_s: float = 0.0,
        durable: bool = True,
        start: Position | None = None,
        sealed_only: bool = False,
    ) -> Range | None:
        """Return the next range, at least one bundle; None if nothing came within `wait_s`.

        It begins behind the last plan, or at `start` (but never before `position`). With
        `sealed_only` it ends where sealed segments do; if there is nothing sealed, what is open is
        sealed early, at the age of `segment.min_open_duration_s`.
        With `durable=False` the pin is not synced at once but with the next lines of the ledger: a
        power cut may forget it, a crash of the process does not.
        """
        if max_events < 1 or max_bytes < 1:
            raise BadInput("a plan needs room", hint="max_events and max_bytes must be positive")
        deadline_s = self._store.clock.monotonic_s() + wait_s
        while True:
            # Read before looking: what arrives between the look and the wait has then changed the
            # version, and the wait ends at once instead of missing it.
            seen = self._store.arrivals.version
            self._require_current()
            planned = self._plan_now(max_events, max_bytes, durable, start, sealed_only)
            if planned is None and sealed_only:
                self._store.seal_soon()
            remaining_s = deadline_s - self._store.clock.monotonic_s()
            if planned is not None or remaining_s <= 0:
                return planned
            self._store.arrivals.wait(seen, remaining_s)

    async def plan_async(
        self, *, max_events: int = 100_000, max_bytes: int = 64 << 20, wait_s: float = 0.0
    ) -> Range | None:
        """As `plan`, awaitable."""
        deadline_s = self._store.clock.monotonic_s() + wait_s
        while True:
            seen = self._store.arrivals.version
            planned = self.plan(max_events=max_events, max_bytes=max_bytes)
            remaining_s = deadline_s - self._store.clock.monotonic_s()
            if planned is not None or remaining_s <= 0:
                return planned
            await self._store.arrivals.wait_async(seen, remaining_s)

    def _plan_now(
        self,
        max_events: int,
        max_bytes: int,
        durable: bool,
        start: Position | None,
        sealed_only: bool,
    ) -> Range | None:
        """Return the next range, pinned so that retention leaves it alone; None if there is none.

        All of it happens under the ledger's lock: an outcome, or a removal, between choosing and
        pinning would be planned all the same.
        """
        with self._ledger.lock:
            subscriber = self.subscriber
            if subscriber.paused:
                return None
            # Before anything is handed out: a consumer that must not lose data learns of a gap
            # while it can still stop in front of it.
            self._tell_losses()
            if self._reopened != subscriber.reopened:
                self._reopened, self._planned = subscriber.reopened, subscriber.position
            # A caller's own account may be behind what is committed here, after a crash between
            # our commit and its checkpoint; what is resolved is not planned again.
            start = max(self._planned if start is None else start, subscriber.position)
            refs = self._collect(start, max_events, max_bytes, sealed_only)
            if not refs:
                return None
            # A range always ends behind a bundle, so that the next one never begins inside.
            planned = self._pinned(start, Position(refs[-1].seq + 1), refs, durable)
            self._planned = planned.end
            return planned

    @property
    def newest_seq(self) -> int:
        """A seq that no bundle which can be read exceeds; -1 if there is none."""
        return self._store.readable.newest_seq()

    def plan_back(self, before_seq: int, *, max_events: int, max_bytes: int) -> Range | None:
        """Return the newest bundles before a seq that wait, at least one; None if there are none.

        For readers to whom order means nothing. It looks at the ledger alone: what is planned and
        not committed is planned again. Where the next plan begins by itself stays as it is, and the
        pin is not synced, as with `plan(durable=False)`.
        """
        with self._ledger.lock:
            self._require_current()
            subscriber = self.subscriber
            if subscriber.paused:
                return None
            self._tell_losses()
            holes = subscriber.resolved.holes(subscriber.start_seq, before_seq)
            # One hole at a time: a range is without gaps, so that a commit of it says what it says.
            for first, end in reversed(list(holes)):
                refs = self._collect_back(first, end, max_events, max_bytes)
                if refs:
                    start = Position(refs[0].owned_from)
                    return self._pinned(start, Position(refs[-1].seq + 1), refs, durable=False)
            return None

    def _collect_back(
        self, first_seq: int, before_seq: int, max_events: int, max_bytes: int
    ) -> list[BundleRef]:
        """Return the last bundles between two seqs up to the limits, oldest first."""
        refs: list[BundleRef] = []
        events, size_bytes = 0, 0
        for ref in self._store.readable.refs_back(before_seq):
            if ref.seq < first_seq:
                break
            events, size_bytes = events + ref.events, size_bytes + ref.size_bytes
            if refs and (events > max_events or size_bytes > max_bytes):
                break
            refs.append(ref._replace(owned_from=max(first_seq, ref.owned_from)))
        return refs[::-1]

    def _pinned(
        self, start: Position, end: Position, refs: list[BundleRef], durable: bool
    ) -> Range:
        """Pin a range and return it.

        A durable pin survives a restart, so that the range can be replanned.
        """
        now_ns = self._ledger.steady.now_ns()
        self._ledger.change("pin", self.name, first_seq=start.seq, end_seq=end.seq, since_ns=now_ns)
        if durable:
            self._ledger.sync()
        events = sum(ref.events for ref in refs) - (start.row if refs[0].seq == start.seq else 0)
        return Range(start, end, events, sum(ref.size_bytes for ref in refs), tuple(refs))

    def _collect(
        self, start: Position, max_events: int, max_bytes: int, sealed_only: bool = False
    ) -> list[BundleRef]:
        """Return bundles up to the limits, at least one, without those that are resolved."""
        refs: list[BundleRef] = []
        events, size_bytes = 0, 0
        resolved = self.subscriber.resolved
        for ref in self._store.readable.refs(start.seq, sealed_only=sealed_only):
            if ref.seq in resolved:
                continue
            events, size_bytes = events + ref.events, size_bytes + ref.size_bytes
            # The first bundle is taken whatever its size: a limit below the largest bundle would
            # otherwise return nothing for ever, and look like an empty quiver.
            if refs and (events > max_events or size_bytes > max_bytes):
                break
            refs.append(ref)
        return refs

    def replan(self, start: Position, end: Position) -> Range:
        """Return exactly the range from `start` to `end`, planned before, and pin it again.

        Raises `DataLoss` if some of it was lost since, and `UnknownPosition` if it was never handed
        out like that, or some of it is committed. Only what `on_data_loss="count"` or
        `accept_losses` let go may be missing.
        """
        with self._ledger.lock:
            self._require_current()
            self._tell_losses(start.seq, end.seq)
            self._require_replannable(start, end)
            refs = []
            for ref in self._store.readable.refs(start.seq):
                if ref.seq >= end.seq:
                    break
                if ref.seq not in self.subscriber.resolved:
                    refs.append(ref)
            # All of it was lost and accepted as lost, or resolved by others. An empty range
            # commits like any other, so the caller's account moves on.
            if not refs:
                return Range(start, end, 0, 0, ())
            if refs[0].seq == start.seq and start.row > refs[0].events:
                raise _not_planned(start, end, f"bundle {start.seq} has {refs[0].events} events")
            planned = self._pinned(start, end, refs, durable=True)
            self._planned = max(self._planned, end)
            return planned

    def _require_replannable(self, start: Position, end: Position) -> None:
        """Raise unless a range could have been planned: all of it is there, or recorded as lost."""
        subscriber = self.subscriber
        if start.row < 0 or start > end or end.row:
            raise _not_planned(start, end, "a range begins at an event and ends behind a bundle")
        newest_seq = self._store.readable.newest_seq()
        if end.seq > newest_seq + 1:
            raise _not_planned(start, end, f"the newest bundle is {newest_seq}")
        done = subscriber.position
        if start == end or start >= done:
            return
        # Below the committed position a range may be planned again only where the data was lost
        # and not where it was delivered: otherwise the caller would believe it had read events
        # that it gets nowhere.
        lost = IntervalSet((first, until) for first, until, _ in subscriber.losses)
        if not lost.covers(start.seq, min(done.seq, end.seq)) or (done.row and done < end):
            raise _not_planned(start, end, f"all before {done} is resolved")

    def _tell_losses(self, first_seq: int = 0, end_seq: int = SEQ_MAX) -> None:
        """Raise `DataLoss` for what was taken from the subscriber, unless it only counts that."""
        losses = [
            (first, end, outcome)
            for first, end, outcome in self.subscriber.losses
            if first < end_seq and first_seq < end
        ]
        # Losses without a range concern no range in particular, so a replan does not fail for
        # them.
        more = self.subscriber.losses_left_out if end_seq == SEQ_MAX else 0
        if not (losses or more) or self._on_data_loss == "count":
            return
        raise self._data_loss(
            [(first, end, outcome.name.lower()) for first, end, outcome in losses],
            "accept_losses() goes on behind them; the ledger keeps the account",
            more,
        )

    def _data_loss(self, ranges: list[tuple[int, int, str]], hint: str, more: int = 0) -> DataLoss:
        others = f" (and {more} more, which only the lines of the ledger name)" if more else ""
        return DataLoss(
            f"{len(ranges)} ranges{others} were lost to subscriber {self.name!r} before it read "
            "them",
            hint=hint,
            ranges=ranges,
        )

    def accept_losses(self) -> None:
        """Go on behind what was lost; it stays in the ledger."""
        self._require_current()
        self._ledger.change("accept_losses", self.name)

    # ------------------------------------------------------------------ reading

    def read(self, planned: Range, *, partial: bool = False) -> Iterator[Bundle]:
        """Yield the bundles of a range in order, all that can be read.

        The first may have events before `planned.start.row` that are committed already. A bundle
        that is damaged or gone is passed over and recorded as such; with `on_data_loss="fail"`
        `DataLoss` says which, when all others were yielded. A commit resolves none of them again,
        and is refused for what was not yielded because the reading stopped before.

        With `partial` a bundle of which some slots can be read is yielded, too: its `damaged_slots`
        are not empty, its `slots` raise. What becomes of it is up to the caller.
        """
        key, missed = (planned.start, planned.end), IntervalSet()
        self._handed.setdefault(key, -1)
        for ref in planned.refs:
            bundle = self._readable(ref, partial=partial)
            self._handed[key] = max(self._handed[key], ref.seq)
            if bundle is not None:
                yield bundle
            elif ref.seq in self.subscriber.resolved:
                missed.add(ref.seq, ref.seq + 1)
        # The loop ran to its end: everything of this range was yielded or recorded, and any commit
        # of it is honest. A caller that never called `read` (it took the sealed files itself) is
        # not restricted either; see the default in `_require_handed_out`.
        self._handed[key] = SEQ_MAX
        losses = self._losses_of(missed)
        if losses and self._on_data_loss == "fail":
            raise self._data_loss(
                losses,
                "the rest was read, and may be committed; accept_losses() goes on to the next plan",
            )

    def _readable(self, ref: BundleRef, *, partial: bool) -> Bundle | None:
        """Return a bundle if it can be read, and record it as damaged if not.

        Slots are decoded here, before the bundle is handed out: damage found later, inside the
        caller's loop, could no longer be recorded, and the caller would have committed what it
        never saw.
        """
        bundle = self._store.readable.bundle(ref.seq)
        damage = None if bundle is None else bundle.damage
        if bundle is not None and damage is None:
            return bundle
        # What is resolved may have been removed while it was read: that is no damage.
        is_wanted = partial and ref.seq not in self.subscriber.resolved
        if bundle is not None and bundle.sound_slots and is_wanted:
            return bundle
        self._damaged(ref, "no longer there" if damage is None else str(damage))
        return None

    def _losses_of(self, missed: IntervalSet) -> list[tuple[int, int, str]]:
        """Return what was lost of some seqs, and how; others may have been decided meanwhile."""
        return [
            (max(first, start), min(end, until), outcome.name.lower())
            for first, end in missed
            for start, until, outcome in self.subscriber.losses
            if start < end and first < until
        ]

    def table(self, planned: Range, slot: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of one slot in a range, without those committed already."""
        batches = []
        for bundle in self.read(planned):
            if slot in bundle.slots:
                skip = planned.start.row if bundle.seq == planned.start.seq else 0
                batch = bundle.slots[slot].slice(skip)
                batches.append(batch.select(columns) if columns else batch)
        return pa.Table.from_batches(batches) if batches else pa.table({})

    # --------------------------------------------------------------- committing

    def commit(
        self,
        planned: Range,
        *,
        since: Position | None = None,
        through: Position | None = None,
        outcome: Outcome = Outcome.ACKED,
        reason: str = "",
    ) -> None:
        """Resolve a range, or its events from `since` on and before `through`.

        What was resolved before stays so. Inside a bundle `since` goes on where the last commit
        stopped.
        """
        begin = planned.start if since is None else since
        end = planned.end if through is None else through
        if not planned.start <= begin <= end <= planned.end:
            raise UnknownPosition(
                f"{begin} to {end} is not within the range from {planned.start} to {planned.end}",
                hint="commit positions of the planned range",
            )
        self._make_room()
        with self._ledger.lock:
            self._require_current()
            subscriber = self.subscriber
            first = bisect.bisect_left(planned.refs, begin.seq, key=_seq_of)
            refs = planned.refs[first : bisect.bisect_right(planned.refs, end.seq, key=_seq_of)]
            self._require_handed_out(planned, refs, end)
            if since is not None:
                begin = self._begin(refs, since, planned.start)
            counts = self._counts(refs, end)
            # A range can resolve nothing new and still have to be written: numbers without a
            # bundle in it would keep the high-water mark where it is.
            if counts != NOTHING or not subscriber.resolved.covers(begin.seq, end.seq):
                self._record(begin, end, outcome, counts, reason)
            if subscriber.resolved.covers(planned.start.seq, planned.end.seq):
                self._forget_handed((planned.start, planned.end))

    def _forget_handed(self, key: tuple[Position, Position]) -> None:
        """Forget a range of which everything has an outcome, and all that end before the position.

        Each by itself, too: a reader that goes back leaves the position where it is for long.
        """
        position = self.subscriber.position
        self._handed = {
            one: seq for one, seq in self._handed.items() if one[1] > position and one != key
        }

    def _require_handed_out(self, planned: Range, refs: Sequence[BundleRef], end: Position) -> None:
        """Refuse to resolve what `read` began to hand out, and did not."""
        through = self._handed.get((planned.start, planned.end), SEQ_MAX)
        if end.seq <= through:
            return
        wanted = [ref.seq for ref in refs if ref.seq < end.seq or end.row]
        unread = [seq for seq in wanted if seq > through and seq not in self.subscriber.resolved]
        if unread:
            raise UnknownPosition(
                f"bundles from {unread[0]} to {unread[-1]} were not read: reading stopped before",
                hint=f"read the range again, or commit it through=Position({unread[0]})",
            )

    def _begin(self, refs: Sequence[BundleRef], since: Position, start: Position) -> Position:
        """Return where a commit in the middle of a range begins, with the unused numbers before."""
        ref = refs[0] if refs and refs[0].seq == since.seq else None
        if since.row:
            done = self.subscriber.partial.get(since.seq, 0)
            # Within a bundle the ledger knows one number, how many events from the front are
            # resolved. A commit that skips some would have to be stored as a set per bundle.
            if ref is None or (since.row != done and since.seq not in self.subscriber.resolved):
                raise UnknownPosition(
                    f"event {since.row} of bundle {since.seq}, of which {done} are committed",
                    hint="commit the events of one bundle in order",
                )
            return since
        return since if ref is None else max(start, Position(ref.owned_from))

    def _counts(self, refs: Sequence[BundleRef], end: Position) -> Totals:
        """Return what a commit of these bundles up to `end` newly resolves."""
        subscriber = self.subscriber
        bundles, events = 0, 0
        if end.row and (end.seq in subscriber.resolved or not refs or refs[-1].seq != end.seq):
            raise UnknownPosition(
                f"event {end.row} of bundle {end.seq}, which is not there or resolved already",
                hint=f"commit Position({end.seq}) or a row of a bundle that was read",
            )
        for ref in refs:
            if ref.seq in subscriber.resolved:
                continue
            done = subscriber.partial.get(ref.seq, 0)
            if ref.seq < end.seq:
                bundles, events = bundles + 1, events + ref.events - done
            elif end.row:
                self._check_row(ref, end.row, done)
                events += end.row - done
        return Totals(bundles, events)

    def _check_row(self, ref: BundleRef, row: int, done: int) -> None:
        if not done <= row < ref.events:
            raise UnknownPosition(
                f"event {row} of bundle {ref.seq}, which has {ref.events} and {done} committed",
                hint=f"commit a row from {done} to {ref.events - 1}, or Position({ref.seq + 1})",
            )

    # ----------------------------------------------------------------- looking

    def rows_done(self, planned: Range) -> dict[int, int]:
        """Return, of the bundles of a range that still wait, how many events are resolved."""
        with self._ledger.lock:
            subscriber = self.subscriber
            return {
                ref.seq: subscriber.partial.get(ref.seq, 0)
                for ref in planned.refs
                if ref.seq not in subscriber.resolved
            }


def _not_planned(start: Position, end: Position, why: str) -> UnknownPosition:
    return UnknownPosition(
        f"no range from {start} to {end} to plan again: {why}",
        hint="go on from the cursor's position, if the caller's own account is of this quiver",
    )


# Called a dozen times for each commit of one bundle.
_seq_of: Callable[[BundleRef], int] = attrgetter("seq")
