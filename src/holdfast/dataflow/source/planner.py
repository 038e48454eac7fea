"""The planner: where the next batch ends, what it claims, and what is acknowledged.

Everything it knows is in the offsets it is given, in the quivers' ledgers and in Spark's commit
log, so that a new process plans as the old one would have. It is asked many times a second: a
question that finds nothing new writes nothing.

A gateway that does not answer stops nobody but itself: nothing is planned from it, the claim stays
where it is, and the others are read on. One that did not answer since the start has not even told
its quiver's id, so offsets are compared only with those that have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from holdfast.dataflow.base import points
from holdfast.dataflow.source.checkpoint import Checkpoint, Offset
from holdfast.dataflow.source.notes import (
    TrimNote,
    WatermarkExplanation,
    recall_start,
    recorded_ends,
    remember_start,
)
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.partitions import Claimed, SegmentPiece, SourcePartition, split
from holdfast.dataflow.source.quiver_client import QuiverClient
from holdfast.dataflow.source.rejected_publish import RejectedPublisher
from holdfast.dataflow.watermark.claims import (
    END_OF_TIME_US,
    Claim,
    Claims,
    EventTimeReport,
    Reach,
    Silence,
)
from holdfast.errors import DirectoryLocked, Fenced, OwnerGone, UnknownPosition, WrongQuiver
from holdfast.quiver import Position
from holdfast.remote import PlannedRange
from holdfast.seam import Seam

# Ranges that are kept until they are read; Spark has one or two at a time for each quiver.
RANGES_MAX = 256
# A gateway that did not answer is left alone for so long, and so many times as long as was waited
# for it without success, so that the others are not held up.
SILENCE_PAUSE_S = 1.0
SILENCE_SHARE = 5
# How long a run that ends asks a gateway that does not answer, before it ends with an error.
ENDING_PATIENCE_S = 60.0

log = logging.getLogger("holdfast.dataflow")

_Answer = TypeVar("_Answer")


class Planner:
    """Plans the batches of one stream over its gateways. One thread."""

    def __init__(
        self,
        options: SourceOptions,
        gateways: Sequence[QuiverClient],
        checkpoint: Checkpoint | None,
        seam: Seam,
    ) -> None:
        # The newest claim, with what holds it.
        self.claim: Claim | None = None
        self._options = options
        self._gateways = list(gateways)
        self._checkpoint = checkpoint
        self._explanation = (
            None if checkpoint is None else WatermarkExplanation(checkpoint, options.subscriber)
        )
        self._trim_note, self._recorded = None, dict[str, int]()
        if checkpoint is not None and options.on_rewind == "trim":
            self._trim_note = TrimNote(checkpoint, options.subscriber)
            if (query_id := checkpoint.query_id()) is not None:
                ends = recorded_ends(options.records, query_id, options.subscriber)
                self._recorded = dict(ends)
        self._dead_letters = RejectedPublisher(options) if options.unfit else None
        self._seam = seam
        # How often a gateway was left out of a claim.
        self._released_total = 0
        # By name: since when it is silent (wall clock), and when to ask again (monotonic).
        self._silent: dict[str, tuple[int, float]] = {}
        # Where an `availableNow` run ends, by quiver.
        self._targets: dict[str, int] | None = None
        self._ranges: dict[tuple[str, int, int], PlannedRange] = {}
        self._heartbeat_s = seam.clock.monotonic_s() - options.heartbeat_every
        self._has_beaten = False
        self._acked_batch = -1

    # ----------------------------------------------------------------- gateways

    def _reached(self) -> dict[str, QuiverClient]:
        """Return the gateways that have answered, by quiver; ask the others to."""
        for gateway in self._gateways:
            if gateway.quiver_id is None:
                self._try(gateway, gateway.reach)
        found = {g.quiver_id: g for g in self._gateways if g.quiver_id is not None}
        if len(found) < sum(gateway.quiver_id is not None for gateway in self._gateways):
            raise WrongQuiver(
                "two of the quivers are one and the same", hint="name each quiver once"
            )
        return found

    def _try(self, gateway: QuiverClient, ask: Callable[[], _Answer]) -> _Answer | None:
        """Return what a gateway answers; None if it does not."""
        now_s = self._seam.clock.monotonic_s()
        since_us, again_s = self._silent.get(gateway.name, (0, now_s))
        if now_s < again_s:
            return None
        try:
            answer = ask()
        except OwnerGone as error:
            if gateway.name not in self._silent:
                log.warning("%s does not answer: %s", gateway.name, error.message)
                since_us = self._seam.clock.wall_ns() // 1000
            # One that hangs costs its time-out each time: then it is asked so much less often.
            ended_s = self._seam.clock.monotonic_s()
            again_s = ended_s + SILENCE_PAUSE_S + SILENCE_SHARE * (ended_s - now_s)
            self._silent[gateway.name] = (since_us, again_s)
            return None
        self._silent.pop(gateway.name, None)
        return answer

    def _answer(self, gateway: QuiverClient, ask: Callable[[], _Answer]) -> _Answer | None:
        """Return what a gateway answers; None if it does not, unless this run ends.

        A run that ends would take silence for the end, and `close` would claim it.
        """
        if self._targets is None:
            return self._try(gateway, ask)
        until_s = self._seam.clock.monotonic_s() + ENDING_PATIENCE_S
        while True:
            try:
                return ask()
            except OwnerGone as error:
                log.warning("%s does not answer: %s", gateway.name, error.message)
                if self._seam.clock.monotonic_s() >= until_s:
                    raise OwnerGone(
                        f"{gateway.name} does not answer, and has rows that are to be read now",
                        hint="start it, then run again: nothing is lost",
                    ) from error
            time.sleep(SILENCE_PAUSE_S)

    def initial(self) -> Offset:
        """Return the subscribers' own places, as they were when the stream began."""
        subscriber = self._options.subscriber
        if self._checkpoint is None:
            return self._with_new_quivers(Offset(subscriber))
        start = recall_start(self._checkpoint, subscriber)
        if start is None:
            start = self._with_new_quivers(Offset(subscriber))
            remember_start(self._checkpoint, start)
        return start

    def stop_at_newest(self) -> None:
        """Plan nothing beyond what is there now."""
        reached = self._reached()
        silent = [gateway.name for gateway in self._gateways if gateway.quiver_id is None]
        if silent:
            raise OwnerGone(
                f"{', '.join(silent)} does not answer, so it is not known what is there now",
                hint="start it, then run again; a query that runs on would wait for it",
            )
        self._targets = {quiver_id: gateway.seal() for quiver_id, gateway in reached.items()}

    # ----------------------------------------------------------------- planning

    def next(self, start: Offset, max_rows: int) -> Offset:
        """Return where the batch from `start` on ends; `start` if there is no reason for one."""
        self.acknowledge_committed()
        begun = self._with_new_quivers(start)
        planned, rows = self._plan(begun, max_rows)
        end = replace(begun, seqs={**begun.seqs, **planned}, rows=begun.rows + rows)
        if not self._options.watermark:
            return end if planned else start
        claim_us, newest_us = self._claim(begun, end)
        if planned:
            return replace(end, claim_us=claim_us, newest_us=max(newest_us, end.newest_us))
        if self._is_heartbeat_due(end, claim_us):
            return replace(end, claim_us=claim_us, heartbeat=end.heartbeat + 1)
        return start

    def _with_new_quivers(self, start: Offset) -> Offset:
        """Return the offset with quivers that were added since; refuse one that is of others."""
        reached = self._reached()
        unknown = sorted(set(start.seqs) - set(reached))
        all_answered = len(reached) == len(self._gateways)
        if start.subscriber != self._options.subscriber or (unknown and all_answered):
            mine = ", ".join(sorted(f"{g.quiver_id} ({g.name})" for g in self._gateways))
            raise WrongQuiver(
                f"the checkpoint is of subscriber {start.subscriber!r} and the quivers "
                f"{', '.join(sorted(start.seqs))}; this query reads {mine} as "
                f"{self._options.subscriber!r}",
                hint="name the quivers and the subscriber as before, or use a new checkpoint",
            )
        new = {
            quiver_id: position.seq
            for quiver_id, gateway in reached.items()
            if quiver_id not in start.seqs
            and (position := self._answer(gateway, gateway.position)) is not None
        }
        return replace(start, seqs={**start.seqs, **new}) if new else start

    def _plan(self, start: Offset, max_rows: int) -> tuple[dict[str, int], int]:
        """Pin the next range of every quiver that has one; return where they end, and the rows."""
        ends, rows_planned = {}, 0
        rows = max_rows
        for left, (quiver_id, gateway) in zip(
            range(len(self._gateways), 0, -1), self._reached().items(), strict=False
        ):
            # Each gets its part of what is left: one that is far behind must not starve the others.
            planned = self._plan_one(gateway, start.seqs.get(quiver_id), max(1, rows // left))
            if planned is not None:
                first, last = start.seqs[quiver_id], planned.end.seq
                if planned.start.seq > first:
                    # Lost in between, or done: then the checkpoint goes back, and may be refused.
                    planned = self._replan(gateway, first, last) or planned
                self._keep(planned, first)
                ends[quiver_id] = last
                rows = max(1, rows - planned.events)
                rows_planned += planned.events
        return ends, rows_planned

    def _plan_one(self, gateway: QuiverClient, seq: int | None, rows: int) -> PlannedRange | None:
        quiver_id = gateway.reach()
        target = None if self._targets is None else self._targets.get(quiver_id, 0)
        if seq is None or (target is not None and seq >= target):
            return None
        size_bytes = max(1, self._options.max_bytes // len(self._gateways))
        start = Position(max(seq, self._recorded.get(quiver_id, 0)))
        return self._answer(gateway, lambda: gateway.plan(start, rows, size_bytes))

    def _keep(self, planned: PlannedRange, start_seq: int) -> None:
        self._ranges[planned.quiver_id, start_seq, planned.end.seq] = planned
        while len(self._ranges) > RANGES_MAX:
            del self._ranges[next(iter(self._ranges))]

    # ---------------------------------------------------------------- watermark

    def _claim(self, start: Offset, end: Offset) -> tuple[int, int]:
        """Return the claim beyond a batch, and the newest event time that anybody has seen.

        It goes out from the claim of `start`, each time anew: a claim that no batch carried is no
        promise, and an event that came after it is in time.
        """
        heard = {g.name: self._ask(g, end, start.claim_us) for g in self._gateways}
        claims = Claims(self._options.claims, start.claim_us, self._reach(start, heard))
        self.claim = claims.update(heard)
        if self._options.close and self._targets is not None and start.seqs == end.seqs:
            self.claim = claims.close()
        self._released_total += claims.released_total
        if self._explanation is not None:
            now_us = self._seam.clock.wall_ns() // 1000
            self._explanation.note(self.claim, self._released_total > 0, now_us)
        seen = [
            s.newest_us for s in heard.values() if isinstance(s, EventTimeReport) and s.newest_us
        ]
        return self.claim.us, max(seen, default=0)

    def _reach(self, start: Offset, heard: Mapping[str, EventTimeReport | Silence]) -> Reach:
        """Return how far idleness may lead; without it nobody asks."""
        horizon = self._options.horizon
        horizon_us = None if horizon is None else int(horizon * 1e6)
        if not any(isinstance(said, EventTimeReport) and said.idle for said in heard.values()):
            return Reach(None, horizon_us)
        return Reach(self._newest_us(start) or None, horizon_us)

    def _ask(
        self, gateway: QuiverClient, offset: Offset, claimed_us: int
    ) -> EventTimeReport | Silence:
        seq = None if gateway.quiver_id is None else offset.seqs.get(gateway.quiver_id)
        if seq is not None:
            position = Position(seq)
            said = self._try(gateway, lambda: gateway.report(position, claimed_us))
            if said is not None:
                return said
        since_us, _ = self._silent.get(gateway.name, (self._seam.clock.wall_ns() // 1000, 0.0))
        return Silence(since_us)

    def _is_heartbeat_due(self, end: Offset, claim_us: int) -> bool:
        """Whether windows may be waiting for a claim that no row will carry."""
        if claim_us <= end.claim_us:
            return False
        if claim_us == END_OF_TIME_US:
            return True
        if self._options.horizon is None or (self._targets is not None and self._has_beaten):
            # A run that ends closes what it can, once: clocks go on, and it has to end.
            return False
        now_s = self._seam.clock.monotonic_s()
        if now_s < self._heartbeat_s + self._options.heartbeat_every:
            return False
        if end.claim_us >= self._newest_us(end) + int(self._options.horizon * 1e6):
            return False
        self._heartbeat_s = now_s
        self._has_beaten = True
        return True

    def _newest_us(self, end: Offset) -> int:
        """Return the newest time in the query: a source that has none holds the others' windows."""
        batch = None if self._checkpoint is None else self._checkpoint.last_planned()
        if self._checkpoint is None or batch is None:
            return end.newest_us
        others = self._checkpoint.offsets(batch).values()
        return max(end.newest_us, *(offset.newest_us for offset in others), 0)

    # ------------------------------------------------------------------ reading

    def partitions(self, start: Offset, end: Offset) -> list[SourcePartition]:
        """Return what executors read of a batch, the same for the same offsets."""
        self.acknowledge_committed()
        start = self._with_new_quivers(start)
        reached = self._reached()
        pieces: list[SegmentPiece] = []
        starts = dict(start.seqs)
        for quiver_id, last in end.seqs.items():
            first = start.seqs.get(quiver_id, last)
            if first == last:
                continue
            if quiver_id not in reached:
                raise OwnerGone(
                    f"quiver {quiver_id} has rows of a batch that was started, and does not answer",
                    hint="start its gateway, then restart the query",
                )
            found, starts[quiver_id] = self._pieces(reached[quiver_id], first, last)
            pieces += found
        if starts != dict(start.seqs) and self._trim_note is not None:
            self._trim_note.write(end, starts)
        claimed = Claimed(end.claim_us, start.claim_us) if self._options.watermark else None
        groups = split(pieces, self._options.partition_bytes)
        partitions = [SourcePartition(group, claimed) for group in groups]
        if claimed is not None:
            # In every batch: filters may leave none of its rows to carry the claim.
            partitions = partitions or [SourcePartition((), claimed)]
            partitions[0].control = True
        return partitions

    def _pieces(
        self, gateway: QuiverClient, first: int, last: int
    ) -> tuple[list[SegmentPiece], int]:
        """Return what to read of a range, and where that begins."""
        planned = self._ranges.get((gateway.reach(), first, last))
        if planned is None:
            planned = self._replan(gateway, first, last)
            if planned is None:
                return [], last
            self._keep(planned, first)
        size_bytes = planned.size_bytes // max(1, len(planned.segments))
        pieces = [
            SegmentPiece(
                gateway.place, planned.quiver_id, name, planned.start, planned.end, size_bytes
            )
            for name in planned.segments
        ]
        return pieces, planned.start.seq

    def _replan(self, gateway: QuiverClient, first: int, last: int) -> PlannedRange | None:
        """Pin a range again, or what is left of it after trimming; None if that is nothing.

        The quiver knows which of it was acknowledged, and which was lost and counted.
        """
        position, end = gateway.position(), Position(last)
        begin = position if position.seq == first else Position(first)
        recorded = Position(self._recorded.get(gateway.reach(), 0))
        if recorded <= begin:
            try:
                return gateway.replan(begin, end)
            except UnknownPosition as error:
                if position <= begin:
                    raise
                if self._options.on_rewind == "refuse":
                    raise _rewound(gateway, first, position) from error
        begin = min(max(begin, position, recorded), end)
        log.warning(
            "%s: the checkpoint goes back to %d, and all before %d is done: left out",
            gateway.name, first, begin.seq,
        )  # fmt: skip
        return gateway.replan(begin, end) if begin < end else None

    # ------------------------------------------------------------ acknowledging

    def acknowledge(self, end: Offset) -> bool:
        """Acknowledge everything before an offset that is committed; False if that has to wait.

        A quiver may be silent, or the dead letters of rows that did not fit may be in use.
        """
        if not self._has_kept_rejected(end):
            return False
        reached = self._reached()
        done = set(end.seqs) <= set(reached)
        for quiver_id, gateway in reached.items():
            if quiver_id in end.seqs:
                points.reached(points.BatchPoint.ACKNOWLEDGE, self._options.checkpoint)
                acknowledge = partial(gateway.acknowledge, Position(end.seqs[quiver_id]))
                done = self._try(gateway, acknowledge) is not None and done
        return done

    def _has_kept_rejected(self, end: Offset) -> bool:
        """Keep the rows before an offset that did not fit; False if that cannot be done now."""
        if self._dead_letters is not None:
            try:
                self._dead_letters.publish(end.seqs)
            except DirectoryLocked as error:
                log.warning("rejected rows have to wait: %s", error)
                return False
        return True

    def acknowledge_committed(self) -> None:
        """Acknowledge what the checkpoint's commit log covers, if it covers more than before."""
        if self._checkpoint is None:
            return
        batch = self._checkpoint.last_committed()
        if batch is None or batch <= self._acked_batch:
            return
        end = self._checkpoint.offsets(batch).get(self._options.subscriber)
        if end is None or self.acknowledge(end):
            self._acked_batch = batch

    def close(self) -> None:
        """Acknowledge the last batch and detach."""
        try:
            self.acknowledge_committed()
        except Fenced:
            log.warning("another driver has taken over; the last batch is its to acknowledge")
        finally:
            for gateway in self._gateways:
                self._try(gateway, gateway.close)


def _rewound(gateway: QuiverClient, first: int, position: Position) -> UnknownPosition:
    return UnknownPosition(
        f"the checkpoint goes back to bundle {first} of {gateway.name}, and everything before "
        f"{position.seq} was processed and acknowledged",
        hint="the checkpoint lost its last batches: restore it, or begin a new one; a query "
        "without state may go on with option on_rewind=trim",
    )
