"""A data node: replicas of many quivers in one directory, and what senders may ask of them.

It is no quiver, and opens no replica as one: that would give it a new id, and a reader's position
would resolve the holes between the parts that this node does not own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import NamedTuple

from holdfast import __version__
from holdfast.errors import BadInput, CannotOpen, DiskFull, HoldfastError, StorageFailed
from holdfast.node import layout
from holdfast.node.cold import ColdPart, ColdTier, hour_of, hour_start_ns
from holdfast.node.points import NodePoint
from holdfast.node.replica import FULL_RETRY_S, AdoptedPart, Incoming, Replica, failure
from holdfast.node.settings import DataNodeSettings
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.segments import manifest
from holdfast.replica.messages import (
    AnswerKind,
    DamagedPart,
    HealthPage,
    Holding,
    ListedPart,
    NodeHealth,
    PartAnswer,
    ScrubPage,
    digest,
    misdirected,
    page_of,
)
from holdfast.replica.part import (
    Part,
    PartId,
    content_checksum,
    part_id,
    part_of,
    require_quiver_id,
    slices,
)
from holdfast.replica.transport import FetchedPart
from holdfast.seam import Seam
from holdfast.seam.clock import SteadyTime
from holdfast.seam.disk import DISK_IS_FULL
from holdfast.seam.process import bind_to_process
from holdfast.seam.randomness import random_uuid

# A replica's folder is made for whoever may append; a node serves no more quivers than this.
QUIVERS_MAX = 10_000
# About how long one call of a scrub takes: whoever scrubs calls again and again.
SCRUB_PAGE_S = 1.0

log = logging.getLogger("holdfast.node")


class NodeStatistics(NamedTuple):
    """A moment's picture of a data node. Totals count since it was opened."""

    node_id: str
    version: str
    is_writable: bool
    min_free_bytes: int
    quivers: int
    parts: int
    size_bytes: int
    free_bytes: int
    adopted_total: int
    adopted_bytes_total: int
    removed_total: int
    # Of offers and puts, by kind.
    answers_total: dict[str, int]
    damaged: int
    damaged_bytes: int
    # How often a scrub came to the end of all parts.
    scrubs_total: int
    # Of the cold tier: what it put into its store, and how often it failed.
    cold_commits_total: int
    cold_parts_total: int
    cold_bytes_total: int
    cold_failures_total: int


class DataNode:
    """The directory of a data node, as long as this process serves it."""

    def __init__(
        self,
        root: PurePath,
        settings: DataNodeSettings | None = None,
        seam: Seam | None = None,
        cold: ColdTier | None = None,
    ) -> None:
        """Open the directory, or make it; raises with nothing held if that fails."""
        self.root = root
        self.settings = settings or DataNodeSettings()
        self._seam = seam or Seam()
        self._disk = self._seam.disk
        self._lock = threading.Lock()
        self._replicas: dict[str, Replica] = {}
        self._coming_bytes = 0
        self._cold = cold
        self._adopted = self._adopted_bytes = self._removed = self._scrubbed = 0
        self._cold_failures = 0
        self._answers = dict.fromkeys(AnswerKind, 0)
        self._known: tuple[tuple[int, ...], tuple[Holding, ...], str] | None = None
        self.boot_id = random_uuid(self._seam.randomness)
        bind_to_process(self)
        handle = None
        try:
            layout.make_folders(self._disk, root)
            handle = self._handle = layout.take_lock(self._disk, root)
            self.node_id = self._identity()
            self._open_replicas()
        except BaseException as error:
            if handle is not None:
                self._disk.unlock(handle)
            if not isinstance(error, OSError):
                raise
            raise CannotOpen(
                f"the data directory cannot be opened: {error.strerror}",
                hint="look after the disk and its rights; nothing that was stored is lost",
                path=str(root),
            ) from error
        self._time = SteadyTime(self._seam.clock)
        newest = [one.summary.max_ingestion_ns for one in self._all_parts()]
        if newest:
            self._time.doubt(max(newest), self.settings.clock_grace)

    def close(self) -> None:
        """Let go of the directory; the calls that are going on must have ended."""
        if self._cold is not None:
            self._cold.close()
        self._disk.unlock(self._handle)

    def _identity(self) -> str:
        """Return who this node is, for as long as its directory lives.

        If NODE is lost, it is another node: senders hold what they have for it until an operator
        says that it is the same (`rebind`), because it may be another disk.
        """
        path = self.root / layout.NODE
        fields = layout.read_record(self._disk, path)
        if fields is not None:
            # The process that wrote it may have died before its name was durable.
            self._disk.sync_dir(self.root, NodePoint.RECOVER_SYNC_DIR)
            return str(fields["node_id"])
        if self._disk.exists(path):
            log.error("%s is damaged: this node has a new id, and senders must rebind it", path)
        node_id = random_uuid(self._seam.randomness)
        temporary = self.root / layout.NODE_TEMPORARY
        layout.write_record(self._disk, path, temporary, {"node_id": node_id}, at="node.identity")
        return node_id

    def _open_replicas(self) -> None:
        folder = self.root / layout.REPLICAS_DIR
        for entry in self._disk.list(folder):
            try:
                require_quiver_id(entry.name)
            except BadInput:
                log.warning("%s is none of a data node's folders; it is left alone", entry.name)
                continue
            self._replicas[entry.name] = Replica(self._disk, folder / entry.name, entry.name)

    # --------------------------------------------------------------------- parts

    def misdirected(self, meant_id: str, parts: Sequence[Part]) -> list[PartAnswer]:
        """Return the answers for parts that were meant for another node; none if for this one."""
        return [self._counted(one) for one in misdirected(self.node_id, meant_id, parts)]

    def offer(self, parts: Sequence[Part]) -> list[PartAnswer]:
        """Say for each part whether it is needed."""
        return [self._counted(self._offer(part)) for part in parts]

    def _offer(self, part: Part) -> PartAnswer:
        if part.segment_version not in manifest.READABLE_VERSIONS:
            known = ", ".join(map(str, manifest.READABLE_VERSIONS))
            reason = f"segment version {part.segment_version}; this node reads {known}"
            return PartAnswer(part.id, AnswerKind.REJECT, reason)
        if gone := self._gone():
            return PartAnswer(part.id, AnswerKind.BUSY, gone, FULL_RETRY_S)
        replica = self._replicas.get(part.id.quiver_id)
        answer = (
            PartAnswer(part.id, AnswerKind.NEED) if replica is None else replica.answer(part.id)
        )
        if answer.kind is AnswerKind.NEED:
            is_repaired = replica is not None and replica.is_damaged(part.id)
            reason = self._no_room(part.size_bytes)
            if not is_repaired:
                reason = reason or self._too_damaged()
            if reason:
                return PartAnswer(part.id, AnswerKind.BUSY, reason, FULL_RETRY_S)
        return answer

    @contextmanager
    def receiving(self, part: Part) -> Iterator[Incoming | PartAnswer]:
        """Take a part in, if it is needed and there is room; else yield the answer why not."""
        offered = self._offer(part)
        if offered.kind is not AnswerKind.NEED:
            yield self._counted(offered)
            return
        try:
            replica = self._replica(part.id.quiver_id)
        except (HoldfastError, OSError) as error:
            yield self._counted(failure(part.id, error))
            return
        # Counted before a byte is there: several senders put at the same time, and each would find
        # the same free space.
        with self._lock:
            self._coming_bytes += part.size_bytes
        try:
            with replica.receiving(part) as incoming:
                if isinstance(incoming, PartAnswer):
                    self._counted(incoming)
                yield incoming
        finally:
            with self._lock:
                self._coming_bytes -= part.size_bytes

    def commit(self, incoming: Incoming) -> PartAnswer:
        """Adopt a part that came in, and return the answer for its sender."""
        part = incoming.part
        try:
            incoming.commit()
        except (HoldfastError, OSError) as error:
            answer = failure(part.id, error)
            log.warning("part %s was not adopted: %s", part.id, answer.reason)
            return self._counted(answer)
        with self._lock:
            self._adopted += 1
            self._adopted_bytes += part.size_bytes
        return self._counted(PartAnswer(part.id, AnswerKind.ACK))

    def fail(self, incoming: Incoming, error: HoldfastError | OSError) -> PartAnswer:
        """Return the answer for a part whose bytes could not be taken."""
        return self._counted(failure(incoming.part.id, error))

    def tell_not_owned(self, quiver_id: str, ranges: IntervalSet) -> None:
        """Note which seqs of a quiver are none of this node's; durable when it returns."""
        try:
            self._replica(quiver_id).set_not_owned(ranges)
        except OSError as error:
            kind = DiskFull if error.errno in DISK_IS_FULL else StorageFailed
            raise kind(
                f"the node's disk failed: {error.strerror}",
                hint="nothing is lost; say it again later, and look after the node's disk",
                path=str(self.root),
            ) from error

    def fetch(self, wanted: PartId) -> FetchedPart:
        """Return a part that is here, and its bytes."""
        replica = self.replica(wanted.quiver_id)
        part, folder = replica.part(wanted)
        return FetchedPart(part, slices(self._disk, folder, part))

    def listed(self, quiver_id: str, ranges: IntervalSet) -> Iterator[ListedPart]:
        """Yield the parts that have seqs of some ranges, in order, with their checksums."""
        replica = self._replicas.get(quiver_id)
        for one in () if replica is None else replica.parts():
            found = part_id(one.summary)
            if ranges.overlaps(found.first_seq, found.end_seq):
                with suppress(FileNotFoundError):  # it is removed at this moment
                    part = part_of(self._disk, one.folder, one.summary)
                    yield ListedPart(part, content_checksum(one.summary))

    def replica(self, quiver_id: str) -> Replica:
        """Return the replica of a quiver that is here; raise `BadInput` if none is."""
        found = self._replicas.get(quiver_id)
        if found is None:
            raise BadInput(
                f"no part of quiver {quiver_id!r} is here",
                hint="`health` lists the quivers that this node has parts of",
            )
        return found

    def replicas(self) -> list[Replica]:
        """Return the replicas of all quivers."""
        with self._lock:
            return list(self._replicas.values())

    def _replica(self, quiver_id: str) -> Replica:
        """Return the replica of a quiver; it is made if there is none."""
        with self._lock:
            found = self._replicas.get(quiver_id)
            if found is None:
                require_quiver_id(quiver_id)
                if len(self._replicas) >= QUIVERS_MAX:
                    raise BadInput(
                        f"this node has parts of {QUIVERS_MAX} quivers",
                        hint="use another node for more",
                    )
                folder = self.root / layout.REPLICAS_DIR / quiver_id
                found = self._replicas[quiver_id] = Replica(self._disk, folder, quiver_id)
            return found

    def _counted(self, answer: PartAnswer) -> PartAnswer:
        with self._lock:
            self._answers[answer.kind] += 1
        return answer

    # -------------------------------------------------------------------- health

    def health(self, page: HealthPage | None = None, known_digest: str = "") -> NodeHealth:
        """Return a page of what this node says of itself; no holdings if the caller has them.

        Without its directory it says nothing: what it knows of its parts may be true no more.
        """
        if gone := self._gone():
            raise StorageFailed(
                gone,
                hint="bring the directory back where it was, or start the node where it is now",
                path=str(self.root),
            )
        holdings, whole = self._holdings()
        shown: tuple[Holding, ...] = ()
        following = None
        if whole != known_digest or page is not None:
            shown, following = page_of(holdings, page)
        # While too much is damaged, senders go on to offer: sound copies of that are taken.
        reason = self._no_room(0)
        return NodeHealth(
            self.node_id,
            self.boot_id,
            __version__,
            manifest.READABLE_VERSIONS,
            self._free_bytes(),
            not reason,
            whole,
            shown,
            following,
            reason,
        )

    def _holdings(self) -> tuple[tuple[Holding, ...], str]:
        """Return what is here and its digest; made anew only if something changed.

        Every sender asks every few seconds, and a node may hold a million parts. The counters of
        changes are compared instead, and a caller that names the digest it knows is sent nothing.
        """
        replicas = self.replicas()
        changes = tuple(one.changes for one in replicas)
        known = self._known
        if known is None or known[0] != changes:
            holdings = tuple(one.holding() for one in replicas)
            known = self._known = changes, holdings, digest(holdings)
        return known[1], known[2]

    def _no_room(self, size_bytes: int) -> str:
        """Say why nothing of this size is taken now; empty if it is.

        Before the disk is full, not when it is: a part that fails in the middle was sent for
        nothing, and `seen` must still be writable for anything to be removed.
        """
        free_bytes = self._free_bytes()
        if free_bytes - self._coming_bytes - size_bytes >= self.settings.min_free:
            return ""
        kept = self.settings.min_free
        return f"{free_bytes} bytes are free, and {kept} are kept free (min_free): make room"

    def _gone(self) -> str:
        """Say that the directory is not where it was; empty if it is."""
        if self._disk.exists(self.root / layout.NODE):
            return ""
        return "the data directory is gone: it was moved, unmounted or deleted while it was served"

    def _free_bytes(self) -> int:
        try:
            return self._disk.free_bytes(self.root)
        except OSError:
            return 0

    def _too_damaged(self) -> str:
        """Say why nothing new is taken although there is room; empty if it is.

        A disk that damages so much is not to be trusted with more; and nothing in quarantine is
        removed before a sound copy came, because it may be the last.
        """
        replicas, most = self.replicas(), self.settings
        parts = sum(one.damaged for one in replicas)
        size_bytes = sum(one.damaged_bytes for one in replicas) if parts else 0
        if parts > most.quarantine_max_parts:
            bound = f"{most.quarantine_max_parts} (quarantine_max_parts)"
        elif size_bytes > most.quarantine_max_size:
            bound = f"{most.quarantine_max_size} bytes (quarantine_max_size)"
        else:
            return ""
        return (
            f"{parts} damaged parts of {size_bytes} bytes wait for sound copies, more than "
            f"{bound}; repair them, or take them out of quarantine"
        )

    def refusal(self) -> str:
        """Say why nothing new is taken now; empty if parts are."""
        return self._gone() or self._no_room(0) or self._too_damaged()

    def findings(self) -> list[str]:
        """Return what was found wrong when the directory was opened."""
        return [f"{one.quiver_id}: {what}" for one in self.replicas() for what in one.findings]

    def statistics(self) -> NodeStatistics:
        """Return a picture of this moment."""
        parts, replicas, is_writable = self._all_parts(), self.replicas(), not self.refusal()
        with self._lock:
            return NodeStatistics(
                self.node_id,
                __version__,
                is_writable,
                self.settings.min_free,
                len(self._replicas),
                len(parts),
                sum(one.size_bytes for one in parts),
                self._free_bytes(),
                self._adopted,
                self._adopted_bytes,
                self._removed,
                {str(kind): count for kind, count in self._answers.items()},
                sum(one.damaged for one in replicas),
                sum(one.damaged_bytes for one in replicas),
                self._scrubbed,
                self._cold.commits_total if self._cold else 0,
                self._cold.parts_total if self._cold else 0,
                self._cold.bytes_total if self._cold else 0,
                self._cold_failures,
            )

    # ----------------------------------------------------------------- retention

    def sweep(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Remove what is past its age or over the size; return how many parts that were.

        With a cold tier, only what is in its store for good by then.
        """
        for replica in self.replicas():
            replica.look_at_quarantine()
        if self.settings.max_age is None and self.settings.max_size is None:
            return 0
        going = list(self._going(self._all_parts()))
        if self._cold is None:
            return self._remove(going)
        hours: dict[int, list[AdoptedPart]] = {}
        for one in going:
            hours.setdefault(hour_of(one.summary.max_ingestion_ns), []).append(one)
        return sum(
            self._remove(self._stored_cold(self._cold, hour, parts, stopping))
            for hour, parts in sorted(hours.items())
            if not stopping()
        )

    def _stored_cold(
        self, cold: ColdTier, hour: int, parts: Sequence[AdoptedPart], stopping: Callable[[], bool]
    ) -> list[AdoptedPart]:
        """Return which parts of an hour are in the cold tier's store now; none while it fails."""
        try:
            kept = set(cold.keep(self.node_id, hour, [self._cold_part(p) for p in parts], stopping))
        except (HoldfastError, OSError) as error:
            with self._lock:
                self._cold_failures += 1
            log.warning("the cold tier fails, and parts stay here meanwhile: %s", error)
            return []
        return [one for one in parts if part_id(one.summary) in kept]

    def _cold_part(self, one: AdoptedPart) -> ColdPart:
        replica = self.replica(one.summary.quiver_id)
        part = part_of(self._disk, one.folder, one.summary)
        return ColdPart(part, self._disk, one.folder, lambda: replica.check(one) is None)

    def _remove(self, going: Sequence[AdoptedPart]) -> int:
        removed = 0
        folders = {one.folder for one in going}
        # Replica by replica, because each notes what it has seen before it removes anything. What a
        # disk refuses now is still there for the next sweep.
        for replica in self.replicas():
            parts = [one for one in replica.parts() if one.folder in folders]
            try:
                replica.remove(parts)
            except OSError as error:
                log.warning("parts cannot be removed now: %s", error.strerror)
                continue
            removed += len(parts)
        with self._lock:
            self._removed += removed
        if removed:
            log.info("%d parts removed: past max_age, or over max_size", removed)
        return removed

    def _going(self, parts: Sequence[AdoptedPart]) -> Iterator[AdoptedPart]:
        """Yield what is past its age, and the oldest beyond the size.

        With a cold tier a part is past its age when all of its hour is: an hour is one commit.
        """
        size_bytes = sum(one.size_bytes for one in parts)
        oldest_ns = self._time.age_now_ns() - int((self.settings.max_age or 0) * 1e9)
        if self._cold is not None:
            oldest_ns = hour_start_ns(hour_of(oldest_ns))
        # The oldest first, and no further than the first that stays: by then everything behind it
        # is younger, and the size fits.
        for one in sorted(parts, key=lambda one: one.summary.max_ingestion_ns):
            is_old = self.settings.max_age and one.summary.max_ingestion_ns < oldest_ns
            is_over = self.settings.max_size is not None and size_bytes > self.settings.max_size
            if not (is_old or is_over):
                return
            yield one
            size_bytes -= one.size_bytes

    def _all_parts(self) -> list[AdoptedPart]:
        return [part for replica in self.replicas() for part in replica.parts()]

    # --------------------------------------------------------------------- scrub

    def scrub(self, after: PartId | None = None, budget_s: float = SCRUB_PAGE_S) -> ScrubPage:
        """Read every byte of some parts, behind one, for about so long; at least of one part.

        What is damaged is set aside: it is needed again, and may be offered or repaired.
        """
        give_up_s = self._seam.clock.monotonic_s() + budget_s
        parts = size_bytes = 0
        damaged: list[DamagedPart] = []
        last: PartId | None = None
        for replica in sorted(self.replicas(), key=lambda one: one.quiver_id):
            if after is not None and replica.quiver_id < after.quiver_id:
                continue
            damaged += replica.set_aside_known()
            for one in replica.parts():
                found = part_id(one.summary)
                if after is not None and found <= after:
                    continue
                # Never before the first: a page with no part would not move the caller on.
                if last is not None and self._seam.clock.monotonic_s() >= give_up_s:
                    return ScrubPage(parts, size_bytes, tuple(damaged), last)
                fault = replica.check(one)
                damaged += [] if fault is None else [fault]
                parts, size_bytes, last = parts + 1, size_bytes + one.size_bytes, found
        with self._lock:
            self._scrubbed += 1
        return ScrubPage(parts, size_bytes, tuple(damaged))
