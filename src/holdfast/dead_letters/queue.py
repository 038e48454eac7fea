"""The dead letter queue: two quivers beside the buffer, for what cannot be accepted or delivered.

    rejected/      input that was never accepted. Its producer was told so, and still has it: this
                   copy is a service. It has a rate and a cap, and at the cap the oldest goes, so
                   that a flood of bad events takes neither the disk nor its syncs from good ones.
    undelivered/   accepted events that one destination will never take. Nobody else has them:
                   nothing goes but by an operator's word, and when it is full the destination
                   stalls.

A letter is a bundle of its own, because an outcome in the ledger belongs to a bundle. In both
quivers the subscriber `keeper` waits for every letter and never reads: what it has not resolved is
what the queue holds. Without it a quiver would remove a letter as soon as the handlers that
follow `rejected` have seen it. A fixed, replayed or purged letter is resolved for the keeper, with
the reason, and so leaves the count.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from holdfast.dead_letters.letter import Letter
from holdfast.errors import BundleTooLarge, NotAccepted
from holdfast.quiver import (
    AppendConfig,
    Quiver,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    TransactionConfig,
    WalConfig,
)
from holdfast.seam import Seam
from holdfast.seam.clock import Clock
from holdfast.seam.process import bind_to_process
from holdfast.seam.rate import TokenBucket
from holdfast.settings import DurationS, FileSettings, Settings, SizeBytes


class RateLimit:
    """A bucket of events and one of bytes, each filled at its rate up to `burst_s` seconds' worth.

    A letter is taken while both hold something, and what it takes may leave a debt: so one that is
    larger than the whole bucket is taken too, and those behind it wait the longer.
    """

    def __init__(
        self, clock: Clock, events_per_s: float, bytes_per_s: float, burst_s: float
    ) -> None:
        self._events = TokenBucket(events_per_s, max(1.0, events_per_s * burst_s), clock)
        self._bytes = TokenBucket(bytes_per_s, max(1.0, bytes_per_s * burst_s), clock)

    def take(self, size_bytes: int) -> bool:
        """Take one letter, if the rates allow it now."""
        if self._events.wait_s() > 0 or self._bytes.wait_s() > 0:
            return False
        self._events.charge(1)
        self._bytes.charge(size_bytes)
        return True


REJECTED_DIR = "rejected"
UNDELIVERED_DIR = "undelivered"
KEEPER = "keeper"

MB = 1024 * 1024
# Letters trickle in: a segment of a few every five seconds would be more framing than letters.
SEGMENT_BYTES = 4 * MB
SEGMENT_OPEN_S = 300.0
# Of the queue's cap; what is written must also fit once more, while it is sealed.
LETTER_SHARE_MAX = 8
# What the headers of a letter add to its payload, with room to spare.
ENVELOPE_BYTES = 512 * 1024
# Letters that are stored together; more wait for the next group.
GROUP_LETTERS_MAX = 100
# Calls of `reject` that wait for the disk; one more is refused. While it stalls, requests with bad
# events must not hold all the places that good ones need.
WAITING_MAX = 64
# Reasons and destinations that are counted apart; the rest is counted as "other".
LABELS_MAX = 64
# How often a flood of refused letters is logged.
WARNING_INTERVAL_S = 60.0

log = logging.getLogger("holdfast.dead_letters")


class _QueueSettings(FileSettings):
    """What both quivers of the queue have."""

    letter_bytes_by_default: ClassVar[int] = 16 * MB

    max_bytes: SizeBytes = Field(default=256 * MB, ge=32 * MB)
    """Everything stored, together. At least 32 MB."""
    max_letter_bytes: SizeBytes | None = Field(default=None, ge=1)
    """The largest event that is kept, at most an eighth of `max_size`. By default 16 MB, or that
    eighth if it is less."""
    timeout_s: DurationS = Field(default=5.0, gt=0)
    """How long a letter may take to be on stable storage."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.max_letter_bytes or 0) > self.max_bytes // LETTER_SHARE_MAX:
            raise ValueError("max_letter_size must be at most an eighth of max_size")
        return self

    @property
    def largest_bytes(self) -> int:
        """The largest event that is kept."""
        by_default = min(self.letter_bytes_by_default, self.max_bytes // LETTER_SHARE_MAX)
        return self.max_letter_bytes or by_default


class RejectedSettings(_QueueSettings):
    """Input that was never accepted. Over a bound it is counted, and not kept."""

    max_age_s: DurationS = Field(default=14 * 24 * 3600.0, gt=0)
    """How long a letter is kept."""
    events_per_s: float = Field(default=200.0, gt=0)
    """Letters per second that are kept, on average."""
    bytes_per_s: SizeBytes = Field(default=4 * MB, ge=1)
    """Bytes per second that are kept, on average."""
    burst_s: DurationS = Field(default=10.0, gt=0)
    """A burst may bring this many seconds' worth of both."""


class UndeliveredSettings(_QueueSettings):
    """Accepted events that a destination will not take. Full, the destination stalls."""

    letter_bytes_by_default: ClassVar[int] = 64 * MB

    max_bytes: SizeBytes = Field(default=1024 * MB, ge=32 * MB)
    """Everything stored, together. At least 32 MB."""
    max_letter_bytes: SizeBytes | None = Field(default=None, ge=1)
    """The largest event that is kept, at most an eighth of `max_size`. By default 64 MB, or that
    eighth if it is less. A larger one stalls its destination: receivers should accept none."""
    timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long a letter may take to be on stable storage."""


class DeadLettersSettings(Settings):
    """Where events go that cannot go on."""

    rejected: RejectedSettings = RejectedSettings()
    """Input that was never accepted."""
    undelivered: UndeliveredSettings = UndeliveredSettings()
    """Accepted events that a destination will never take."""


class StoreStatistics(NamedTuple):
    """One of the two quivers at this moment. Totals count since it was opened."""

    # What lies there and is not resolved.
    events: int
    size_bytes: int
    # None if nothing lies there.
    oldest_age_s: float | None
    # On disk, and at most.
    used_bytes: int
    max_bytes: int
    # Filed, by (destination, reason); the destination is "" for what was never accepted.
    filed: dict[tuple[str, str], int]
    # Not filed, by why: rate, too_large, store (it did not take them), busy (too many wait for it).
    refused: dict[str, int]
    # Ever, from the ledger: what the cap and the age took unseen, and what operators decided.
    dropped: int
    expired: int
    resolved: int


class DeadLettersStatistics(NamedTuple):
    """The whole queue at this moment."""

    rejected: StoreStatistics
    undelivered: StoreStatistics


class _Counters:
    """Totals with a bounded number of labels."""

    def __init__(self) -> None:
        self.filed: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()

    def count_filed(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            label = (letter.destination or "", letter.reason)
            known = label in self.filed or len(self.filed) < LABELS_MAX
            self.filed[label if known else ("other", "other")] += 1


class DeadLetterQueue:
    """Both quivers. One event loop uses them; they may be read from anywhere."""

    def __init__(
        self, rejected: Quiver, undelivered: Quiver, settings: DeadLettersSettings, seam: Seam
    ) -> None:
        """Use `DeadLetterQueue.open`."""
        # Failed-event handlers are subscribers of this one.
        self.rejected = rejected
        self.undelivered_quiver = undelivered
        self.settings = settings
        # Held while undelivered letters are sent again, so that none is sent twice.
        self.replaying = asyncio.Lock()
        bind_to_process(self)
        self._clock = seam.clock
        limits = settings.rejected
        self._rate = RateLimit(seam.clock, limits.events_per_s, limits.bytes_per_s, limits.burst_s)
        self._rejected_counters, self._undelivered_counters = _Counters(), _Counters()
        self._waiting = 0
        self._warned_s: float | None = None

    @classmethod
    def open(
        cls,
        directory: str | Path,
        settings: DeadLettersSettings | None = None,
        *,
        seam: Seam | None = None,
    ) -> Self:
        """Open the queue in a directory, making it if need be, and recover what a crash left."""
        settings, seam = settings or DeadLettersSettings(), seam or Seam()
        root = PurePath(directory)
        rejected = _open(root / REJECTED_DIR, rejected_config(settings.rejected), seam)
        try:
            config = undelivered_config(settings.undelivered)
            undelivered = _open(root / UNDELIVERED_DIR, config, seam)
        # The first quiver holds its lock and its threads. Without closing it, trying again in this
        # process would find the directory taken by itself.
        except BaseException:
            rejected.close()
            raise
        return cls(rejected, undelivered, settings, seam)

    # ------------------------------------------------------------------- filing

    async def reject(self, letters: Sequence[Letter]) -> bool:
        """File input that was not accepted; True once all of it is on stable storage.

        False if a letter was over the rate or too large, or the store did not take it: then it is
        counted, and only its producer has it.
        """
        limits, counters = self.settings.rejected, self._rejected_counters
        taken, filed = [], 0
        for letter in letters:
            if len(letter.payload) > limits.largest_bytes:
                counters.refused["too_large"] += 1
            elif not self._rate.take(len(letter.payload)):
                counters.refused["rate"] += 1
            else:
                taken.append(letter)
        if len(taken) < len(letters):
            self._warn("over dead_letters.rejected.events_per_s, bytes_per_s or max_letter_size")
        # Checked after the rates: their tokens are spent, which errs on the side of keeping less
        # while the disk is slow.
        if self._waiting >= WAITING_MAX:
            counters.refused["busy"] += len(taken)
            self._warn("the disk is too slow")
            return not letters
        self._waiting += 1
        try:
            for group in _groups(taken, limits.largest_bytes):
                filed += await self._file_rejected(group)
        finally:
            self._waiting -= 1
        return filed == len(letters)

    async def _file_rejected(self, group: Sequence[Letter]) -> int:
        """File letters together; return how many are filed: all, or none."""
        try:
            await _append(self.rejected, group)
        except NotAccepted as error:
            self._rejected_counters.refused["store"] += len(group)
            self._warn(error.message)
            return 0
        self._rejected_counters.count_filed(group)
        return len(group)

    async def undelivered(self, letters: Sequence[Letter]) -> None:
        """File accepted events that a destination will not take; returns once they are durable.

        Raises `NotAccepted` if there is no room or the disk failed: the caller still has them, and
        must not continue without them. Filed again, they may be there twice.
        """
        limits = self.settings.undelivered
        for group in _groups(letters, limits.largest_bytes):
            try:
                await _append(self.undelivered_quiver, group)
            except NotAccepted:
                self._undelivered_counters.refused["store"] += len(group)
                raise
            except BundleTooLarge as error:
                # `_groups` puts an oversized letter into a group of its own. Groups before it are
                # stored already: a repetition stores those twice, and loses none.
                self._undelivered_counters.refused["too_large"] += len(group)
                raise NotAccepted(
                    f"an event is over {limits.largest_bytes} bytes, the largest that "
                    "dead letters keep",
                    hint="raise dead_letters.undelivered.max_letter_size",
                ) from error
            self._undelivered_counters.count_filed(group)

    def _warn(self, why: str) -> None:
        """Say that letters are not kept, now and then."""
        now_s = self._clock.monotonic_s()
        if self._warned_s is None or now_s - self._warned_s >= WARNING_INTERVAL_S:
            self._warned_s = now_s
            refused = sum(self._rejected_counters.refused.values())
            log.warning("rejected events are not kept, %d so far: %s", refused, why)

    # ---------------------------------------------------------------- operating

    def keep_only(self, handlers: Collection[str]) -> None:
        """Forget subscribers of `rejected` that are no longer configured: they hold data back."""
        for name in self.rejected.subscribers():
            if name != KEEPER and name not in handlers:
                self.rejected.unregister(name, reason="no longer configured")

    def statistics(self) -> DeadLettersStatistics:
        """Return a snapshot."""
        return DeadLettersStatistics(
            _statistics(self.rejected, self._rejected_counters),
            _statistics(self.undelivered_quiver, self._undelivered_counters),
        )

    def close(self) -> None:
        """Make everything filed durable, and release the directory."""
        try:
            self.rejected.close()
        finally:
            self.undelivered_quiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# Its name in versions before.
DeadLetters = DeadLetterQueue


# ------------------------------------------------------------------------ stores


def rejected_config(settings: RejectedSettings) -> QuiverConfig:
    """Return the quiver for what was never accepted."""
    return _config(settings, drop_oldest=True, max_age_s=settings.max_age_s)


def undelivered_config(settings: UndeliveredSettings) -> QuiverConfig:
    """Return the quiver for what must not be lost."""
    return _config(settings, drop_oldest=False, max_age_s=None)


def _config(
    settings: _QueueSettings, *, drop_oldest: bool, max_age_s: float | None
) -> QuiverConfig:
    return QuiverConfig(
        append=AppendConfig(
            max_bundle_bytes=settings.largest_bytes + ENVELOPE_BYTES,
            max_pending_bytes=settings.largest_bytes + ENVELOPE_BYTES,
            timeout_s=settings.timeout_s,
        ),
        wal=WalConfig(file_size_bytes=SEGMENT_BYTES),
        segment=SegmentConfig(target_size_bytes=SEGMENT_BYTES, max_open_duration_s=SEGMENT_OPEN_S),
        transactions=TransactionConfig(max_staged_bytes=settings.max_bytes // 2),
        retention=RetentionConfig(
            size_cap_bytes=settings.max_bytes,
            size_cap_policy="drop_oldest" if drop_oldest else "backpressure",
            max_age_s=max_age_s,
            # The keeper never attaches, and never goes.
            orphan_ttl_s=None,
        ),
    )


def _open(path: PurePath, config: QuiverConfig, seam: Seam) -> Quiver:
    quiver = Quiver.open(path, config, seam=seam)
    _ensure_keeper(quiver)
    return quiver


def _ensure_keeper(quiver: Quiver) -> None:
    """Register the keeper, unless it is: also after an operator dropped it.

    Asked again with every look at the statistics, since an operator can unregister any subscriber,
    and from then on letters would be removed unseen.
    """
    if KEEPER not in quiver.subscribers():
        quiver.register(KEEPER)


def _groups(letters: Sequence[Letter], max_bytes: int) -> Iterator[list[Letter]]:
    """Yield the letters in order, in groups that one transaction takes."""
    group: list[Letter] = []
    size_bytes = 0
    for letter in letters:
        if group and (
            size_bytes + len(letter.payload) > max_bytes or len(group) == GROUP_LETTERS_MAX
        ):
            yield group
            group, size_bytes = [], 0
        group.append(letter)
        size_bytes += len(letter.payload)
    if group:
        yield group


async def _append(quiver: Quiver, letters: Sequence[Letter]) -> None:
    """Store letters, all or none, each as a bundle of its own.

    Several letters go through a transaction, which takes locks and blocks, hence the thread; a
    single one, the usual case, is awaited on the event loop.
    """
    if len(letters) > 1:
        await asyncio.to_thread(_append_together, quiver, letters)
        return
    (letter,) = letters
    headers = [letter.stored_headers()]
    await quiver.append_raw_async([letter.payload], slot=letter.slot, headers=headers)


def _append_together(quiver: Quiver, letters: Sequence[Letter]) -> None:
    with quiver.transaction() as transaction:
        for letter in letters:
            headers = [letter.stored_headers()]
            transaction.append_raw([letter.payload], slot=letter.slot, headers=headers)


def _statistics(quiver: Quiver, counters: _Counters) -> StoreStatistics:
    _ensure_keeper(quiver)
    whole = quiver.statistics()
    (keeper,) = (one for one in whole.subscribers if one.name == KEEPER)
    events = {outcome: counts.events for outcome, counts in keeper.outcomes.items()}
    dropped, expired = events.pop("dropped", 0), events.pop("expired", 0)
    return StoreStatistics(
        events=keeper.pending.events,
        size_bytes=keeper.pending_bytes,
        oldest_age_s=keeper.oldest_age_s,
        used_bytes=whole.used_bytes,
        max_bytes=whole.size_cap_bytes,
        filed=dict(counters.filed),
        refused=dict(counters.refused),
        dropped=dropped,
        expired=expired,
        resolved=sum(events.values()),
    )
