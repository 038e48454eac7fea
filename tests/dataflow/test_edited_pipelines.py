"""Pipelines whose file is edited between runs, on Spark: results are those of one run.

What is added sees what comes from then on. Everything else goes on as if nobody had touched it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.dataflow.compiler.numbering import numbered
from tests.dataflow.quivers import open_when_free

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.sink.options import SLOT
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 5, 1, 10, tzinfo=UTC)
CONFIG = "holdfast.dataflow.compiler.places:SINK_CONFIG"
ROWS_PER_STEP = 25
# How many files are edited, each several times; a start of a query takes seconds.
EXAMPLES = int(os.environ.get("HOLDFAST_EDIT_EXAMPLES", "3"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Result = Counter[tuple[Any, ...]]


def source(quiver: str) -> dict[str, Any]:
    """Return a source of a quiver below the folder."""
    return {"source": {"quiver": quiver, "quiver_config": CONFIG, "slot": SLOT}}


def windows(length_s: int, **more: Any) -> dict[str, Any]:
    """Return a reduce that counts and adds up."""
    made = {"n": "count(*)", "total": "sum(number)"}
    return {
        "reduce": {"window": {"fixed": f"{length_s}s"}, "key": "key", "aggregate": made, **more}
    }


def files(name: str) -> dict[str, Any]:
    """Return a sink of files below the folder."""
    return {"sink": {"files": f"out/{name}"}}


def settings_of(vertices: dict[str, Any], edges: Sequence[Any], **more: Any) -> PipelineSettings:
    """Return a pipeline in which nothing closes a window but the end."""
    watermark = {"max_delay": "1h", "idle_after": "1h"}
    given = {"watermark": watermark, "shuffle_partitions": 1, **more}
    return PipelineSettings.model_validate({"vertices": vertices, "edges": edges, **given})


def row(number: int) -> dict[str, Any]:
    """Return one of the rows, which come one a second."""
    moment = START + timedelta(seconds=number)
    return {"event_time": moment, "key": "abc"[number % 3], "number": number}


def append(folder: Path, numbers: range) -> None:
    """Append rows to a quiver."""
    with open_when_free(folder, SINK_CONFIG) as quiver:
        quiver.append({SLOT: pa.RecordBatch.from_pylist([row(n) for n in numbers])})


def drain(
    spark: SparkSession, folder: Path, one: PipelineSettings, *, close: bool = False
) -> PipelineRun:
    """Let a pipeline read what is there."""
    with PipelineRun("edited", one, Places(folder / "state", folder), spark) as run:
        run.drain(close=close)
    return run


def results(folder: Path) -> Result:
    """Return what a sink has: windows as (start, length, key, n, total), rows as they are."""
    found: Result = Counter()
    for path in folder.glob("*.parquet"):
        for one in pq.read_table(path).to_pylist():
            if "window_start" in one:
                start, end = one["window_start"], one["window_end"]
                place = round((start - START).total_seconds()), round((end - start).total_seconds())
                found[(*place, one["key"], one["n"], one["total"])] += 1
            else:
                found[one["key"], one["number"]] += 1
    return found


def windowed(numbers: list[int], length_s: int) -> Result:
    """Return the windows of some rows, by plain Python."""
    found: dict[tuple[int, str], list[int]] = {}
    for n in numbers:
        found.setdefault((n // length_s * length_s, "abc"[n % 3]), []).append(n)
    return Counter((start, length_s, key, len(ns), sum(ns)) for (start, key), ns in found.items())


# ----------------------------------------------------------------------- by name


def test_a_source_on_top_of_the_file_does_not_lose_rows_of_open_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    vertices = {"ev": source("q"), "rb": windows(60), "out": files("rb")}
    append(tmp_path / "q", range(25))
    drain(spark, tmp_path, settings_of(vertices, ["ev -> rb", "rb -> out"]))
    append(tmp_path / "q", range(25, 70))
    append(tmp_path / "aa", range(3))
    vertices = {"aa": source("aa"), **vertices}
    edited = settings_of(vertices, ["aa -> rb", "ev -> rb", "rb -> out"])
    drain(spark, tmp_path, edited, close=True)
    assert results(tmp_path / "out" / "rb") == windowed([*range(70), *range(3)], 60)


def test_reduces_in_another_order_do_not_swap_their_states(
    spark: SparkSession, tmp_path: Path
) -> None:
    vertices = {
        "ev": source("q"), "ra": windows(10), "rb": windows(60), "a": files("ra"), "b": files("rb"),
    }  # fmt: skip
    edges = ["ev -> ra", "ev -> rb", "ra -> a", "rb -> b"]
    append(tmp_path / "q", range(25))
    drain(spark, tmp_path, settings_of(vertices, edges))
    append(tmp_path / "q", range(25, 70))
    swapped = settings_of(dict(reversed(vertices.items())), list(reversed(edges)))
    drain(spark, tmp_path, swapped, close=True)
    assert results(tmp_path / "out" / "ra") == windowed(list(range(70)), 10)
    assert results(tmp_path / "out" / "rb") == windowed(list(range(70)), 60)


def test_spark_numbers_operators_and_sources_as_the_model_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    """State is looked into with Spark's own reader: a window's length says whose it is."""
    vertices = {
        "ev": source("q"), "more": source("more"), "c": windows(20), "a": windows(10),
        "b": windows(30, aggregate={"n": "sum(n)"}), "d": windows(40), "m": {"filter": "n > 0"},
        "x": files("x"), "y": files("y"), "z": files("z"),
    }  # fmt: skip
    edges = [
        "ev -> c", "more -> a", "ev -> a", "a -> b", "ev -> d", "b -> m", "m -> x", "d -> y",
        "c -> z",
    ]  # fmt: skip
    append(tmp_path / "q", range(100))
    append(tmp_path / "more", range(100))
    one = settings_of(vertices, edges, watermark={"max_delay": "45s", "idle_after": "1h"})
    run = drain(spark, tmp_path, one)
    (query,) = run.plan.queries
    checkpoint = tmp_path / "state" / query.name / "checkpoint"
    reduces, sources = numbered(run.plan, query)
    lengths = {"a": 10, "b": 30, "c": 20, "d": 40}
    for number, name in enumerate(reduces):
        reader = spark.read.format("statestore").option("operatorId", str(number))
        kept = reader.load(str(checkpoint)).select("key.*").collect()
        assert {round((k[0]["end"] - k[0]["start"]).total_seconds()) for k in kept} == {
            lengths[name]
        }, f"operator {number} is not {name}"
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    lines = [json.loads(line) for line in newest.read_text().splitlines()[2:]]
    assert [line["subscriber"] for line in lines] == [f"edited.{name}" for name in sources]


def test_a_use_of_results_that_another_reduce_reads_begins_with_all_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark has one operator more for each, which begins with a copy of the state."""
    summed = {"n": "sum(n)", "total": "sum(total)"}
    vertices = {
        "ev": source("q"), "ra": windows(10), "rb": windows(60, aggregate=summed), "b": files("rb"),
    }  # fmt: skip
    edges = ["ev -> ra", "ra -> rb", "rb -> b"]
    append(tmp_path / "q", range(25))
    drain(spark, tmp_path, settings_of(vertices, edges))
    append(tmp_path / "q", range(25, 50))
    vertices, edges = {"a": files("ra"), **vertices}, ["ra -> a", *edges]
    run = drain(spark, tmp_path, settings_of(vertices, edges))
    assert [query.operators for query in run.plan.queries] == [("rb", "ra", "ra")]
    append(tmp_path / "q", range(50, 70))
    vertices = {"rc": windows(30, aggregate=summed), "c": files("rc"), **vertices}
    drain(spark, tmp_path, settings_of(vertices, ["ra -> rc", "rc -> c", *edges]), close=True)
    for name, length_s in {"ra": 10, "rb": 60, "rc": 30}.items():
        assert results(tmp_path / "out" / name) == windowed(list(range(70)), length_s), name


def is_row(row: dict[str, Any]) -> bool:
    """Take every row: a function that might reject some."""
    return "number" in row


def test_a_reduce_far_behind_a_function_leaves_the_query_before_it_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It was cut behind the function, which took the source and the sink there elsewhere."""
    vertices = {
        "a": source("q"), "b": source("more"), "f": {"filter": {"python": is_row}},
        "m": {"filter": "number >= 0"}, "z": files("z"),
    }  # fmt: skip
    edges = ["a -> f", "f -> m", "b -> m", "m -> z"]
    append(tmp_path / "q", range(25))
    append(tmp_path / "more", range(100, 110))
    drain(spark, tmp_path, settings_of(vertices, edges))
    append(tmp_path / "q", range(25, 70))
    append(tmp_path / "more", range(110, 120))
    vertices |= {"r": windows(10), "y": files("y")}
    edited = settings_of(vertices, [*edges, "m -> r", "r -> y"])
    run = drain(spark, tmp_path, edited, close=True)
    assert [set(query.vertices) for query in run.plan.queries] == [{*"abfmz"}, {*"ry"}]
    everything = Counter(("abc"[n % 3], n) for n in (*range(70), *range(100, 120)))
    assert results(tmp_path / "out" / "z") == everything
    assert results(tmp_path / "out" / "y") == windowed([*range(25, 70), *range(110, 120)], 10)


def test_a_vertex_that_reads_between_queries_may_move_when_all_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It reads under another name from then on: what it has not read is refused before."""
    vertices = {
        "a": source("q"), "b": source("more"), "f": {"filter": "number >= 0"},
        "v": {"filter": "number >= 0"}, "z": files("z"), "y": files("y"),
    }  # fmt: skip
    between = {"from": "a", "to": "v", "durable": True}
    edges: list[Any] = [between, "a -> y", "b -> f", "f -> v", "v -> z"]
    append(tmp_path / "q", range(25))
    append(tmp_path / "more", range(100, 110))
    drain(spark, tmp_path, settings_of(vertices, edges))
    append(tmp_path / "q", range(25, 70))
    append(tmp_path / "more", range(110, 120))
    edges[3] = {"from": "f", "to": "v", "durable": True}
    run = drain(spark, tmp_path, settings_of(vertices, edges))
    assert [query.vertices for query in run.plan.queries] == [("a", "y"), ("b", "f"), ("v", "z")]
    everything = Counter(("abc"[n % 3], n) for n in (*range(70), *range(100, 120)))
    assert results(tmp_path / "out" / "z") == everything


# ------------------------------------------------------------------------ random


@dataclass
class Branch:
    """What a sink must have: rows of some sources, each from a step on, as they are or counted."""

    length_s: int | None
    # Sources by who they are, and the step from which on their rows count.
    sees: dict[int, int]


@dataclass
class File:
    """A pipeline file, and what it must have put out."""

    vertices: dict[str, Any]
    edges: list[str]
    # Who a source is, by its name in the file: the number of its quiver.
    quivers: dict[str, int]
    # By the folder of the sink.
    branches: dict[str, Branch]
    # The sinks behind each vertex, by its name.
    behind: dict[str, set[str]]
    step: int = 0
    made: int = 0
    log: list[str] = field(default_factory=list)

    def fresh(self) -> str:
        self.made += 1
        return f"n{self.made}"

    def reorder(self, dice: random.Random) -> None:
        names = list(self.vertices)
        dice.shuffle(names)
        dice.shuffle(self.edges)
        self.vertices = {name: self.vertices[name] for name in names}

    def add(self, new: dict[str, Any], edges: list[str], dice: random.Random) -> None:
        on_top = dice.random() < 0.5
        self.vertices = {**new, **self.vertices} if on_top else {**self.vertices, **new}
        self.edges = [*edges, *self.edges] if on_top else [*self.edges, *edges]

    def add_source(self, dice: random.Random) -> None:
        targets = [name for name, one in self.vertices.items() if {"reduce", "filter"} & one.keys()]
        target, name = dice.choice(targets), self.fresh()
        self.quivers[name] = self.made
        self.add({name: source(f"q{self.made}")}, [f"{name} -> {target}"], dice)
        self.behind[name] = set(self.behind[target])
        for sink in self.behind[target]:
            self.branches[sink].sees[self.made] = self.step

    def add_branch(self, dice: random.Random, *kinds: str) -> None:
        end = dice.choice(
            [name for name, one in self.vertices.items() if "sink" not in one]
            if not kinds
            else [name for name, one in self.vertices.items() if {"source", "filter"} & one.keys()]
        )
        before = [name for name, sinks in self.behind.items() if self._leads(name, end)]
        sources = {self.quivers[name]: self.step for name in before if name in self.quivers}
        folder = self.fresh()
        new: dict[str, Any] = {}
        edges, length_s = [], self._length_s(end)
        if length_s is not None:
            # Windows that are open have rows of before.
            known = next(iter(self.behind[end]))
            sources = dict(self.branches[known].sees)
        for kind in kinds:
            name = self.fresh()
            length_s = dice.choice([20, 30]) if kind == "reduce" else length_s
            new[name] = windows(length_s or 0) if kind == "reduce" else {"filter": "number >= 0"}
            edges.append(f"{end} -> {name}")
            self.behind[name] = {folder}
            end = name
        sink = self.fresh()
        new[sink] = files(folder)
        self.add(new, [*edges, f"{end} -> {sink}"], dice)
        for name in before:
            self.behind[name] |= {folder}
        self.branches[folder] = Branch(length_s, sources)

    def rename(self, dice: random.Random) -> None:
        old = dice.choice([name for name, one in self.vertices.items() if "reduce" not in one])
        new = self.fresh()
        self.vertices = {(new if n == old else n): one for n, one in self.vertices.items()}
        ends = [edge.split(" -> ") for edge in self.edges]
        self.edges = [" -> ".join(new if end == old else end for end in edge) for edge in ends]
        if old in self.quivers:
            self.quivers[new] = self.quivers.pop(old)
        if old in self.behind:
            self.behind[new] = self.behind.pop(old)

    def _leads(self, name: str, end: str) -> bool:
        targets = [edge.split(" -> ")[1] for edge in self.edges if edge.startswith(f"{name} -> ")]
        return name == end or any(self._leads(target, end) for target in targets)

    def _length_s(self, name: str) -> int | None:
        one = self.vertices[name]
        if "reduce" in one:
            return int(one["reduce"]["window"]["fixed"].removesuffix("s"))
        before = [edge.split(" -> ")[0] for edge in self.edges if edge.endswith(f" -> {name}")]
        return next((found for b in before if (found := self._length_s(b)) is not None), None)


EDITS = {
    "reorder": File.reorder,
    "add a source": File.add_source,
    "add a sink": File.add_branch,
    "add a branch": lambda file, dice: file.add_branch(dice, "filter"),
    "add a reduce": lambda file, dice: file.add_branch(dice, "reduce"),
    "rename": File.rename,
}
TRIED: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()


def first() -> File:
    """Return the file that edits begin with."""
    vertices = {
        "ev": source("q0"), "ra": windows(10), "rb": windows(60), "m": {"filter": "number >= 0"},
        "a": files("ra"), "b": files("rb"), "c": files("m"),
    }  # fmt: skip
    edges = ["ev -> ra", "ev -> rb", "ev -> m", "ra -> a", "rb -> b", "m -> c"]
    return File(
        vertices,
        edges,
        quivers={"ev": 0},
        branches={
            "ra": Branch(10, {0: 0}),
            "rb": Branch(60, {0: 0}),
            "m": Branch(None, {0: 0}),
        },
        behind={"ev": {"ra", "rb", "m"}, "ra": {"ra"}, "rb": {"rb"}, "m": {"m"}},
    )


@given(
    edits=st.lists(st.sampled_from(sorted(EDITS)), min_size=3, max_size=4),
    seed=st.integers(0, 2**16),
)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def edited_files_give_the_results_of_one_run(
    spark: SparkSession, root: Path, edits: list[str], seed: int
) -> None:
    folder = root / f"{len(list(root.iterdir()))}"
    folder.mkdir()
    dice, file = random.Random(seed), first()
    fed: dict[int, list[tuple[int, int]]] = {}
    for step, edit in enumerate([*edits, ""]):
        file.step = step
        for quiver in file.quivers.values():
            new = range(step * ROWS_PER_STEP, (step + 1) * ROWS_PER_STEP)
            append(folder / f"q{quiver}", new)
            fed.setdefault(quiver, []).extend((step, n) for n in new)
        if edit:
            drain(spark, folder, settings_of(file.vertices, list(file.edges)))
            file.step = step + 1
            TRIED[edit] += 1
            EDITS[edit](file, dice)
    try:
        drain(spark, folder, settings_of(file.vertices, list(file.edges)), close=True)
    except BadConfig:
        REFUSED[edits[-1]] += 1
        raise
    for sink, branch in file.branches.items():
        numbers = [
            n
            for quiver, since in branch.sees.items()
            for step, n in fed.get(quiver, [])
            if step >= since
        ]
        plain: Result = Counter(("abc"[n % 3], n) for n in numbers)
        wanted = plain if branch.length_s is None else windowed(numbers, branch.length_s)
        assert results(folder / "out" / sink) == wanted, (sink, edits, seed, file.edges)


def test_edited_files_give_the_results_of_one_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited_files_give_the_results_of_one_run(spark, tmp_path)
    share = sum(REFUSED.values()) / max(1, sum(TRIED.values()))
    with capsys.disabled():
        sys.stdout.write(f"\n{dict(TRIED)}, refused {share:.0%}\n")
