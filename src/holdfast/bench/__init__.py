"""Benchmarks: what Holdfast costs on this machine, beside the bare disk and its peers.

Every comparison is interleaved (A B A B …) within one run and reported as a median with its spread;
docs/benchmarks.md says how to read the figures.

Three rules that everything in this package keeps, because without them a figure is an anecdote. A
contender's work is checked, not assumed: a source that loses rows, or a program that restores
something else, ends the run. A ratio is formed within a round, between neighbours in time, and the
median is taken of the ratios; a ratio of two medians would compare different minutes. And what is
not measured (filling, copying, closing) stays outside of the stopwatch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import PurePath

from holdfast.errors import BadInput
from holdfast.extras import need

NAMES: dict[str, str] = {
    "quiver": "append, acknowledge, seal, recover and start, against the bare disk",
    "gateway": "accept, forward and hold lineage events, beside NATS JetStream",
    "otel": "accept and forward telemetry, beside a bare server and the OpenTelemetry Collector",
    "handoff": "drain into data nodes, fairly; hold what waits for them, and start with it",
    "dataflow": "read, map and reduce on Spark, beside its own Parquet source",
    "store": "store, restore, list, compare and collect, beside restic and borg",
}
# Those that the base cannot run, and the extra that can.
NEEDS = {
    "gateway": "gateway",
    "otel": "otel",
    "handoff": "gateway",
    "dataflow": "spark",
    "store": "store",
}

# Below this part of the other commit's speed, in every round, a figure has become slower.
AT_LEAST = 0.95


def run(
    name: str,
    *,
    quick: bool,
    progress: Callable[[str], None],
    directory: PurePath | None,
    only: Collection[str] = (),
) -> dict[str, object]:
    """Run one benchmark and return its figures; `quick` is only to see it run.

    `only` names sections of it.

    Data is written below `directory` (by default the machine's folder for large temporary files)
    and removed at the end, also when interrupted.
    """
    if name not in NAMES:
        raise BadInput(f"there is no benchmark {name!r}", hint=f"choose one of: {', '.join(NAMES)}")
    if name in NEEDS:
        need(NEEDS[name])
    from holdfast.bench.runner import run_benchmark

    return run_benchmark(name, quick=quick, progress=progress, directory=directory, only=only)


def run_against(
    name: str,
    commit: str,
    *,
    quick: bool,
    progress: Callable[[str], None],
    directory: PurePath | None,
    only: Collection[str] = (),
    at_least: float = AT_LEAST,
) -> dict[str, object]:
    """Run a benchmark in turn with another commit of this checkout, and return the ratios.

    Under "missed" are the figures whose ratio is below `at_least` in every round.
    """
    from holdfast.bench.against import compare

    return compare(
        name,
        commit,
        only=only,
        quick=quick,
        at_least=at_least,
        progress=progress,
        directory=directory,
    )
