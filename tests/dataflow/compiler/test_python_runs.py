"""Python functions in a run: what they return, how they fail, and that the others go on."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dataflow.quivers import at

from holdfast.dataflow.compiler.calls import FAILED_TYPE, FunctionFailed
from holdfast.dataflow.compiler.python import ALWAYS_LATE_US, Call, CallKind, FunctionRun
from holdfast.dataflow.spec.vertices import RetrySettings
from holdfast.quiver.base.envelope import TIME_TYPE

COLUMNS = pa.schema([("key", pa.string()), ("number", pa.int64())])
SYSTEM = pa.schema(
    [
        ("_event_time", TIME_TYPE),
        ("_wm_prev", TIME_TYPE),
        ("_control", pa.bool_()),
        ("_failed", FAILED_TYPE),
        ("_tags", pa.list_(pa.string())),
    ]
)


def batch(*numbers: int, control: bool = False) -> pa.RecordBatch:
    """Return rows with these numbers, as many seconds after the start, and a control row."""
    rows: list[dict[str, Any]] = [
        {"key": f"k{n}", "number": n, "_event_time": at(n), "_wm_prev": at(0), "_control": False}
        for n in numbers
    ]
    if control:
        rows.append({"_event_time": at(99), "_wm_prev": at(0), "_control": True})
    return pa.RecordBatch.from_pylist(rows, pa.schema([*COLUMNS, *SYSTEM]))


def call(function: Any, kind: CallKind = "map", **options: Any) -> Call:
    given: dict[str, Any] = {"returns": COLUMNS, "timeout_s": 60.0, "retry": RetrySettings()}
    return Call(vertex="v", kind=kind, function=function, **{**given, **options})


def run(given: pa.RecordBatch, *calls: Call) -> list[dict[str, Any]]:
    """Return all rows after some calls, the last one's columns."""
    schema = pa.schema([*calls[-1].returns, *SYSTEM])
    out = list(FunctionRun(calls, schema)(iter([given])))
    assert all(one.schema == schema for one in out)
    return [row for one in out for row in one.to_pylist()]


def good(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["_failed"] is None and not row["_control"]]


def failed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row["_failed"] for row in rows if row["_failed"] is not None]


def test_a_map_gets_rows_and_returns_rows() -> None:
    def double(row: dict[str, Any]) -> dict[str, Any] | None:
        return {"key": row["key"], "number": row["number"] * 2} if row["number"] != 2 else None

    rows = run(batch(1, 2, 3), call(double))
    assert [(r["key"], r["number"], r["_event_time"]) for r in rows] == [
        ("k1", 2, at(1)),
        ("k3", 6, at(3)),
    ]


def test_filters_and_flat_maps_keep_the_time_of_their_row() -> None:
    def some(row: dict[str, Any]) -> bool:
        return bool(row["number"] % 2)

    def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _ in range(row["number"]):
            yield {"number": row["number"]}

    rows = run(batch(1, 2, 3), call(some, "filter"), call(twice, "flat_map"))
    assert [(r["key"], r["number"], r["_event_time"]) for r in rows] == [
        (None, 1, at(1)),
        *[(None, 3, at(3))] * 3,
    ]


def test_a_batch_function_gets_arrow_and_returns_arrow() -> None:
    def shift(rows: pa.RecordBatch) -> pa.Table:
        numbers = pa.array([n + 10 for n in rows.column("number").to_pylist()])
        return pa.table({"number": numbers, "_tags": [["x"]] * rows.num_rows})

    rows = run(batch(1, 2), call(shift, takes_arrow=True))
    assert [(r["number"], r["key"], r["_tags"]) for r in rows] == [
        (11, None, ["x"]),
        (12, None, ["x"]),
    ]


def test_control_rows_pass_whatever_functions_do() -> None:
    def never(row: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("called for a control row")

    rows = run(
        batch(control=True), call(never), call(never, "flat_map"), call(never, takes_arrow=True)
    )
    assert [(row["_control"], row["_event_time"]) for row in rows] == [(True, at(99))]


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (7, "TypeError: returned int, not a row"),
        ({"nmber": 1}, "returned nmber, which is not in `returns`"),
        ({"number": "seven"}, "ArrowInvalid"),
        ({"number": 2**70}, "Error"),
        ({"number": 1, "_tags": 5}, "Arrow"),
    ],
)
def test_a_wrong_result_costs_its_row_and_no_other(returned: Any, error: str) -> None:
    def wrong(row: dict[str, Any]) -> Any:
        return returned if row["number"] == 2 else row_of(row)

    rows = run(batch(1, 2, 3), call(wrong))
    assert [row["number"] for row in good(rows)] == [1, 3]
    (letter,) = failed(rows)
    assert error in letter["error"]
    assert (letter["vertex"], letter["attempts"]) == ("v", 1)
    assert json.loads(letter["row"]) == {"key": "k2", "number": 2}


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["key"], "number": row["number"]}


def test_a_row_that_fails_is_tried_again_as_often_as_said() -> None:
    tries: list[int] = []

    def flaky(row: dict[str, Any]) -> dict[str, Any]:
        tries.append(row["number"])
        if row["number"] == 2 or tries.count(row["number"]) < 2:
            raise ConnectionError("not now")
        return row_of(row)

    retry = RetrySettings(attempts=3, interval=0.0)
    rows = run(batch(1, 2), call(flaky, retry=retry))
    assert [row["number"] for row in good(rows)] == [1]
    assert [(one["attempts"], one["error"]) for one in failed(rows)] == [
        (3, "ConnectionError: not now")
    ]
    assert tries == [1, 1, 2, 2, 2]


def test_a_function_that_never_ends_is_ended() -> None:
    def stuck(row: dict[str, Any]) -> dict[str, Any]:
        if row["number"] == 1:
            time.sleep(3600)
        return row_of(row)

    rows = run(batch(1, 2), call(stuck, timeout_s=0.05))
    assert [row["number"] for row in good(rows)] == [2]
    assert failed(rows)[0]["error"] == "took longer than 0.05 s"


def test_a_batch_that_fails_is_halved_down_to_the_bad_row() -> None:
    sizes: list[int] = []

    def picky(rows: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(rows.num_rows)
        if 3 in rows.column("number").to_pylist():
            raise ValueError("three")
        return rows

    rows = run(batch(1, 2, 3, 4, 5), call(picky, takes_arrow=True))
    assert sorted(row["number"] for row in good(rows)) == [1, 2, 4, 5]
    assert [json.loads(one["row"])["number"] for one in failed(rows)] == [3]
    assert sizes[0] == 5


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30), st.sets(st.integers(0, 5)), st.booleans())
def test_every_row_goes_on_or_is_set_aside(
    numbers: list[int], bad: set[int], in_batches: bool
) -> None:
    def one(row: dict[str, Any]) -> dict[str, Any]:
        if row["number"] in bad:
            raise ValueError
        return row_of(row)

    def many(rows: pa.RecordBatch) -> pa.RecordBatch:
        if bad & set(rows.column("number").to_pylist()):
            raise ValueError
        return rows

    rows = run(batch(*numbers), call(many, takes_arrow=True) if in_batches else call(one))
    assert sorted(r["number"] for r in good(rows)) == sorted(n for n in numbers if n not in bad)
    letters = [json.loads(letter["row"])["number"] for letter in failed(rows)]
    assert sorted(letters) == sorted(n for n in numbers if n in bad)


def test_rows_that_failed_before_are_not_asked_again() -> None:
    def first(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("first")

    def second(row: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("called for a failed row")

    rows = run(batch(1), call(first), call(second))
    assert [one["error"] for one in failed(rows)] == ["ValueError: first"]


def test_a_failure_may_be_the_end() -> None:
    def no(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(FunctionFailed, match="v failed at row 0, after 1 tries: ValueError: no"):
        run(batch(1), call(no, is_fatal=True))


def test_a_sink_keeps_the_columns_of_rows_it_did_not_take() -> None:
    def take(row: dict[str, Any]) -> None:
        if row["number"] == 2:
            raise ConnectionError

    rows = run(batch(1, 2), call(take, "sink"))
    assert sorted((row["number"], row["_failed"] is None) for row in rows) == [
        (1, True),
        (2, False),
    ]


def test_a_function_may_set_tags_and_a_later_time_but_not_an_earlier_one() -> None:
    def move(row: dict[str, Any]) -> dict[str, Any]:
        by = {1: 0, 2: 5, 3: -1}[row["number"]]
        time = None if row["number"] == 4 else at(row["number"] + by)
        return {**row_of(row), "_event_time": time, "_tags": ["a", "b"]}

    rows = run(batch(1, 2, 3), call(move))
    assert [(row["_event_time"], row["_tags"]) for row in rows] == [
        (at(1), ["a", "b"]),
        (at(7), ["a", "b"]),
        (at(2), ["a", "b"]),
    ]
    always = pa.scalar(ALWAYS_LATE_US, TIME_TYPE).as_py()
    assert [row["_wm_prev"] for row in rows] == [at(0), at(0), always]


def test_a_run_leaves_no_alarm_behind_and_takes_none_away() -> None:
    def told(number: int, frame: Any) -> None:
        raise AssertionError("nobody set this alarm")

    before = signal.signal(signal.SIGALRM, told)
    try:
        rows = run(batch(1, 2), call(row_of, timeout_s=0.05))
        assert len(rows) == 2
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is told
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_limit_is_that_of_the_call_under_way() -> None:
    """The clock goes on between calls, and through calls that may take longer."""

    def short(row: dict[str, Any]) -> dict[str, Any]:
        if row["number"] == 2:
            time.sleep(3600)
        return row_of(row)

    def long(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.2)
        return row_of(row)

    rows = run(batch(1, 2, 3), call(short, timeout_s=0.1), call(long, timeout_s=60.0))
    assert [row["number"] for row in good(rows)] == [1, 3]
    assert [one["error"] for one in failed(rows)] == ["took longer than 0.1 s"]


def test_filters_by_arrow_let_rows_through_whose_value_is_true() -> None:
    def odd(rows: pa.RecordBatch) -> pa.Array:
        numbers = rows.column("number").to_pylist()
        return pa.array([None if n == 5 else bool(n % 2) for n in numbers])

    rows = run(batch(1, 2, 3, 5, control=True), call(odd, "filter", takes_arrow=True))
    kept = [(r["number"], r["key"], r["_event_time"]) for r in good(rows)]
    assert kept == [(1, "k1", at(1)), (3, "k3", at(3))]
    assert sum(row["_control"] for row in rows) == 1


def test_flat_maps_by_arrow_say_of_which_row_each_is() -> None:
    def twice(rows: pa.RecordBatch) -> pa.Table:
        places = [place for place in range(rows.num_rows) for _ in range(2) if place != 1]
        numbers = [rows.column("number")[place].as_py() * 10 for place in places]
        return pa.table({"number": numbers, "_origin": places})

    made = call(twice, "flat_map", takes_arrow=True, keep=("key",))
    rows = run(batch(1, 2, 3), made)
    assert [(r["key"], r["number"], r["_event_time"]) for r in rows] == [
        *[("k1", 10, at(1))] * 2,
        *[("k3", 30, at(3))] * 2,
    ]


@pytest.mark.parametrize(
    ("kind", "returned", "error"),
    [
        ("filter", [True], "returned list, not an array"),
        ("filter", pa.array([1]), "returned int64 values, not an array of true and false"),
        ("filter", pa.array([True, True]), "returned 2 values for 1 rows"),
        ("flat_map", pa.table({"number": [1]}), "returned no column _origin"),
        ("flat_map", pa.table({"number": [1], "_origin": [1]}), "_origin names a row"),
        ("flat_map", pa.table({"number": [1], "_origin": [-1]}), "_origin names a row"),
        ("flat_map", pa.table({"number": [1], "_origin": [None]}), "_origin names a row"),
        ("flat_map", pa.table({"number": [1], "_origin": ["x"]}), "Arrow"),
        ("flat_map", {"number": 1}, "returned dict"),
    ],
)
def test_what_an_arrow_function_returns_wrongly_costs_its_rows(
    kind: CallKind, returned: Any, error: str
) -> None:
    rows = run(batch(7), call(lambda rows: returned, kind, takes_arrow=True))
    (letter,) = failed(rows)
    assert error in letter["error"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=20), st.sets(st.integers(0, 5)))
def test_by_rows_and_by_arrow_is_the_same(numbers: list[int], bad: set[int]) -> None:
    def small(row: dict[str, Any]) -> bool:
        if row["number"] in bad:
            raise ValueError
        return bool(row["number"] < 3)

    def repeated(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row_of(row)] * row["number"]

    def smalls(rows: pa.RecordBatch) -> pa.Array:
        if bad & set(rows.column("number").to_pylist()):
            raise ValueError
        return pc.less(rows.column("number"), 3)

    def repeats(rows: pa.RecordBatch) -> pa.RecordBatch:
        counts = rows.column("number").to_pylist()
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        origins = pa.array(places, pa.int64())
        return rows.take(origins).append_column("_origin", origins)

    by_rows = run(batch(*numbers), call(small, "filter"), call(repeated, "flat_map"))
    by_arrow = run(
        batch(*numbers),
        call(smalls, "filter", takes_arrow=True),
        call(repeats, "flat_map", takes_arrow=True),
    )
    order = {"key": lambda row: (row["_event_time"], row["_failed"] is None)}
    assert sorted(by_rows, **order) == sorted(by_arrow, **order)  # type: ignore[call-overload]
