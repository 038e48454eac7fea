"""Scenarios of Numaflow's end-to-end tests, and ours, on one Spark session, with exact outputs.

Those of native windows are in compiler/test_reduces.py, those of branches and sinks in
compiler/test_branches.py; here are Python reducers, rows that come again, and what is between.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.dataflow.compiler.rows import Make, numbers, rows, started, windows
from tests.dataflow.quivers import at

from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec import Pipeline

if TYPE_CHECKING:
    pass

Row = dict[str, Any]

# A machine that does something else besides takes minutes for what is seconds of work.
pytestmark = pytest.mark.timeout(600)
slow = pytest.mark.slow
LANE = {"attempts": 2, "interval": "0s"}


def until(path: Path) -> Callable[[Row], Row]:
    """Return a function that does not take rows of key `bad` before a file is there."""
    place = str(path)

    def call(row: Row) -> Row:
        if row["key"] == "bad" and not os.path.exists(place):
            raise ConnectionError("not yet")
        return {"key": row["key"], "number": row["number"]}

    return call


# ------------------------------------------------------------------ rows come again


def counted(call: Callable[[Row], Row], **watermark: Any) -> Pipeline:
    """Return a pipeline with a function that may fail before windows of 10 s."""
    return (
        started(max_delay="0s", **watermark)
        .map(call, name="call", returns="key string, number bigint", retry_lane=LANE)
        .window(fixed="10s")
        .aggregate("sums", n="count(*)", total="sum(number)", late="side_output")
        .sink(name="out", files="a")
        .after("sums", "late")
        .sink(name="late", files="b")
    )


@pytest.mark.slow
def test_a_row_that_comes_again_finds_its_window_open(bench: Make, tmp_path: Path) -> None:
    """Holes H2 and H5 of Numaflow: it holds the watermark, and what came later costs it nothing.

    Every run is a driver of its own: what is between two runs survives a restart.
    """
    one = bench(counted(until(tmp_path / "up")))
    one.feed("events", rows((1.0, "a", 1), (2.0, "bad", 2), (25.0, "a", 3)))
    one.run()
    assert windows(one, "out", "n") == {}  # it would close at 10, and 2 is still to come
    (tmp_path / "up").touch()
    one.run()
    assert windows(one, "out", "n", "total") == {(0, 2, 3): 1}
    one.close()
    assert windows(one, "out", "n", "total") == {(0, 2, 3): 1, (20, 1, 3): 1}
    assert (one.rows("late"), one.dead_letters()) == ([], [])
    assert one.counts["retried.events"] == 1


@slow
def test_a_row_that_is_held_too_long_is_late(bench: Make, tmp_path: Path) -> None:
    one = bench(counted(until(tmp_path / "up"), max_hold="0s"))
    one.feed("events", rows((1.0, "a", 1), (2.0, "bad", 2), (25.0, "a", 3)))
    one.run()
    assert windows(one, "out", "n") == {(0, 1): 1}
    (tmp_path / "up").touch()
    one.close()
    assert windows(one, "out", "n") == {(0, 1): 1, (20, 1): 1}
    assert numbers(one, "late") == [2]
    assert one.counts["late.sums"] == 1


def not_json(row: Row) -> Row:
    if row["key"] == "not-json" and not os.environ.get("NEVER"):
        raise ValueError("not JSON")
    return {"key": row["key"], "number": row["number"]}


@slow
def test_a_bad_row_is_a_dead_letter_in_the_end_and_can_be_sent_again(
    bench: Make, tmp_path: Path
) -> None:
    """Numaflow's redrive: a function fails on "not-json", the others go on, it is redelivered."""
    mended = tmp_path / "mended"
    path = str(mended)

    def parse(row: Row) -> Row:
        if row["key"] == "not-json" and not os.path.exists(path):
            raise ValueError("not JSON")
        return {"key": row["key"], "number": row["number"]}

    twice = {"attempts": 2, "interval": "0s"}
    one = bench(
        started()
        .map(parse, name="parse", returns="key string, number bigint", retry=twice, retry_lane=LANE)
        .sink(name="out", files="a")
    )
    one.feed("events", rows((1.0, "a", 1), (2.0, "not-json", 2), (3.0, "b", 3)))
    for left in (1, 1, 0):
        one.run()
        assert numbers(one, "out") == [1, 3]
        assert len(one.dead_letters()) == (1 - left)
    (letter,) = one.dead_letters()
    # Two tries in the task, at first and each of the two times that it came again.
    assert (letter["vertex"], letter["error"], letter["attempts"]) == (
        "parse", "ValueError: not JSON", 6,
    )  # fmt: skip
    assert '"key": "not-json"' in letter["row"]
    mended.touch()
    assert (one.redrive(), one.redrive()) == (1, 0)
    one.run()
    assert numbers(one, "out") == [1, 2, 3]
    one.run()
    assert numbers(one, "out") == [1, 2, 3]
    assert (one.counts["retried.events"], one.counts["failed.parse"]) == (2, 1)


@slow
def test_a_closed_pipeline_leaves_nothing_in_its_lane(bench: Make) -> None:
    """`drain --close` does not wait for pauses: rows are tried as often as they may, at once."""
    one = bench(
        started()
        .map(
            not_json, name="parse", returns="key string, number bigint",
            retry_lane={"attempts": 3, "interval": "1h"},
        )
        .sink(name="out", files="a")
        .after("parse", "failed")
        .sink(name="bad", files="b")
    )  # fmt: skip
    one.feed("events", rows((1.0, "a", 1), (2.0, "not-json", 2)))
    one.close()
    assert numbers(one, "out") == [1]
    assert [(row["vertex"], row["attempts"]) for row in one.rows("bad")] == [("parse", 4)]


@slow
def test_a_sink_s_rows_come_again_then_go_to_the_fallback(bench: Make, tmp_path: Path) -> None:
    """Numaflow's retry, fallback and onSuccess sinks; `steps: 2` is two attempts, and no third."""
    up, calls = str(tmp_path / "up"), str(tmp_path / "calls")

    def take(row: Row) -> None:
        with open(calls, "a", encoding="utf-8") as file:
            file.write(f"{row['number']}\n")
        if row["number"] == 9 or (row["number"] % 2 and not os.path.exists(up)):
            raise ConnectionError("closed")

    one = bench(
        started().sink(
            take, name="out", retry={"attempts": 2, "interval": "0s"},
            retry_lane={"attempts": 1, "interval": "0s"},
            fallback={"files": "f"}, on_success={"files": "s"},
        )
    )  # fmt: skip
    one.feed("events", rows(*((float(n), "k", n) for n in (1, 2, 9))))
    one.run()
    assert numbers(one, "out.on_success") == [2]
    assert one.rows("out.fallback") == []
    Path(up).touch()
    one.run()
    assert numbers(one, "out.on_success") == [1, 2]
    assert [(r["number"], r["error"]) for r in one.rows("out.fallback")] == [
        (9, "ConnectionError: closed")
    ]
    made = Counter(Path(calls).read_text("utf-8").split())
    assert made == {"1": 3, "2": 1, "9": 4}
    assert one.counts == {"written.out": 2, "fallback.out": 1, "retried.events": 2}


# ------------------------------------------------------------------ Python reducers


def spread(window: Row, rows: list[Row]) -> Row:
    """Return the numbers of a window, in order of event time."""
    if any(row["key"] == "bad" for row in rows):
        raise ValueError("bad key")
    return {"found": [row["number"] for row in rows], "n": len(rows)}


def both(window: dict[str, Any], key: str | tuple[str, ...] = "key") -> Pipeline:
    """Return a pipeline that makes the same windows natively and in Python."""
    return (
        started(max_delay="5s")
        .window(**window)
        .aggregate("native", key=key, n="count(*)")
        .sink(name="native_out", files="a")
        .after("events")
        .window(**window)
        .reduce(spread, "python", key=key, returns="found array<bigint>, n bigint")
        .sink(name="python_out", files="b")
    )


@pytest.mark.slow
def test_a_function_gets_the_rows_that_a_native_window_counts(bench: Make) -> None:
    """The same verdict on every row: in time, late, at the end of a window, at the watermark."""
    one = bench(both({"fixed": "10s"}))
    one.feed("events", rows((2.0, "a", 7), (1.0, "a", 3), (10.0, "a", 4), (12.0, "bad", 9)))
    one.run()
    one.feed("events", rows((9.999, "a", 5), (25.0, "a", 6)))  # the watermark is 5, then 20
    one.run()
    one.feed("events", rows((19.999, "a", 8), (20.0, "a", 10)))
    one.close()
    assert [query.left_out_total for query in one.statistics] == [0]  # nothing silently
    found = windows(one, "python_out", "key", "n")
    assert found == {(0, "a", 3): 1, (10, "a", 1): 1, (20, "a", 2): 1}
    assert found == windows(one, "native_out", "key", "n") - Counter({(10, "bad", 1): 1})
    assert [row["found"] for row in one.rows("python_out")] == [[3, 7, 5], [4], [10, 6]]
    (letter,) = one.dead_letters()
    assert (letter["vertex"], letter["error"]) == ("python", "ValueError: bad key")
    assert '"number": 9' in letter["row"]
    assert (one.counts["late.native"], one.counts["late.python"]) == (1, 1)
    assert one.counts["failed.python"] == 1


@slow
@pytest.mark.parametrize(
    ("window", "key"),
    [
        ({"size": "20s", "every": "10s"}, "key"),
        ({"session": "10s"}, "key"),
        ({"session": "10s"}, ()),
    ],
)
def test_sliding_and_session_windows_of_a_function_are_the_native_ones(
    bench: Make, window: dict[str, Any], key: str | tuple[str, ...]
) -> None:
    """A session that a row joins at its very end, one that two runs make, rows late for some."""
    one = bench(both(window, key))
    one.feed("events", rows((0.0, "a", 1), (4.0, "b", 2), (10.0, "a", 3), (31.0, "a", 4)))
    one.run()
    one.feed("events", rows((27.0, "a", 5), (21.0, "b", 6), (15.0, "a", 7), (60.0, "b", 8)))
    one.run()
    one.feed("events", rows((40.0, "a", 9), (55.0, "b", 10), (80.0, "a", 11)))
    one.close()
    columns = ["window_end", *([key] if isinstance(key, str) else []), "n"]
    assert windows(one, "python_out", *columns) == windows(one, "native_out", *columns)
    assert one.counts["late.python"] == one.counts["late.native"]
    assert len(one.rows("python_out")) > 3
    assert one.dead_letters() == []


class Sorter:
    """Puts rows out in order of their times, each when nothing older can come."""

    def on_row(self, row: Row, context: Any) -> None:
        if row["number"] < 0:
            context.state = "spoiled"
            raise ValueError("negative")
        context.state = [*(context.state or []), (row["_event_time"], row["number"])]
        context.set_timer(row["_event_time"])

    def on_timer(self, time: datetime, context: Any) -> list[Row]:
        out = sorted(one for one in context.state if one[0] <= time)
        context.state = [one for one in context.state if one[0] > time] or None
        assert time <= context.watermark
        return [{"number": number, "place": place} for place, (_, number) in enumerate(out)]


@slow
def test_a_process_sorts_two_inputs_by_its_timers(bench: Make) -> None:
    """Numaflow's stream sorter: 58 to 62 s, shuffled over two inputs, come out in order."""
    one = bench(
        started(max_delay="2s")
        .source("others", quiver="r")
        .union("events")
        .process(Sorter, "sort", returns="number bigint, place int", timer_span="10s")
        .sink(name="out", files="a")
    )
    one.feed("events", rows((60.0, "k", 60), (58.0, "k", 58), (59.5, "k", -1)))
    one.feed("others", rows((59.0, "k", 59), (58.0, "k", 158)))
    one.run()
    assert numbers(one, "out") == [58, 158]  # the watermark is 58
    one.feed("others", rows((62.0, "k", 62), (61.0, "k", 61)))
    one.run()
    assert numbers(one, "out") == [58, 59, 60, 158]
    one.close()
    assert numbers(one, "out") == [58, 59, 60, 61, 62, 158]
    (letter,) = one.dead_letters()
    assert (letter["vertex"], letter["error"]) == ("sort", "ValueError: negative")
    assert one.counts["failed.sort"] == 1


@slow
def test_results_of_a_function_are_reduced_again(bench: Make) -> None:
    """Numaflow's keyed 10 s, then not keyed 60 s: 180 in a minute."""
    one = bench(
        started(max_delay="0s")
        .window(fixed="10s")
        .reduce(spread, "tens", key="key", returns="found array<bigint>, n bigint")
        .window(fixed="1m")
        .aggregate("minutes", total="sum(n)", parts="count(*)")
        .sink(name="out", files="a")
    )
    one.feed("events", rows(*((float(s), "abc"[n], n) for s in range(60) for n in range(3))))
    one.feed("events", rows((130.0, "a", 1)))
    one.close()
    assert windows(one, "out", "total", "parts") == {(0, 180, 18): 1, (120, 1, 1): 1}
    assert one.counts.get("late.minutes") is None


# --------------------------------------------------------------- unions, idle inputs


@slow
def test_an_input_that_stops_does_not_hold_the_others(bench: Make) -> None:
    """Numaflow's idle source: two inputs give 20 a window; one stops, and it is 10, not nothing."""
    one = bench(
        started(max_delay="0s")
        .source("others", quiver="r")
        .union("events")
        .window(fixed="10s")
        .aggregate("sums", key="key", n="count(*)", total="sum(number)")
        .sink(name="out", files="a")
    )
    for source in ("events", "others"):
        one.feed(source, rows(*((float(s), "k", 2) for s in range(10))))
    one.run()
    one.feed("events", rows(*((float(s), "k", 2) for s in range(10, 20)), (21.0, "k", 2)))
    one.run()
    one.advance(at(22))
    one.run()
    assert windows(one, "out", "n", "total") == {(0, 20, 40): 1, (10, 10, 20): 1}
    assert one.counts == {}


@slow
def test_the_watermark_of_every_edge_only_moves_forward(bench: Make, tmp_path: Path) -> None:
    """Numaflow's in -> cat1 -> cat2, each edge in a quiver, and columns that are never null."""
    one = bench(
        started(max_delay="1s")
        .durable()
        .map(add={"x": "1"}, name="cat1")
        .durable()
        .map(add={"y": "1"}, name="cat2")
        .window(fixed="1s")
        .aggregate("seconds", n="count(*)")
        .sink(name="out", files="a")
    )
    seen: dict[str, list[int]] = {}
    for turn in range(3):
        one.feed("events", rows((float(turn), "k", 1)))
        one.run()
        for query in ("events", "cat1", "cat2"):
            checkpoint = Checkpoint(str(tmp_path / "state" / query / "checkpoint"))
            (offset,) = checkpoint.offsets(checkpoint.last_planned() or 0).values()
            seen.setdefault(query, []).append(offset.claim_us)
    claims = [int(at(turn - 1).timestamp()) * 10**6 for turn in range(3)]
    assert seen == {"events": claims, "cat1": claims, "cat2": claims}
    one.close()
    assert sum(row["n"] for row in one.rows("out")) == 3


# ------------------------------------------------------------------------ bad input


def endless(row: Row) -> Row:
    while row["number"] == 2:
        with contextlib.suppress(Exception):
            time.sleep(0.01)
    return {"number": "three"} if row["number"] == 3 else {"number": row["number"]}


@slow
def test_a_function_that_never_ends_or_returns_the_wrong_type_costs_one_row(
    bench: Make,
) -> None:
    one = bench(
        started()
        .map(endless, name="call", returns="number bigint", timeout="1s")
        .sink(name="out", files="a")
    )
    one.feed("events", rows(*((float(n), "k", n) for n in (1, 2, 3, 4))))
    one.run()
    assert numbers(one, "out") == [1, 4]
    errors = sorted(letter["error"] for letter in one.dead_letters())
    assert len(errors) == 2
    assert "number" in errors[0] or "three" in errors[0]
    assert errors[1] == "took longer than 1 s"
    assert one.counts["failed.call"] == 2


def slow_reducer(window: Row, rows: list[Row]) -> Any:
    if window["key"] == "slow":
        while True:
            time.sleep(0.01)
    return {"n": "many"} if window["key"] == "wrong" else [{"n": len(rows)}]


@slow
def test_a_window_whose_function_never_ends_or_returns_the_wrong_type_is_set_aside(
    bench: Make,
) -> None:
    one = bench(
        started(max_delay="0s")
        .window(fixed="10s")
        .reduce(slow_reducer, "calls", key="key", returns="n bigint", timeout="1s")
        .sink(name="out", files="a")
        .after("calls", "failed")
        .sink(name="bad", files="b")
    )
    one.feed("events", rows((1.0, "slow", 1), (1.0, "wrong", 1), (1.0, "good", 1)))
    one.close()
    assert windows(one, "out", "key", "n") == {(0, "good", 1): 1}
    errors = sorted(row["error"] for row in one.rows("bad"))
    assert errors[1] == "took longer than 1 s"
    assert "many" in errors[0]


def test_a_timer_too_far_away_is_an_error() -> None:
    from holdfast.dataflow.compiler.reducers import Context

    context = Context({}, None, at(0), at(5), timedelta(seconds=10))
    context.set_timer(at(15))
    with pytest.raises(ValueError, match="timer_span"):
        context.set_timer(at(15.001))
