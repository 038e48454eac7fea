"""The planner: where the next batch ends, what it claims, and what is acknowledged.

Everything it knows is in the offsets it is given, in the quivers' ledgers and in Spark's commit
log, so that a new process plans as the old one would have. It is asked many times a second: a
question that finds nothing new costs no disk writes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.gateway import Gateway, Piece, Planned
from holdfast.dataflow.source.offset import Offset
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.reading import Claimed, SourcePartition, split
from holdfast.dataflow.watermark.claims import END_OF_TIME_US, Claim, Claims, Silence
from holdfast.dataflow.watermark.statement import Statement
from holdfast.errors import Fenced, HoldfastError, OwnerGone, UnknownPosition, WrongQuiver
from holdfast.seam import Seam

log = logging.getLogger("holdfast.dataflow")


class Planner:
    """Plans the batches of one stream over its gateways. One thread."""

    def __init__(
        self,
        options: SourceOptions,
        gateways: Sequence[Gateway],
        checkpoint: Checkpoint | None,
        seam: Seam,
    ) -> None:
        self.claim: Claim | None = None
        self._options = options
        self._gateways = {gateway.quiver_id: gateway for gateway in gateways}
        self._checkpoint = checkpoint
        self._seam = seam
        self._claims: Claims | None = None
        self._silent_since_us: dict[str, int] = {}
        # Where an `availableNow` run ends, by quiver.
        self._targets: dict[str, int] | None = None
        self._heartbeat_s = -options.heartbeat_every
        self._acked_batch = -1
        self.acknowledge_committed()

    def initial(self) -> Offset:
        """Return the subscribers' own places."""
        seqs = {quiver_id: gateway.position() for quiver_id, gateway in self._gateways.items()}
        return Offset(self._options.subscriber, seqs)

    def stop_at_newest(self) -> None:
        """Plan nothing beyond what is there now."""
        self._targets = {one: gateway.newest() for one, gateway in self._gateways.items()}

    # ----------------------------------------------------------------- planning

    def next(self, start: Offset, max_rows: int) -> Offset:
        """Return where the batch from `start` on ends; `start` if there is no reason for one."""
        self.acknowledge_committed()
        start = self._with_new_quivers(start)
        planned = self._plan(start, max_rows)
        seqs = dict(start.seqs) | {one: plan.end_seq for one, plan in planned.items()}
        newest = [plan.newest_us for plan in planned.values() if plan.newest_us is not None]
        end = replace(start, seqs=seqs, newest_us=max([start.newest_us, *newest]))
        if not self._options.watermark:
            return end
        claim_us = self._claim(start, end)
        if planned:
            return replace(end, claim_us=claim_us)
        if self._is_heartbeat_due(end, claim_us):
            return replace(end, claim_us=claim_us, heartbeat=end.heartbeat + 1)
        return end

    def _with_new_quivers(self, start: Offset) -> Offset:
        """Return the offset with quivers that were added since; refuse one that is of others."""
        unknown = sorted(set(start.seqs) - set(self._gateways))
        if unknown or start.subscriber != self._options.subscriber:
            mine = ", ".join(sorted(f"{g.quiver_id} ({g.name})" for g in self._gateways.values()))
            raise WrongQuiver(
                f"the checkpoint is of subscriber {start.subscriber!r} and the quivers "
                f"{', '.join(sorted(start.seqs))}; this query reads {mine} as "
                f"{self._options.subscriber!r}",
                hint="name the quivers and the subscriber as before, or use a new checkpoint",
            )
        new = {one: g.position() for one, g in self._gateways.items() if one not in start.seqs}
        return replace(start, seqs={**start.seqs, **new}) if new else start

    def _plan(self, start: Offset, max_rows: int) -> dict[str, Planned]:
        planned: dict[str, Planned] = {}
        rows, size_bytes = max_rows, self._options.max_bytes
        for quiver_id, gateway in self._gateways.items():
            target = None if self._targets is None else self._targets.get(quiver_id)
            # Each gets its part of what is left: one that is far behind must not starve the others.
            others = len(self._gateways) - len(planned)
            try:
                plan = gateway.plan(
                    start.seqs[quiver_id], target, max(1, rows // others), size_bytes // others or 1
                )
            except OwnerGone as error:
                self._is_silent(gateway, error)
                continue
            if plan is not None:
                planned[quiver_id] = plan
                rows = max(0, rows - plan.events)
        return planned

    # ---------------------------------------------------------------- watermark

    def _claim(self, start: Offset, end: Offset) -> int:
        if self._claims is None or self._claims.claimed_us < start.claim_us:
            self._claims = Claims(self._options.claims, start.claim_us)
        # Rows that may fail and come again hold the claim while their batch runs.
        position = start if self._options.retries else end
        heard = {
            gateway.name: self._ask(gateway, position.seqs[quiver_id], start.claim_us)
            for quiver_id, gateway in self._gateways.items()
        }
        self.claim = self._claims.update(heard)
        if self._options.close and self._targets is not None and start.seqs == end.seqs:
            self.claim = self._claims.close()
        return self.claim.us

    def _ask(self, gateway: Gateway, seq: int, claimed_us: int) -> Statement | Silence:
        try:
            said = gateway.statement(seq, claimed_us)
        except OwnerGone as error:
            return self._is_silent(gateway, error)
        self._silent_since_us.pop(gateway.name, None)
        return said

    def _is_silent(self, gateway: Gateway, error: HoldfastError) -> Silence:
        now_us = self._seam.clock.wall_ns() // 1000
        if gateway.name not in self._silent_since_us:
            log.warning("%s does not answer: %s", gateway.name, error.message)
        return Silence(self._silent_since_us.setdefault(gateway.name, now_us))

    def _is_heartbeat_due(self, end: Offset, claim_us: int) -> bool:
        """Whether windows may be waiting for a claim that no row will carry."""
        if claim_us <= end.claim_us:
            return False
        if claim_us == END_OF_TIME_US:
            return True
        if self._options.horizon is None or self._targets is not None:
            return False
        closes_us = end.newest_us + int(self._options.horizon * 1e6)
        now_s = self._seam.clock.monotonic_s()
        is_paused = now_s < self._heartbeat_s + self._options.heartbeat_every
        if end.claim_us >= closes_us or is_paused:
            return False
        self._heartbeat_s = now_s
        return True

    # ------------------------------------------------------------------ reading

    def partitions(self, start: Offset, end: Offset) -> list[SourcePartition]:
        """Return what executors read of a batch, the same for the same offsets."""
        start = self._with_new_quivers(start)
        pieces: list[Piece] = []
        for quiver_id, gateway in self._gateways.items():
            first, last = start.seqs[quiver_id], end.seqs.get(quiver_id, start.seqs[quiver_id])
            first = self._unread(gateway, first, last)
            if first < last:
                gateway.replan(first, last)
                pieces += gateway.pieces(first, last)
        claimed = Claimed(end.claim_us, start.claim_us) if self._options.watermark else None
        groups = split(pieces, self._options.partition_bytes)
        partitions = [SourcePartition(group, claimed) for group in groups]
        if claimed is not None:
            # In every batch: filters may leave none of its rows to carry the claim.
            partitions = partitions or [SourcePartition((), claimed)]
            partitions[0].control = True
        return partitions

    def _unread(self, gateway: Gateway, first: int, last: int) -> int:
        """Return where a batch begins, of what is not acknowledged."""
        position = gateway.position()
        if position <= first or first == last:
            return first
        if self._options.on_rewind == "trim":
            log.warning(
                "%s: the checkpoint goes back to %d, and all before %d is done: left out",
                gateway.name, first, position,
            )  # fmt: skip
            return min(position, last)
        raise UnknownPosition(
            f"the checkpoint goes back to bundle {first} of {gateway.name}, and everything before "
            f"{position} was processed and acknowledged",
            hint="the checkpoint lost its last batches: restore it, or begin a new one; a query "
            "without state may go on with option on_rewind=trim",
        )

    # ------------------------------------------------------------ acknowledging

    def acknowledge(self, end: Offset) -> None:
        """Acknowledge everything before an offset that is committed."""
        for quiver_id, gateway in self._gateways.items():
            if quiver_id in end.seqs:
                try:
                    gateway.acknowledge(end.seqs[quiver_id])
                except OwnerGone as error:
                    self._is_silent(gateway, error)  # the next one covers it

    def acknowledge_committed(self) -> None:
        """Acknowledge what the checkpoint's commit log covers, if it covers more than before."""
        if self._checkpoint is None:
            return
        batch = self._checkpoint.last_committed()
        if batch is None or batch <= self._acked_batch:
            return
        end = self._checkpoint.offsets(batch).get(self._options.subscriber)
        if end is not None:
            self.acknowledge(end)
        self._acked_batch = batch

    def close(self) -> None:
        """Acknowledge the last batch and detach."""
        try:
            self.acknowledge_committed()
        except Fenced:
            log.warning("another driver has taken over; the last batch is its to acknowledge")
        finally:
            for gateway in self._gateways.values():
                gateway.close()
