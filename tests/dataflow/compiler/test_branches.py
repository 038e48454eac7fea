"""Branches, tags, unions, Python, failing rows, sinks that fail: exact outputs on Spark."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.dataflow.compiler.rows import Make, numbers, rows, started
from tests.dataflow.quivers import at

from holdfast.dataflow.compiler import tails
from holdfast.dataflow.compiler.places import directory_options
from holdfast.dataflow.driver.session import spark_parser
from holdfast.dataflow.kit import PipelineHarness
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.spec import Pipeline, check
from holdfast.errors import BadConfig, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


slow = pytest.mark.slow


def tagged(row: dict[str, Any]) -> dict[str, Any]:
    if row["number"] == 13:
        raise ValueError("unlucky")
    tags = ["even" if row["number"] % 2 == 0 else "odd"]
    return {
        "number": row["number"],
        "name": row["key"].upper(),
        "_tags": [*tags, *(["big"] if row["number"] > 9 else [])],
    }


def test_rows_go_where_their_tags_lead_and_bad_ones_are_set_aside(bench: Make) -> None:
    """Even, odd, not, and; a function that fails; a branch that meets others again."""
    pipeline = (
        started()
        .map(tagged, name="tag", returns="number bigint, name string")
        .tagged(any_of=["even"])
        .sink(name="even", files="a")
        .after("tag")
        .tagged(none_of=["even"])
        .sink(name="odd", files="b")
        .after("tag")
        .tagged(all_of=["even", "big"])
        .map(select={"number": "number * 100"}, name="hundredfold")
        .union("events")
        .sink(name="meeting", files="c")
    )
    one = bench(pipeline)
    one.feed("events", rows(*((float(n), "k", n) for n in (1, 2, 3, 12, 13))))
    one.run()
    assert numbers(one, "even") == [2, 12]
    assert numbers(one, "odd") == [1, 3]
    assert numbers(one, "meeting") == [1, 2, 3, 12, 13, 1200]
    assert one.rows("even")[0] == {"number": 12, "name": "K"}
    (letter,) = one.dead_letters()
    assert (letter["vertex"], letter["error"]) == ("tag", "ValueError: unlucky")
    assert '"number": 13' in letter["row"]
    assert one.counts["failed.tag"] == 1


def test_spark_s_parser_finds_what_is_no_sql(spark: SparkSession) -> None:
    settings = started().filter("number = = 1", name="f").sink(files="a").settings
    assert check(settings) == []
    (found,) = check(settings, parse=spark_parser(spark))
    assert found.path == ("vertices", "f", "filter", "where")
    assert "PARSE_SYNTAX_ERROR" in found.message
    good = started().filter("number = 1 AND key LIKE 'a%'").sink(files="a").settings
    assert check(good, parse=spark_parser(spark)) == []


@slow
def test_failing_rows_before_a_window_are_set_aside_and_the_others_counted(
    bench: Make,
) -> None:
    def lucky(row: dict[str, Any]) -> bool:
        return bool(row["number"] != 3)

    pipeline = (
        started(max_delay="0s")
        .map(tagged, name="tag", returns="number bigint, name string")
        .filter(lucky, name="lucky", on_failure="drop")
        .window(fixed="10s")
        .aggregate("sums", key="name", n="count(*)", total="sum(number)")
        .sink(name="out", files="a")
        .after("tag", "failed")
        .sink(name="bad", files="b")
    )
    one = bench(pipeline)
    one.feed("events", rows(*((float(n), "k", n) for n in (1, 2, 3, 9)), (5.0, "k", 13)))
    one.close()
    assert [(row["name"], row["n"], row["total"]) for row in one.rows("out")] == [("K", 3, 12)]
    assert [row["error"] for row in one.rows("bad")] == ["ValueError: unlucky"]
    assert one.dead_letters() == []


@slow
def test_a_reducer_is_called_once_for_a_window_also_if_it_fails(
    bench: Make, tmp_path: Path
) -> None:
    """One that fails by chance would else fail for the results and not for the dead letters."""
    calls = tmp_path / "calls"

    def failing_at_first(window: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write("called\n")
        if calls.read_text() == "called\n":
            raise ValueError("by chance")
        return {"n": len(rows)}

    one = bench(
        started(max_delay="0s")
        .window(fixed="10s")
        .reduce(failing_at_first, name="count", key="key", returns="n bigint")
        .sink(name="out", files="a")
        .sink(name="also", files="b")
    )
    one.feed("events", rows((1.0, "k", 1), (2.0, "k", 2)))
    one.close()
    assert calls.read_text() == "called\n"
    assert one.rows("out") == one.rows("also") == []
    assert [letter["error"] for letter in one.dead_letters()] == ["ValueError: by chance"]


@slow
def test_where_no_row_failed_no_dead_letters_are_written(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To write none costs a job and a batch record for each function and batch."""
    asked: list[str] = []

    def recorded(name: str, *more: Any) -> SinkOptions:
        asked.append(name)
        return directory_options(name, *more)

    monkeypatch.setattr(tails, "directory_options", recorded)

    def lucky(row: dict[str, Any]) -> dict[str, Any]:
        if row["number"] == 13:
            raise ValueError("unlucky")
        return {"number": row["number"]}

    pipeline = started(max_delay="0s").map(lucky, name="lucky", returns="number bigint")
    one = bench(pipeline.sink(name="out", files="a"))
    one.feed("events", rows((1.0, "k", 1)))
    one.run()
    assert (numbers(one, "out"), asked) == ([1], [])
    one.feed("events", rows((2.0, "k", 13)))
    one.close()
    assert ([letter["vertex"] for letter in one.dead_letters()], asked) == (
        ["lucky"],
        ["lucky-failed"],
    )


def refusing(row: dict[str, Any]) -> None:
    if row["number"] % 2:
        raise ConnectionError("closed")


@slow
def test_a_sink_that_is_a_function_has_retries_a_fallback_and_on_success(
    bench: Make,
) -> None:
    pipeline = started().sink(
        refusing,
        name="out",
        retry={"attempts": 2, "interval": "0s"},
        fallback={"files": "a"},
        on_success={"files": "b"},
    )
    one = bench(pipeline)
    one.feed("events", rows(*((float(n), "k", n) for n in range(4))))
    one.run()
    assert [(row["number"], row["error"]) for row in one.rows("out.fallback")] == [
        (1, "ConnectionError: closed"),
        (3, "ConnectionError: closed"),
    ]
    assert numbers(one, "out.on_success") == [0, 2]
    assert one.counts == {"written.out": 2, "fallback.out": 2}


@slow
def test_a_sink_that_takes_nothing_leaves_the_batch_to_its_fallback(
    bench: Make, tmp_path: Path
) -> None:
    pipeline = started().sink(
        name="out", files="x", retry={"attempts": 2, "interval": "0s"}, fallback={"files": "y"}
    )
    one = bench(pipeline)
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks" / "out").write_text("a file where a folder should be")
    one.feed("events", rows((1.0, "k", 1)))
    one.run()
    assert numbers(one, "out.fallback") == [1]
    (tmp_path / "sinks" / "out").unlink()
    one.feed("events", rows((2.0, "k", 2)))
    one.run()
    assert (numbers(one, "out"), numbers(one, "out.fallback")) == ([2], [1])


@slow
def test_results_used_twice_pass_a_quiver_and_arrive_once(bench: Make) -> None:
    pipeline = (
        started(max_delay="0s")
        .window(fixed="10s")
        .aggregate("tens", key="key", total="sum(number)")
        .sink(name="tens_out", files="a")
        .window(fixed="1m")
        .aggregate("minutes", total="sum(total)")
        .sink(name="minutes_out", files="b")
    )
    one = bench(pipeline)
    one.feed("events", rows(*((float(s), "ab"[s % 2], 1) for s in range(60)), (70.0, "a", 1)))
    one.run()
    assert len(one.rows("tens_out")) == 12
    assert [row["total"] for row in one.rows("minutes_out")] == [60]
    one.close()
    assert [row["total"] for row in one.rows("minutes_out")] == [60, 1]
    assert one.counts.get("late.minutes") is None


@slow
def test_explode_makes_rows_and_keeps_control_rows(bench: Make) -> None:
    pipeline = (
        started(max_delay="0s")
        .flat_map(explode="sequence(1, number)", into="n")
        .window(fixed="10s")
        .aggregate("sums", total="sum(n)")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "k", 3), (2.0, "k", 2)))
    one.run()
    one.advance(at(10))
    one.run()
    assert [row["total"] for row in one.rows("out")] == [9]


@slow
def test_what_is_wrong_names_its_vertex(bench: Make, tmp_path: Path) -> None:
    one = bench(started().map(add={"x": "nmber + 1"}, name="plus").sink(name="out", files="a"))
    one.feed("events", rows((1.0, "k", 1)))
    with pytest.raises(BadConfig, match=r"plus cannot be run: .*nmber"):
        one.run()

    fatal = started().map(
        tagged, name="tag", on_failure="fail", returns="number bigint, name string"
    )
    two = PipelineHarness(fatal.sink(name="out", files="a"), tmp_path / "two", session=one._session)
    two.feed("events", rows((1.0, "k", 13)))
    with pytest.raises(PipelineFailed, match="tag failed at row 0 of bundle"):
        two.run()


@slow
def test_a_closed_pipeline_and_one_with_other_windows_are_refused(
    bench: Make, tmp_path: Path, spark: SparkSession
) -> None:
    def windowed(size: str) -> Pipeline:
        return started().window(fixed=size).aggregate("sums", n="count(*)").sink(files="a")

    one = bench(windowed("10s"))
    one.feed("events", rows((1.0, "k", 1)))
    one.run()
    with pytest.raises(BadConfig, match="sums has other window than before"):
        PipelineHarness(windowed("20s"), tmp_path, session=spark).run()
    one.close()
    with pytest.raises(BadConfig, match="was closed"):
        one.run()


@slow
def test_a_pipeline_without_state_is_written_by_spark_and_goes_on(bench: Make) -> None:
    pipeline = started().filter("number > 1").sink(name="out", files="a")
    one = bench(pipeline)
    for turn in range(3):
        one.feed("events", rows(*((float(n), "k", 10 * turn + n) for n in range(3))))
        one.run()
    assert numbers(one, "out") == [2, 10, 11, 12, 20, 21, 22]
    assert one.rows("out")[0].keys() == {"event_time", "key", "number"}
    assert [query.rows_total for query in one.statistics] == [3]


@slow
def test_a_source_without_data_needs_its_columns(bench: Make, tmp_path: Path) -> None:
    one = bench(started().sink(name="out", files="a"))
    one.advance(at(1))
    with pytest.raises(PipelineFailed, match="columns_are"):
        one.run()


@slow
def test_a_batch_that_reached_one_of_two_sinks_is_finished_and_counts_once(
    bench: Make, tmp_path: Path
) -> None:
    pipeline = (
        started(max_delay="0s")
        .window(fixed="10s")
        .aggregate("sums", key="key", n="count(*)")
        .sink(name="first", files="a")
        .sink(name="second", files="b")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "a", 1), (2.0, "b", 1), (12.0, "a", 1)))
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks" / "second").write_text("a file where a folder should be")
    with pytest.raises(PipelineFailed):
        one.run()
    (tmp_path / "sinks" / "second").unlink()
    one.close()
    for sink in ("first", "second"):
        assert [(row["key"], row["n"]) for row in one.rows(sink)] == [("a", 1), ("b", 1), ("a", 1)]


@slow
def test_a_sink_that_is_tried_again_does_not_keep_another_waiting(
    bench: Make, tmp_path: Path
) -> None:
    """The first sink takes nothing before the second one has its rows."""
    pipeline = (
        started()
        .sink(name="first", files="a", retry={"attempts": 100, "interval": "1s", "factor": 1})
        .after("events")
        .sink(name="second", files="b")
    )
    one = bench(pipeline)
    sinks = tmp_path / "sinks"
    sinks.mkdir()
    (sinks / "first").write_text("a file where a folder should be")

    def make_way() -> None:
        while not (sinks / "second").is_dir():
            time.sleep(0.05)
        (sinks / "first").unlink()

    waiting = threading.Thread(target=make_way, daemon=True)
    waiting.start()
    one.feed("events", rows((1.0, "k", 1)))
    one.run()
    waiting.join()
    assert (numbers(one, "first"), numbers(one, "second")) == ([1], [1])
