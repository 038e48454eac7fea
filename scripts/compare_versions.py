"""Compare installed versions of Holdfast on this machine: is one slower than another?

    python scripts/compare_versions.py BEFORE/bin/python AFTER/bin/python recovery deliver

`BEFORE` may be several interpreters, with commas between them: AFTER is compared with each. Every
measurement is a new process of one version's interpreter. It runs parts of the benchmarks, those of
this checkout for all versions, so that the same is measured in the same way. The versions take
turns, in another order each round; the first BEFORE is measured twice, and its second measurement,
the control, shows what two runs of one version differ by. A ratio is of speed (for a cost: before ÷
after), within one round. With `--at-least` a figure is missed if the ratios of all rounds lie below
that.

Wall times of a busy machine say little: look at CPU, and at the control. Peers (restic, borg, NATS)
are left out, whether they are installed or not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

AFTER, CONTROL = "after", "control"
BENCH = Path(__file__).parents[1] / "src" / "holdfast" / "bench"
# What a counter was called when the statistics of a quiver were one flat record.
FORMER_COUNTERS = {
    "payload_bytes": "payload_bytes_total",
    "segments": "seals_total",
    "syncs": "syncs_total",
}


@dataclass(frozen=True)
class Section:
    """A part of the benchmarks: module, function, the name of its scale, and changes of that.

    `without` replaces what the module knows of its peers.
    """

    module: str
    function: str
    scale: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Any] = field(default_factory=dict)


# Less than the benchmarks themselves measure: more rounds tell more than more bytes.
SECTIONS = {
    "recovery": Section("quiver_open", "measure_recovery", "QUIVER_FULL", {"recovery_mb": (96,)}),
    "deliver": Section(
        "quiver_delivery",
        "measure_throughput",
        "QUIVER_FULL",
        {"deliver_mb": 100, "deliver_bundles": 5_000},
    ),
    "append": Section(
        "quiver_append",
        "measure_append",
        "QUIVER_FULL",
        {"burst_batches_each": 16, "sustained_batches_each": 32},
    ),
    "small_append": Section("quiver_append", "measure_small", "QUIVER_FULL", {"small_each": 300}),
    "accept": Section(
        "gateway_accept",
        "measure_accept",
        "GATEWAY_FULL",
        {"seconds": 2.0},
        {"nats_server": lambda: None},
    ),
    "forward": Section(
        "gateway_forward",
        "measure_forward",
        "GATEWAY_FULL",
        {"backlog_events": 4_000, "seconds": 1.0},
    ),
    "backup": Section(
        "store_backup",
        "measure_backup",
        "STORE_FULL",
        {"corpus_bytes": 100 * 1024 * 1024},
        {"PEERS": ()},
    ),
}


def is_cost(name: str) -> bool | None:
    """Whether a figure is better when it is smaller; None if it is no speed at all."""
    if name.endswith(("_per_s", "_mb_s")):
        return False
    return True if "cpu" in name or name.endswith(("_ms", "_us", "_s")) else None


def measure(sections: Sequence[str], rounds: int, folder: Path) -> dict[str, float]:
    """Run sections with the library of this interpreter; return the median of every figure."""
    _understand_former_statistics()
    figures = importlib.import_module("holdfast.bench.figures").Figures()
    for name in sections:
        section = SECTIONS[name]
        module = importlib.import_module(f"holdfast.bench.{section.module}")
        for attribute, value in section.without.items():
            assert hasattr(module, attribute), f"BUG: {section.module} has no {attribute}"
            setattr(module, attribute, value)
        full = getattr(importlib.import_module("holdfast.bench.scale"), section.scale)
        scale = replace(full, rounds=rounds, **section.changes)
        getattr(module, section.function)(folder / name, scale, figures, lambda text: None)
    return {name: spread.median for name, spread in figures.spreads.items()}


def _understand_former_statistics() -> None:
    """Let a version whose statistics are flat answer to the names that the benchmarks use."""
    from holdfast.quiver import Statistics

    class Flat:
        def __init__(self, statistics: object) -> None:
            self._statistics = statistics

        def __getattr__(self, name: str) -> object:
            return getattr(self._statistics, FORMER_COUNTERS.get(name, name))

    if "writer" not in Statistics.__dataclass_fields__:
        for group in ("writer", "sealer"):
            setattr(Statistics, group, property(Flat))


def turns(rounds: int, contenders: Sequence[str]) -> Iterator[list[str]]:
    """Yield who comes when: everybody has every turn equally often."""
    for number in range(rounds):
        first = number % len(contenders)
        order = [*contenders[first:], *contenders[:first]]
        yield order if number % 2 == 0 else order[::-1]


def run(python: str, sections: Sequence[str], rounds: int, directory: Path) -> dict[str, float]:
    """Measure in a process of its own.

    It and all that it starts find the benchmarks of this checkout, whatever version is installed:
    every interpreter imports `sitecustomize` first.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-compare-", dir=directory) as folder:
        hook = f"import holdfast.bench\nholdfast.bench.__path__[:] = [{str(BENCH)!r}]\n"
        Path(folder, "sitecustomize.py").write_text(hook)
        words = [python, __file__, "--measure", folder, "--inner-rounds", str(rounds), *sections]
        variables = {**os.environ, "PATH": str(Path(python).parent), "PYTHONPATH": folder}
        done = subprocess.run(words, env=variables, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


Results = Mapping[str, list[dict[str, float]]]


def ratios(name: str, found: Results, contender: str, before: str) -> list[float]:
    """Return the speed of a contender in parts of that of a version before, by round."""
    pairs = zip(found[contender], found[before], strict=True)
    speeds = [(ours[name], theirs[name]) for ours, theirs in pairs]
    return [b / a if is_cost(name) else a / b for a, b in speeds if a and b]


def print_table(found: Results, before: str, control_of: str, at_least: float | None) -> bool:
    """Print a table of all speeds; return whether none is missed."""
    missed = []
    lines = [
        f"| figure | {before} | after | after ÷ before | control |",
        "|---|---|---|---|---|",
    ]
    for name in found[before][0]:
        if is_cost(name) is None or not (after := ratios(name, found, AFTER, before)):
            continue
        cells = [spread([one[name] for one in found[who]], ".4g") for who in (before, AFTER)]
        cells.append(spread(after, ".2f"))
        cells.append(spread(ratios(name, found, CONTROL, control_of), ".2f"))
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        if at_least is not None and max(after) < at_least:
            missed.append(name)
    sys.stdout.write("\n".join(lines) + "\n")
    if missed:
        sys.stdout.write(f"below {at_least} in every round: {', '.join(missed)}\n")
    return not missed


def spread(values: Sequence[float], digits: str) -> str:
    """Return the median of some values, and the least and greatest of them."""
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:{digits}} ({least:{digits}} \N{EN DASH} {most:{digits}})"


def main() -> None:
    """Compare, or (in one of the processes) measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="+", metavar="BEFORE[,BEFORE…] AFTER SECTION…")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--inner-rounds", type=int, default=1, help="within each process")
    parser.add_argument("--at-least", type=float)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        found = measure(options.words, options.inner_rounds, options.measure)
        sys.stdout.write(json.dumps(found))
        return
    before, after, *sections = options.words
    if not sections or set(sections) - set(SECTIONS):
        parser.error(f"choose sections of: {', '.join(SECTIONS)}")
    befores = {path if "," in before else "before": path for path in before.split(",")}
    first = next(iter(befores))
    pythons = {**befores, AFTER: after, CONTROL: befores[first]}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    for number, order in enumerate(turns(options.rounds, list(pythons)), 1):
        for contender in order:
            sys.stderr.write(f"round {number} of {options.rounds}: {contender}\n")
            results[contender].append(
                run(pythons[contender], sections, options.inner_rounds, options.dir)
            )
    reached = [print_table(results, name, first, options.at_least) for name in befores]
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
