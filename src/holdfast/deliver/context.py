"""What one destination is made of. The graph makes it from a plan, everything in here uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.exporter import Exporter
from holdfast.deliver.settings import DeliverySettings
from holdfast.seam import Seam
from holdfast.seam.points import FaultPoint
from holdfast.signals.event import Unit
from holdfast.signals.signal import RAW_EVENTS, Signal


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


@dataclass(frozen=True)
class ProcessorChain:
    """The processors on one path to a destination, and the tap behind them."""

    steps: tuple[Callable[[Any], Unit | None], ...]
    tap: Callable[[Unit], None] | None = None

    def process(self, unit: Unit) -> Unit | None:
        """Return the unit as it leaves them; None if one filters it, or routes it elsewhere."""
        passed: Unit | None = unit
        for step in self.steps:
            passed = step(passed)
            if passed is None:
                return None
        if self.tap is not None and passed is not None:
            self.tap(passed)
        return passed


def refuses_all_but_raw_events(signal: Signal) -> str | None:
    """Say why an exporter that declares nothing cannot take a signal."""
    if RAW_EVENTS.includes(signal):
        return None
    return f"the exporter takes {RAW_EVENTS}, not {signal.name} ({signal.form})"


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
    # Why the destination cannot take a signal; None if it can.
    refusal_of: Callable[[Signal], str | None] = refuses_all_but_raw_events

    def process(self, unit: Unit) -> Unit | None:
        """Return the unit as the first chain that lets it through gives it; None if none does.

        So it goes to a destination once, however many chains lead there.
        """
        if not self.chains:
            return unit
        for chain in self.chains:
            passed = chain.process(unit)
            if passed is not None:
                return passed
        return None
