"""What one destination is made of. The graph makes it from a plan, everything in here uses it.

Behind its processors a destination has a tap: a live sample of the events on their way. It lives as
long as it is asked for. Its samples are few per second and cut short, and wait in a bounded list;
while nobody looks, an event costs one look into an empty table.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.exporter import Exporter
from holdfast.deliver.settings import DeliverySettings
from holdfast.seam import Seam
from holdfast.seam.clock import Clock
from holdfast.seam.points import FaultPoint
from holdfast.signals.event import INLINE_BYTES, ArrowData, Event, Unit
from holdfast.signals.registry import signal_named
from holdfast.signals.signal import RAW_EVENTS, Form, Signal, Takes

SAMPLES_PER_S = 20
SAMPLES_MAX = 200
PAYLOAD_BYTES_MAX = 4096
# What is not JSON is read up to this size (some milliseconds), and of it so many items are shown.
READ_BYTES_MAX = 1024 * 1024
ITEMS_SHOWN_MAX = 3
# Of each slot of a bundle of record batches.
ROWS_SHOWN_MAX = 3
# A tap that nobody asked for this long is closed.
IDLE_S = 10.0
TAPS_MAX = 16


class DeliveryPoint(FaultPoint):
    """A named moment of a delivery at which a test or a proof ends the process.

    None of them is a disk call: each lies between two effects, one outside of the process and one
    in the ledger. `Seam.reached` is called with the value.
    """

    SENT = "deliver-sent", "the destination has answered, the outcome is not written yet"
    DEAD_LETTER_STORED = (
        "deliver-dead-letter-stored",
        "the dead letter is durable, the outcome is not written yet",
    )
    COMMITTED = "deliver-committed", "the outcome is written; a power cut may still take it back"


class UndeliveredLetters(Protocol):
    """Where an event goes that will not be delivered."""

    async def undelivered(self, letters: Sequence[Letter]) -> None:
        """Store them durably, or raise."""


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
            # The one that was opened first goes; whoever still looks at it opens it again with the
            # next request.
            while len(self._taps) >= TAPS_MAX:
                self._taps.pop(next(iter(self._taps)))
            tap = self._taps[destination] = _Tap(0.0)
            after = 0
        # Reading keeps it open; a viewer that goes away need not say so.
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
    """Return the beginning of an event, as JSON if it is not, and can be read fast."""
    if event.read is None:
        text = event.payload
    elif len(event.payload) <= READ_BYTES_MAX:
        text = orjson.dumps(event.read(event.payload, ITEMS_SHOWN_MAX))
    else:
        text = b"%d bytes of %s: too large to be shown" % (
            len(event.payload),
            event.signal.encode(),
        )
    return event.slot, text[:PAYLOAD_BYTES_MAX].decode("utf-8", "replace")


def _described(data: ArrowData) -> tuple[str, str]:
    """Return the slots of a bundle, and what it means; else of each slot the first rows as text."""
    slots = ", ".join([*data.slots, *(f"{slot} (damaged)" for slot in data.damaged_slots)])
    signal = signal_named(data.signal, Form.ARROW)
    if signal is not None and signal.conversion is not None and data.size_bytes <= INLINE_BYTES:
        # What cannot be converted is shown as it is.
        with contextlib.suppress(Exception):
            converted = signal.conversion.convert(data)
            if isinstance(converted, Event):
                return slots, _shown(converted)[1]
    shown = {
        slot: [{name: str(value) for name, value in row.items()} for row in rows]
        for slot, batch in data.slots.items()
        if (rows := batch.slice(0, ROWS_SHOWN_MAX).to_pylist())
    }
    return slots, str(shown)[:PAYLOAD_BYTES_MAX]


@dataclass(frozen=True)
class ProcessorChain:
    """The processors on one path to a destination."""

    steps: tuple[Callable[[Any], Unit | None], ...]

    def process(self, unit: Unit) -> Unit | None:
        """Return the unit as it leaves them; None if one filters it, or routes it elsewhere."""
        passed: Unit | None = unit
        for step in self.steps:
            passed = step(passed)
            if passed is None:
                return None
        return passed


def refuses_all_but_raw_events(signal: Signal) -> str | None:
    """Say why an exporter that declares nothing cannot take a signal."""
    if RAW_EVENTS.includes(signal):
        return None
    return f"the exporter takes {RAW_EVENTS}, not {signal.name} ({signal.form})"


def _as_it_is(unit: Unit) -> Unit:
    return unit


def fitting(takes: Takes) -> Callable[[Unit], Unit]:
    """Return what gives a unit the form in which a component takes it."""

    def fit(unit: Unit) -> Unit:
        if isinstance(unit, Event):
            return unit
        signal = signal_named(unit.signal, Form.ARROW)
        if signal is None or signal.conversion is None or takes.includes(signal):
            return unit
        return signal.conversion.convert(unit)

    return fit


def _never(unit: Unit) -> bool:
    return False


@dataclass(frozen=True)
class DeliveryContext:
    """One destination, before it runs."""

    name: str
    settings: DeliverySettings
    # Called again when a bug ended the delivery.
    make_exporter: Callable[[], Exporter]
    dead_letters: UndeliveredLetters
    seam: Seam
    # Several if several paths of the graph lead there; none: no processors.
    chains: Sequence[ProcessorChain] = ()
    # Shown what leaves them.
    tap: Callable[[Unit], None] | None = None
    # Why the destination cannot take a signal; None if it can.
    refusal_of: Callable[[Signal], str | None] = refuses_all_but_raw_events
    # Gives what leaves the processors the form in which the exporter takes it.
    fit: Callable[[Unit], Unit] = _as_it_is
    # Whether a unit gets another form on its way, which may take its time.
    converts: Callable[[Unit], bool] = _never

    def process(self, unit: Unit) -> Unit | None:
        """Return the unit as the first chain that lets it through gives it; None if none does.

        So it goes to a destination once, however many chains lead there.
        """
        if not self.chains:
            return self.fit(unit)
        for chain in self.chains:
            passed = chain.process(unit)
            if passed is not None:
                return self.fit(passed)
        return None
