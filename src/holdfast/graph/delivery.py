"""From a plan to what runs: the exporters of a destination, the processors before it, and its tap.

A tap is a live sample of the events on their way to a destination. It lives as long as it is asked
for. Its samples are few per second and cut short, and wait in a bounded list; while nobody looks,
an event costs one look into an empty table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.context import DeliveryContext, ProcessorChain
from holdfast.deliver.exporter import Answer, Exporter, ExporterContext
from holdfast.graph.paths import ChainStep, DestinationPlan
from holdfast.processors.processor import Processor, Router
from holdfast.seam import Seam
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


# ------------------------------------------------------------------------ destinations


def chain_of(
    steps: tuple[ChainStep, ...], tap: Callable[[Unit], None] | None = None
) -> ProcessorChain:
    """Return the chain of a path through the graph."""
    return ProcessorChain(tuple(_function(step) for step in steps), tap)


def _function(step: ChainStep) -> Callable[[Any], Unit | None]:
    if step.port is None:
        return cast("Processor", step.node.processor).process
    router = cast("Router", step.node.processor)
    return lambda unit: unit if router.port(unit) == step.port else None


class RoundRobin:
    """Exporters that take turns: one destination, each send to the next of them.

    A send that fails is tried again by the delivery loop, and so goes to the next one: while one is
    down, the others get everything.
    """

    def __init__(self, exporters: Sequence[Exporter]) -> None:
        self._exporters = exporters
        self._next = 0
        self.max_batch_events = min(one.max_batch_events for one in exporters)
        self.max_batch_bytes = min(one.max_batch_bytes for one in exporters)

    async def start(self) -> None:
        """Start all of them."""
        for exporter in self._exporters:
            await exporter.start()

    async def send(self, events: Sequence[Unit]) -> Answer:
        """Send with the one whose turn it is."""
        exporter = self._exporters[self._next]
        self._next = (self._next + 1) % len(self._exporters)
        return await exporter.send(events)

    async def close(self) -> None:
        """Close all of them, whatever happens to one."""
        failures = []
        for exporter in self._exporters:
            try:
                await exporter.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


def make_exporter(plan: DestinationPlan, seam: Seam, base_dir: Path) -> Exporter:
    """Return what sends to a destination."""
    context = ExporterContext(plan.name, seam, base_dir)
    made = [node.component.code.make(node.config, context) for node in plan.exporters]
    exporter: Exporter = made[0] if len(made) == 1 else RoundRobin(made)
    return exporter


def delivery_context(
    plan: DestinationPlan, dead_letters: DeadLetterQueue, taps: Taps, seam: Seam, base_dir: Path
) -> DeliveryContext:
    """Return everything that a destination is made of."""
    tap = partial(taps.see, plan.name)
    return DeliveryContext(
        name=plan.name,
        settings=plan.delivery,
        make_exporter=partial(make_exporter, plan, seam, base_dir),
        dead_letters=dead_letters,
        seam=seam,
        chains=[chain_of(steps, tap) for steps in plan.chains],
        refusal_of=plan.refusal_of,
    )
