"""From a plan to what runs: the exporter of a destination, and the processors on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.context import DeliveryContext
from holdfast.deliver.exporter import Exporter, ExporterContext
from holdfast.deliver.exporters.round_robin import RoundRobin
from holdfast.graph.paths import ChainStep, DestinationPlan
from holdfast.graph.taps import Taps
from holdfast.processors.processor import Processor, Router
from holdfast.seam import Seam
from holdfast.signals.event import Unit


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
