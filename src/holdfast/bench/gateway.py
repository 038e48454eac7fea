"""The benchmark of the gateway: what it takes to accept, to hold and to deliver, in one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from holdfast.bench.figures import Bar, Figures
from holdfast.bench.gateway_accept import measure_accept
from holdfast.bench.gateway_forward import measure_forward
from holdfast.bench.gateway_memory import measure_memory
from holdfast.bench.gateway_scale import FULL, QUICK
from holdfast.bench.lineage_validation import measure_lineage_validation
from holdfast.bench.machine import describe
from holdfast.bench.scratch import scratch

BARS = (
    Bar("vs_jetstream_sync", at_least=2.0),
    Bar("rss_mb", at_most=150),
    Bar("rss_backlog_mb", at_most=250),
    Bar("validation_vs_parse", at_most=3.0),
)
SECTIONS = (measure_accept, measure_forward, measure_memory)


def run_gateway(
    *, quick: bool, progress: Callable[[str], None], directory: PurePath | None
) -> dict[str, object]:
    """Measure everything; see docs/benchmarks.md for what each figure means."""
    scale = QUICK if quick else FULL
    figures = Figures()
    with scratch(directory) as folder:
        machine = describe(folder)
        for measure in SECTIONS:
            measure(folder, scale, figures, progress)
    measure_lineage_validation(
        figures, progress, events=scale.validated_events, rounds=scale.rounds
    )
    return figures.result("gateway", quick=quick, machine=machine, bars=BARS)
