"""From a plan to what runs: the exporters of a destination, and the processors before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.context import DeliveryContext, ProcessorChain, Taps, fitting
from holdfast.deliver.exporter import Answer, Exporter, ExporterContext
from holdfast.graph.paths import ChainStep, DestinationPlan
from holdfast.processors.processor import Processor, Router
from holdfast.seam import Seam
from holdfast.signals.event import Event, Unit
from holdfast.signals.registry import signal_named
from holdfast.signals.signal import Form


def chain_of(steps: tuple[ChainStep, ...]) -> ProcessorChain:
    """Return the chain of a path through the graph."""
    return ProcessorChain(tuple(_function(step) for step in steps))


def _function(step: ChainStep) -> Callable[[Any], Unit | None]:
    """A router is asked once per path and not once per event: each path is a chain of its own, and
    lets through what the router sends to its port. Rules are cheap, and no state is shared between
    paths.
    """
    fit = fitting(step.node.component.takes(step.node.config))
    if step.port is None:
        process = cast("Processor", step.node.processor).process
        return lambda unit: process(fit(unit))
    router = cast("Router", step.node.processor)
    return lambda unit: fitted if router.port(fitted := fit(unit)) == step.port else None


class RoundRobin:
    """Exporters that take turns: one destination, each send to the next of them.

    A send that fails is tried again by the delivery loop, and so goes to the next one: while one is
    down, the others get everything.
    """

    def __init__(self, exporters: Sequence[Exporter]) -> None:
        self._exporters = exporters
        self._next = 0
        # A batch is cut before it is known whose turn it is, so it must suit the smallest.
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


def make_exporter(plan: DestinationPlan, seam: Seam, base_dir: Path, data_dir: Path) -> Exporter:
    """Return what sends to a destination."""
    context = ExporterContext(plan.name, seam, base_dir, data_dir)
    made = [node.component.code.make(node.config, context) for node in plan.exporters]
    exporter: Exporter = made[0] if len(made) == 1 else RoundRobin(made)
    return exporter


def delivery_context(
    plan: DestinationPlan,
    dead_letters: DeadLetterQueue,
    taps: Taps,
    seam: Seam,
    base_dir: Path,
    data_dir: Path,
) -> DeliveryContext:
    """Return everything that a destination is made of."""
    return DeliveryContext(
        name=plan.name,
        settings=plan.delivery,
        make_exporter=partial(make_exporter, plan, seam, base_dir, data_dir),
        dead_letters=dead_letters,
        seam=seam,
        chains=[chain_of(steps) for steps in plan.chains],
        tap=partial(taps.see, plan.name),
        refusal_of=plan.refusal_of,
        fit=fitting(plan.takes),
        converts=partial(_is_converted, plan, {}),
    )


def _is_converted(plan: DestinationPlan, known: dict[str, bool], unit: Unit) -> bool:
    """Whether a unit gets another form on its way; `known` remembers it by signal."""
    if isinstance(unit, Event):
        return False
    if unit.signal not in known:
        signal = signal_named(unit.signal, Form.ARROW)
        takes = [one.node.component.takes(one.node.config) for way in plan.chains for one in way]
        known[unit.signal] = (
            signal is not None
            and signal.conversion is not None
            and not all(one.includes(signal) for one in (*takes, plan.takes))
        )
    return known[unit.signal]
