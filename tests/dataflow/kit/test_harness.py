"""The bench itself: what it refuses, how it compares, and random rows against a plain count."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from tests.dataflow.compiler.rows import rows, seconds
from tests.dataflow.quivers import START, at
from tests.dataflow.spec.pipelines import pipeline

from holdfast.dataflow.kit import (
    Bench,
    Case,
    CasesFile,
    CaseStep,
    PipelineHarness,
    _compare,
    _moment,
    run_case,
)
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIMPLE = pipeline("a -> z", a="source", z="sink")


def test_rows_need_an_event_time(tmp_path: Path) -> None:
    bench = PipelineHarness(SIMPLE, tmp_path)
    with pytest.raises(BadInput, match="no event_time"):
        bench.feed("a", [{"number": 1}])


def test_a_bench_touches_nothing_of_the_pipeline_s_own(tmp_path: Path) -> None:
    both = pipeline("a -> z", a="source", z={"sink": {"quiver": "q", "fallback": {"files": "f"}}})
    bench = PipelineHarness(both, tmp_path)
    source, sink = bench.settings.vertices["a"].source, bench.settings.vertices["z"].sink
    assert source is not None
    assert sink is not None
    assert source.quiver == [str(tmp_path / "quivers" / "a")]
    assert (sink.quiver, sink.files) == (None, str(tmp_path / "sinks" / "z"))
    assert sink.fallback is not None
    assert sink.fallback.files == str(tmp_path / "sinks" / "z.fallback")


def test_columns_keep_the_types_of_the_first_rows(tmp_path: Path) -> None:
    bench = PipelineHarness(SIMPLE, tmp_path)
    bench.feed("a", rows((1.0, "k", 1)))
    bench.feed("a", [{"event_time": at(2), "number": None}])
    with bench._quiver("a") as quiver:
        stored = quiver.scan(["key", "number"]).read_all().to_pylist()
    assert stored == [{"key": "k", "number": 1}, {"key": None, "number": None}]


class Told(PipelineHarness):
    """A bench whose sink has some rows."""

    def rows(self, sink: str) -> list[dict[str, Any]]:
        return [{"at": at(0), "n": 1, "more": 1}, {"at": at(10), "n": 2, "more": 2}]


def test_rows_are_compared_by_what_is_expected(tmp_path: Path) -> None:
    bench = Told(SIMPLE, tmp_path)
    moment = START.isoformat().replace("+00:00", "Z")
    assert _compare(bench, "z", [{"n": 2}, {"n": 1, "at": moment}]) != []
    assert _compare(bench, "z", [{"n": 2}, {"n": 1}]) == []
    assert _compare(bench, "z", [{"n": 1}]) == ["z has {n: 2} too much"]
    assert _compare(bench, "z", [{"n": 2}, {"n": 1}, {"n": 1}]) == ["z lacks {n: 1}"]
    assert _compare(bench, "z", []) == ["z has 2 rows, and none was expected"]
    later = at(10).isoformat()
    assert _compare(bench, "z", [{"n": 1, "at": moment}, {"n": 2, "at": later}]) == []


@pytest.mark.parametrize("value", [None, 7, "yesterday"])
def test_a_time_that_is_none_is_told(value: Any) -> None:
    with pytest.raises(BadInput, match="not an event_time"):
        _moment(value)


def test_cases_have_a_shape(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        CaseStep.model_validate({"run": True, "close": True})
    with pytest.raises(ValidationError):
        CasesFile.model_validate({"tests": {"x": {"pipeline": "p", "steps": []}}})
    case = Case.model_validate({"pipeline": "p", "steps": [{"close": True}]})
    with pytest.raises(BadInput, match="which does not exist"):
        run_case("x", case, {"q": SIMPLE}, tmp_path, None)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_rows_are_in_their_window_or_late_and_never_lost(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    counting = (
        Pipeline(max_delay="5s", shuffle_partitions=1)
        .source("events", quiver="q")
        .window(fixed="10s")
        .aggregate("n", n="count(*)", late="side_output")
        .sink(name="out", files="a")
        .after("n", "late")
        .sink(name="late", files="b")
    )
    bench = PipelineHarness(counting, tmp_path, session=spark)
    clock_s, watermark_s = 0.0, float("-inf")
    expected: Counter[float] = Counter()
    late: list[int] = []
    for turn in range(5):
        given = [
            (max(0.0, clock_s + chance.uniform(-25, 20)), "k", 100 * turn + n) for n in range(20)
        ]
        for time_s, _, number in given:
            start_s = time_s // 10 * 10
            if start_s + 10 <= watermark_s:
                late.append(number)
            else:
                expected[start_s] += 1
        bench.feed("events", rows(*given))
        clock_s = max(clock_s, *(time_s for time_s, _, _ in given))
        bench.run()
        assert [query.left_out_total for query in bench.statistics] == [0]
        watermark_s = int((clock_s - 5) * 1000) / 1000
    bench.close()
    found = Counter({seconds(r["window_start"]): r["n"] for r in bench.rows("out")})
    assert found == expected
    assert sorted(row["number"] for row in bench.rows("late")) == sorted(late)
    assert bench.counts.get("late.n", 0) == len(late)
    assert found.total() + len(late) == 100
    assert late


def test_the_former_name_is_still_there() -> None:
    assert Bench is PipelineHarness
