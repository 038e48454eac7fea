"""Compares this checkout with another commit of it: what became slower, and what faster?

    holdfast bench quiver --against v0.1 --only append

Figures of two days compare the days. So both take turns here, within minutes: every measurement is
a process of its own, with the library of one of the two and the benchmark of this checkout, so that
the same is measured in the same way. The order is another one each round. The other commit is
measured twice a round; how far its two measurements lie apart, the control, is what a difference
means nothing below.

Ratios are of speed (for a cost: before ÷ after), within one round. Beside each stands that of the
CPU time of the whole section, because the wall times of a busy machine say little. A figure is
missed if its ratio lies below the bar in every round: noise does not do that.
Peers (restic, borg, NATS) are left out, whether they are installed or not.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from holdfast.bench.figures import Figures, Spread
from holdfast.bench.runner import Benchmark, Progress, describe, load, scratch, section_name
from holdfast.bench.stopwatch import tree_cpu_s
from holdfast.errors import BadInput

ROUNDS = 7
QUICK_ROUNDS = 2
BEFORE, AFTER, CONTROL = "before", "after", "control"

_HERE = Path(__file__).parent
_AFTER_SOURCE = _HERE.parents[1]
# By module: what stands for "there is no peer".
WITHOUT_PEERS: dict[str, dict[str, object]] = {
    "gateway_accept": {"nats_server": lambda: None},
    "store_backup": {"PEERS": ()},
}
# What a counter was called when the statistics of a quiver were one flat record.
_FORMER_COUNTERS = {
    "payload_bytes": "payload_bytes_total",
    "segments": "seals_total",
    "syncs": "syncs_total",
}


def is_cost(name: str) -> bool | None:
    """Whether a figure is better when it is smaller; None if it is no speed at all."""
    if name.endswith(("_per_s", "_mb_s", "_vs_disk", "_vs_disk_of_64")):
        return False
    return True if "cpu" in name or name.endswith(("_ms", "_us", "_s")) else None


def is_yardstick(name: str) -> bool:
    """Whether a figure is of what is there to be compared with: the same code for both."""
    return "generator" in name or "disk" in re.sub("_vs_disk(_of_64)?$", "", name)


def turns(rounds: int, contenders: Sequence[str]) -> Iterator[list[str]]:
    """Yield who comes when: everybody has every turn equally often."""
    for number in range(rounds):
        first = number % len(contenders)
        order = [*contenders[first:], *contenders[:first]]
        yield order if number % 2 == 0 else order[::-1]


@dataclass
class Measured:
    """What one process found."""

    # The figures of each section that ran.
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    # CPU seconds of each, children included.
    cpu_s: dict[str, float] = field(default_factory=dict)
    # Why others did not run: an older version lacks what they measure.
    failed: dict[str, str] = field(default_factory=dict)


Rounds = Mapping[str, Sequence[Measured]]


def compare(
    name: str,
    commit: str,
    *,
    only: Collection[str],
    quick: bool,
    at_least: float,
    progress: Progress,
    directory: PurePath | None,
) -> dict[str, object]:
    """Measure this checkout and a commit in turn, and return the ratios."""
    benchmark = load(name).only(only)
    with scratch(directory) as folder, checked_out(commit, folder / "checkout") as (sha, before):
        head = {"bench": name, "against": sha, "quick": quick, "machine": describe(folder)}
        found = measure_both(benchmark, before, folder, quick=quick, progress=progress)
    return {**head, **report(found, at_least)}


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the full name of a commit, and its sources in a worktree that is gone afterwards."""
    root = _HERE.parents[2]
    try:
        sha = _git(root, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")
        _git(root, "worktree", "add", "--detach", str(folder), sha)
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", "") or str(error)
        raise BadInput(
            f"commit {commit!r} cannot be checked out: {told.strip()}",
            hint="run this from a git checkout of Holdfast that has the commit",
        ) from error
    try:
        yield sha, folder / "src"
    finally:
        _git(root, "worktree", "remove", "--force", str(folder))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def measure_both(
    benchmark: Benchmark, before: Path, folder: Path, *, quick: bool, progress: Progress
) -> Rounds:
    """Return what the contenders found, round by round."""
    scale: Any = benchmark.quick if quick else benchmark.full
    scale = replace(scale, rounds=1, **({} if quick else benchmark.compared))
    sources = {BEFORE: before, AFTER: _AFTER_SOURCE, CONTROL: before}
    found: dict[str, list[Measured]] = {name: [] for name in sources}
    rounds = QUICK_ROUNDS if quick else ROUNDS
    for number, order in enumerate(turns(rounds, list(sources)), 1):
        for contender in order:
            progress(f"round {number} of {rounds}: {contender}")
            found[contender].append(_apart(sources[contender], benchmark, scale, folder))
    return found


def _apart(source: Path, benchmark: Benchmark, scale: Any, folder: Path) -> Measured:
    """Measure in a process of its own, with the library in `source`.

    It and all that it starts find the benchmarks of this checkout, whatever version they are of:
    every interpreter imports `sitecustomize` first.
    """
    hooks = folder / "hooks"
    hooks.mkdir(exist_ok=True)
    hook = f"import holdfast.bench\nholdfast.bench.__path__[:] = [{str(_HERE)!r}]\n"
    (hooks / "sitecustomize.py").write_text(hook)
    sections = [(section.__module__, section.__name__) for section in benchmark.sections]
    task = {"sections": sections, "scale": type(scale).__name__, "fields": asdict(scale)}
    with scratch(folder) as place:
        words = [sys.executable, "-m", "holdfast.bench.against", json.dumps(task), str(place)]
        paths = os.pathsep.join((str(hooks), str(source)))
        variables = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadInput(
            f"the measurement ended with {done.returncode}: {done.stderr.strip()[-2000:]}",
            hint="run the benchmark without --against to see whether it is this checkout's fault",
        )
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def measure_here(task: Mapping[str, Any], folder: Path) -> Measured:
    """Run sections with the library of this interpreter."""
    _understand_former_statistics()
    scales = importlib.import_module("holdfast.bench.scale")
    scale = getattr(scales, task["scale"])(**task["fields"])
    found = Measured()
    for module_name, function_name in task["sections"]:
        section = section_name(function_name)
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            found.failed[section] = str(error)
            continue
        for attribute, value in WITHOUT_PEERS.get(module_name.rpartition(".")[2], {}).items():
            setattr(module, attribute, value)
        figures, began_s = Figures(), tree_cpu_s()
        place = folder / section
        place.mkdir()
        try:
            getattr(module, function_name)(place, scale, figures, lambda _: None)
        except (AttributeError, TypeError) as error:
            found.failed[section] = f"{type(error).__name__}: {error}"
            continue
        found.cpu_s[section] = tree_cpu_s() - began_s
        found.figures[section] = {name: one.median for name, one in figures.spreads.items()}
    return found


def _understand_former_statistics() -> None:
    """Let a version whose statistics are flat answer to the names that the benchmarks use."""
    from holdfast.quiver import Statistics

    class Flat:
        def __init__(self, statistics: object) -> None:
            self._statistics = statistics

        def __getattr__(self, name: str) -> object:
            return getattr(self._statistics, _FORMER_COUNTERS.get(name, name))

    if "writer" not in Statistics.__dataclass_fields__:
        for group in ("writer", "sealer"):
            setattr(Statistics, group, property(Flat))


def report(found: Rounds, at_least: float) -> dict[str, object]:
    """Return all ratios, and which of them are missed."""
    figures: dict[str, object] = {}
    missed: list[str] = []
    failed: dict[str, str] = {}
    for one in found[AFTER]:
        if one.failed:
            raise BadInput(f"this checkout: {one.failed}", hint="mend the benchmark first")
    for section in found[AFTER][0].figures:
        if section in found[BEFORE][0].failed:
            failed[section] = found[BEFORE][0].failed[section]
            continue
        cpu = [[one.cpu_s[section] for one in found[who]] for who in (BEFORE, AFTER, CONTROL)]
        beside = {
            "cpu_ratio": _spread(_ratios(cpu[0], cpu[1], cost=True)),
            "cpu_control": _spread(_ratios(cpu[0], cpu[2], cost=True)),
        }
        for name in found[AFTER][0].figures[section]:
            cost = is_cost(name)
            sides = [[one.figures[section].get(name, 0.0) for one in found[who]] for who in found]
            before, after, control = sides
            ratios = [] if cost is None else _ratios(before, after, cost=cost)
            if cost is None or not ratios:
                continue
            figures[name] = {
                "before": Spread.of(before).as_dict(),
                "after": Spread.of(after).as_dict(),
                "ratio": _spread(ratios),
                "control": _spread(_ratios(before, control, cost=cost)),
                **beside,
            }
            if max(ratios) < at_least and not is_yardstick(name):
                missed.append(name)
    rounds = len(found[AFTER])
    return {
        "rounds": rounds,
        "at_least": at_least,
        "ratios": figures,
        "not_compared": failed,
        "missed": missed,
    }


def _ratios(before: Sequence[float], after: Sequence[float], *, cost: bool) -> list[float]:
    """Return the speed after in parts of that before, by round; none where nothing was found."""
    pairs = [(b, a) for b, a in zip(before, after, strict=True) if a and b]
    return [b / a if cost else a / b for b, a in pairs]


def _spread(ratios: Sequence[float]) -> dict[str, float] | None:
    return Spread.of(ratios).as_dict() if ratios else None


if __name__ == "__main__":
    _found = measure_here(json.loads(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write(json.dumps(asdict(_found)) + "\n")
