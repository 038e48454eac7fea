"""Benchmarks: what Holdfast costs on this machine, beside the bare disk and its peers.

Every comparison is interleaved (A B A B …) within one run and reported as a median with its spread;
docs/benchmarks.md says how to read the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from holdfast.errors import BadInput

NAMES: dict[str, str] = {
    "quiver": "append, acknowledge, seal, recover and start, against the bare disk",
    "gateway": "accept, forward and hold lineage events, beside NATS JetStream",
    "dataflow": "read, map and reduce on Spark, beside its own Parquet source",
    "store": "store, restore, list, compare and collect, beside restic and borg",
}


def run(
    name: str, *, quick: bool, progress: Callable[[str], None], directory: PurePath | None
) -> dict[str, object]:
    """Run one benchmark and return its figures; `quick` is only to see it run.

    Data is written below `directory` (by default the machine's folder for large temporary files)
    and removed at the end, also when interrupted.
    """
    if name not in NAMES:
        raise BadInput(f"there is no benchmark {name!r}", hint=f"choose one of: {', '.join(NAMES)}")
    from holdfast.bench.runner import run_benchmark

    return run_benchmark(name, quick=quick, progress=progress, directory=directory)
