"""Taps: a live sample of the events on their way to a destination.

A tap lives as long as somebody keeps asking for it. Its samples are few per second and cut short,
and wait in a bounded list; with nobody looking an event costs one look into an empty table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.seam.clock import Clock
from holdfast.signals.event import ArrowData, Event, Unit

SAMPLES_PER_S = 20
SAMPLES_MAX = 200
PAYLOAD_BYTES_MAX = 4096
# Of each slot of a bundle of record batches.
ROWS_SHOWN_MAX = 3
# A tap that nobody asked for this long is closed.
IDLE_S = 10.0
TAPS_MAX = 16


@dataclass
class _Tap:
    closes_s: float
    samples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    # Events that passed since it was opened, and the number of the second that is counted now.
    passed: int = 0
    second: int = -1
    in_second: int = 0


class Taps:
    """The open taps of one gateway; used by its event loop alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taps: dict[str, _Tap] = {}

    def see(self, destination: str, event: Unit) -> None:
        """Take a sample, if somebody looks at this destination and it is not too soon."""
        tap = self._taps.get(destination)
        if tap is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s >= tap.closes_s:
            del self._taps[destination]
            return
        tap.passed += 1
        if int(now_s) != tap.second:
            tap.second, tap.in_second = int(now_s), 0
        tap.in_second += 1
        if tap.in_second <= SAMPLES_PER_S:
            tap.samples.append({"number": tap.passed, **_sample(event)})

    def read(self, destination: str, after: int) -> Mapping[str, Any]:
        """Return the samples behind a number, opening the tap if it is not open."""
        now_s = self._clock.monotonic_s()
        self._taps = {name: tap for name, tap in self._taps.items() if now_s < tap.closes_s}
        tap = self._taps.get(destination)
        if tap is None:
            while len(self._taps) >= TAPS_MAX:
                self._taps.pop(next(iter(self._taps)))
            tap = self._taps[destination] = _Tap(0.0)
            after = 0
        tap.closes_s = now_s + IDLE_S
        samples = [sample for sample in tap.samples if sample["number"] > after]
        return {"passed": tap.passed, "events": samples, "next": tap.passed}


def _sample(event: Unit) -> dict[str, Any]:
    seq, row = event.position
    slot, text = _described(event) if isinstance(event, ArrowData) else _shown(event)
    return {
        "quiver_id": event.quiver_id,
        "seq": seq,
        "row": row,
        "slot": slot,
        "ingestion_ns": event.ingestion_ns,
        "bytes": event.size_bytes,
        "payload": text,
    }


def _shown(event: Event) -> tuple[str, str]:
    return event.slot, event.payload[:PAYLOAD_BYTES_MAX].decode("utf-8", "replace")


def _described(data: ArrowData) -> tuple[str, str]:
    """Return the slots of a bundle, and of each its first rows as text."""
    shown = {
        slot: [{name: str(value) for name, value in row.items()} for row in rows]
        for slot, batch in data.slots.items()
        if (rows := batch.slice(0, ROWS_SHOWN_MAX).to_pylist())
    }
    return ", ".join(data.slots), str(shown)[:PAYLOAD_BYTES_MAX]
