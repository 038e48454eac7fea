"""Windows with exact outputs: the scenarios of Numaflow's own end-to-end tests, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.dataflow.compiler.rows import Make, rows, started, windows
from tests.dataflow.quivers import at

if TYPE_CHECKING:
    pass


# One scenario is in every run of the tests: late rows, side output, watermark at equality.
slow = pytest.mark.slow


@slow
def test_a_keyed_window_gives_each_key_its_sum(bench: Make) -> None:
    """Numaflow's simple-keyed: 1, 2, 3 every second, 10 s: even 20, odd 40."""
    pipeline = (
        started(max_delay="0s")
        .map(add={"parity": "if(number % 2 = 0, 'even', 'odd')"})
        .window(fixed="10s")
        .aggregate(key="parity", total="sum(number)", n="count(*)")
        .sink(name="out", files="out")
    )
    one = bench(pipeline)
    one.feed("events", rows(*((s, "k", n) for s in range(10) for n in (1, 2, 3))))
    one.feed("events", rows((12.0, "k", 1)))
    one.run()
    assert windows(one, "out", "parity", "total", "n") == {
        (0, "even", 20, 10): 1,
        (0, "odd", 40, 20): 1,
    }
    one.close()
    assert windows(one, "out", "parity", "total", "n") == {
        (0, "even", 20, 10): 1,
        (0, "odd", 40, 20): 1,
        (10, "odd", 1, 1): 1,
    }
    assert one.counts == {}


@slow
def test_a_window_without_a_key_sums_everything_and_chains(bench: Make) -> None:
    """Numaflow's keyed 10 s, then not keyed 60 s: 1, 2, 3 a second is 360 a minute."""
    pipeline = (
        started(max_delay="0s")
        .window(fixed="10s")
        .aggregate("tens", key="key", total="sum(number)")
        .filter("total > 0", name="some")
        .window(fixed="1m")
        .aggregate("minutes", total="sum(total)", parts="count(*)")
        .sink(name="out", files="out")
    )
    one = bench(pipeline)
    one.feed("events", rows(*((s, "abc"[n - 1], n) for s in range(60) for n in (1, 2, 3))))
    one.feed("events", rows((130.0, "a", 1)))
    one.run()
    assert windows(one, "out", "total", "parts") == {(0, 360, 18): 1}
    one.close()
    assert windows(one, "out", "total", "parts") == {(0, 360, 18): 1, (120, 1, 1): 1}


@slow
def test_sliding_windows_over_windows(bench: Make) -> None:
    """Numaflow's 5 s keyed, 10 s not keyed, sliding 60/10: 30, 60, 90, …, 180, never 210."""
    pipeline = (
        started(max_delay="0s")
        .window(fixed="5s")
        .aggregate("fives", key="key", total="sum(number)")
        .window(fixed="10s")
        .aggregate("tens", total="sum(total)")
        .window(size="60s", every="10s")
        .aggregate("minutes", total="sum(total)")
        .sink(name="out", files="out")
    )
    one = bench(pipeline)
    one.feed("events", rows(*((float(s), "ab"[n % 2], n) for s in range(80) for n in (1, 2))))
    one.close()
    totals = [30, 60, 90, 120, 150, 180, 180, 180, 150, 120, 90, 60, 30]
    assert windows(one, "out", "total") == {
        (10.0 * n - 50, total): 1 for n, total in enumerate(totals)
    }


@slow
def test_sessions_end_after_a_pause_with_and_without_a_key(bench: Make) -> None:
    """Numaflow's session: 10 events a second apart, then a pause of 10 s: 5 for each key."""
    pipeline = (
        started(max_delay="0s")
        .window(session="10s")
        .aggregate("keyed", key="key", n="count(*)")
        .sink(name="keyed_out", files="a")
        .after("events")
        .window(session="10s")
        .aggregate("all", n="count(*)")
        .sink(name="all_out", files="b")
    )
    one = bench(pipeline)
    starts = (0, 20, 40)
    one.feed("events", rows(*((b + s, "ab"[s % 2], 1) for b in starts[:2] for s in range(10))))
    one.run()
    one.feed("events", rows(*((starts[2] + s, "ab"[s % 2], 1) for s in range(10))))
    one.close()
    assert windows(one, "keyed_out", "key", "n") == {
        (b + s, "ab"[s], 5): 1 for b in starts for s in (0, 1)
    }
    assert windows(one, "all_out", "n") == {(b, 10): 1 for b in starts}


def test_late_rows_go_their_own_way_and_nothing_is_lost(bench: Make) -> None:
    pipeline = (
        started(max_delay="5s")
        .window(fixed="10s")
        .aggregate("sums", n="count(*)", late="side_output")
        .sink(name="out", files="a")
        .after("sums", "late")
        .sink(name="late", files="b")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "k", 1), (12.0, "k", 2), (25.0, "k", 3)))
    one.run()
    assert windows(one, "out", "n") == {(0, 1): 1, (10, 1): 1}
    # The watermark is 20: the window that ends there is closed, the one that begins there is not.
    one.feed("events", rows((19.999, "k", 4), (20.0, "k", 5), (3.0, "k", 6)))
    one.close()
    assert windows(one, "out", "n") == {(0, 1): 1, (10, 1): 1, (20, 2): 1}
    assert [row["number"] for row in one.rows("late")] == [6, 4]
    assert one.counts["late.sums"] == 2


@slow
def test_allowed_lateness_keeps_windows_open(bench: Make) -> None:
    """Hole H3 of Numaflow: what is within the allowance is counted."""
    pipeline = (
        started(max_delay="5s")
        .window(fixed="10s")
        .aggregate("sums", n="count(*)", allowed_lateness="10s")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "k", 1), (24.9, "k", 2)))
    one.run()
    assert windows(one, "out", "n") == {}
    one.feed("events", rows((2.0, "k", 3)))  # 17.9 s behind, and its window is still open
    one.run()
    one.feed("events", rows((25.0, "k", 4)))
    one.run()
    assert windows(one, "out", "n") == {(0, 2): 1}
    one.feed("events", rows((3.0, "k", 5)))
    one.close()
    assert windows(one, "out", "n") == {(0, 2): 1, (20, 2): 1}
    assert one.counts == {"late.sums": 1}


@slow
def test_a_second_source_that_never_sends_does_not_hold_the_windows(bench: Make) -> None:
    pipeline = (
        started(max_delay="0s")
        .source("silent", quiver="r", columns_are="key string, number bigint")
        .union("events")
        .window(fixed="10s")
        .aggregate("sums", key="key", total="sum(number)")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "a", 20), (2.0, "b", 40), (11.0, "a", 1)))
    one.run()
    one.advance(at(15))
    one.run()
    assert windows(one, "out", "key", "total") == {(0, "a", 20): 1, (0, "b", 40): 1}


@slow
def test_the_clock_alone_closes_windows(bench: Make) -> None:
    pipeline = (
        started(max_delay="2s")
        .filter("key = 'a'")
        .window(fixed="10s")
        .aggregate("sums", key="key", n="count(*)")
        .filter("key = 'a'")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "a", 1), (2.0, "b", 1)))
    one.run()
    one.advance(at(11.999))
    one.run()
    assert one.rows("out") == []
    one.advance(at(12))
    one.run()
    assert windows(one, "out", "n") == {(0, 1): 1}


@slow
def test_an_event_dated_2099_changes_nothing_for_the_others(bench: Make) -> None:
    pipeline = (
        started(max_delay="0s")
        .window(fixed="10s")
        .aggregate("sums", n="count(*)")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    far = {"event_time": at(0).replace(year=2099), "key": "k", "number": 9}
    with one._quiver("events") as quiver:
        quiver.append({"events": one._batch("events", [*rows((1.0, "k", 1)), far])})
    one.advance(at(5))
    one.run()
    one.feed("events", rows((2.0, "k", 2), (11.0, "k", 3)))
    one.run()
    assert windows(one, "out", "n") == {(0, 2): 1}
    assert one.counts == {}


@slow
def test_a_time_that_is_set_back_makes_a_row_late(bench: Make) -> None:
    pipeline = (
        started(max_delay="0s")
        .map(add={"_event_time": "_event_time + make_interval(0, 0, 0, 0, 0, 0, number)"})
        .window(fixed="10s")
        .aggregate("sums", n="count(*)")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    one.feed("events", rows((1.0, "k", 0), (1.0, "k", 10), (1.0, "k", -1)))
    one.close()
    assert windows(one, "out", "n") == {(0, 1): 1, (10, 1): 1}
    assert one.counts == {"late.sums": 1}


def spread(window: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first, the last and the largest number of a window, in order of event time."""
    if window["key"] == "bad":
        raise ValueError("bad key")
    found = [row["number"] for row in rows]
    return {"first": found[0], "last": found[-1], "most": max(found)}


@slow
def test_a_function_of_a_window_gets_its_rows_in_order_when_it_closes(bench: Make) -> None:
    pipeline = (
        started(max_delay="0s")
        .window(session="5s")
        .reduce(spread, "spread", key="key", returns="first bigint, last bigint, most bigint")
        .sink(name="out", files="a")
    )
    one = bench(pipeline)
    one.feed("events", rows((2.0, "a", 7), (1.0, "a", 3), (1.5, "bad", 1)))
    one.run()
    one.feed("events", rows((4.0, "a", 5), (30.0, "a", 9)))
    one.run()
    assert windows(one, "out", "key", "first", "last", "most") == {(1, "a", 3, 5, 7): 1}
    one.close()
    assert windows(one, "out", "key", "first", "last", "most") == {
        (1, "a", 3, 5, 7): 1,
        (30, "a", 9, 9, 9): 1,
    }
    (letter,) = one.dead_letters()
    assert (letter["vertex"], letter["error"]) == ("spread", "ValueError: bad key")
    assert one.counts == {"failed.spread": 1, "written.out": 2}
