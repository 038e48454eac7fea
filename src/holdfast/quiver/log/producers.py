"""Idempotent producers: the last epoch of each, and the receipt it got.

A producer numbers its appends with epochs that only grow. The same epoch again is answered with the
receipt of the first time, an older one is refused. Memory is bounded by count and by age.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from holdfast.errors import BadInput, StaleEpoch
from holdfast.quiver.base.config import ProducerConfig
from holdfast.quiver.base.frame import NO_WATERMARK

EPOCH_MAX = 2**63 - 1
NAME_BYTES_MAX = 1024


class LastAppend(NamedTuple):
    """The newest append of a producer."""

    epoch: int
    seq: int
    bundles: int
    events: int
    time_ns: int


def check_producer(producer: str | None, epoch: int | None) -> int:
    """Return the epoch (0: none) if producer and epoch are well formed."""
    if producer is None:
        if epoch is not None:
            raise BadInput("an epoch without a producer", hint="name the producer too")
        return 0
    if not 0 < _text_bytes(producer) <= NAME_BYTES_MAX:
        raise BadInput(
            "the producer's name is empty, too long, or no text",
            hint=f"use text of 1 to {NAME_BYTES_MAX} bytes",
        )
    if epoch is None:
        return 0
    if not _within(epoch, 1, EPOCH_MAX):
        raise BadInput(f"epoch {epoch!r}", hint=f"epochs are whole numbers from 1 to {EPOCH_MAX}")
    return epoch


def _within(number: object, lowest: int, highest: int) -> bool:
    return isinstance(number, int) and lowest <= number <= highest


def _text_bytes(name: object) -> int:
    try:
        return len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:  # half of a surrogate pair
        return 0


def check_watermark(watermark_ns: int | None) -> int:
    """Return the watermark as frames have it."""
    if watermark_ns is None:
        return NO_WATERMARK
    if not _within(watermark_ns, NO_WATERMARK + 1, -NO_WATERMARK - 1):
        raise BadInput(
            f"watermark {watermark_ns!r}", hint="a watermark is in nanoseconds and has 64 bits"
        )
    return watermark_ns


class Producers:
    """The table of last epochs. One thread only."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        # By which clock they are forgotten; None, as at a start: by none.
        self.now_ns: Callable[[], int] | None = None
        self._last: OrderedDict[str, LastAppend] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def seen(self, producer: str, epoch: int) -> LastAppend | None:
        """Return the append that already carried this epoch; raise if a newer one did."""
        last = self._last.get(producer)
        if last is None or epoch > last.epoch:
            return None
        if epoch < last.epoch:
            raise self.stale(producer, epoch, last.epoch)
        return last

    @staticmethod
    def stale(producer: str, epoch: int, newer: int) -> StaleEpoch:
        """Return the error for an epoch that was overtaken."""
        return StaleEpoch(
            f"producer {producer!r} appends epoch {epoch} after epoch {newer}",
            hint="another instance of this producer has taken over, or epochs were reset",
        )

    def record(self, producer: str, append: LastAppend) -> None:
        """Remember a durable append; an older epoch changes nothing."""
        last = self._last.get(producer)
        if last is not None and last.epoch > append.epoch:
            return
        self._last[producer] = append
        self._last.move_to_end(producer)
        self._forget()

    def absorb(self, producer: str, bundle: LastAppend) -> None:
        """Remember one recovered bundle; the bundles of one transaction add up."""
        last = self._last.get(producer)
        if last is not None and last.epoch == bundle.epoch and bundle.seq > last.seq:
            bundle = last._replace(
                bundles=last.bundles + bundle.bundles, events=last.events + bundle.events
            )
        self.record(producer, bundle)

    def snapshot(self) -> dict[str, LastAppend]:
        """Return a copy of the table."""
        return dict(self._last)

    def _forget(self) -> None:
        ttl_ns = int(self._config.ttl_s * 1e9)
        oldest_ns = -math.inf if self.now_ns is None else self.now_ns() - ttl_ns
        while self._last:
            name, last = next(iter(self._last.items()))
            if len(self._last) <= self._config.max_count and last.time_ns >= oldest_ns:
                return
            del self._last[name]
