"""Rows that do not fit become dead letters with their batch, each once, whoever dies when."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import at
from tests.dataflow.source.drifting import (
    append,
    bundle,
    driver,
    ids,
    letter_ids,
    letters,
    staged,
)
from tests.support.examples import examples

from holdfast.dataflow.source import rejected_publish as dead_letters
from holdfast.dataflow.source.rejected_publish import CONFIG, RejectedCount, rejected_totals
from holdfast.quiver import Quiver

WORDS = pa.array(["1", "many", "3", "more"])


class Killed(BaseException):
    """The driver ends here."""


def begun(folder: Path) -> None:
    """Let a query begin with numbers, and then let words come: rows 3 and 5 do not fit."""
    append(folder / "q", bundle(0, pa.array([1, 2], pa.int64())))
    made = driver(folder)
    assert ids(made.next()) == [0, 1]
    made.stop()
    append(folder / "q", bundle(2, WORDS))


def kill(made: Driver) -> None:
    """Let go of what the driver has open, without a word to anybody."""
    planner = made.reader._planner
    if planner is not None:
        for gateway in planner._gateways:
            gateway.close()
        made.reader._planner = None


def totals(folder: Path) -> dict[str, int]:
    return dict(rejected_totals(folder / "checkpoint"))


def test_they_are_written_with_their_batch_and_counted(tmp_path: Path) -> None:
    begun(tmp_path)
    made = driver(tmp_path)
    planned = made.plan()
    assert planned is not None
    assert ids(made.run(planned)) == [2, 4]
    assert letters(tmp_path) == []  # the batch is not committed yet
    assert len(staged(tmp_path)) == 1
    made.finish(planned)
    assert made.plan() is None
    first, second = letters(tmp_path)
    assert (first["vertex"], first["attempts"], first["event_time"]) == ("events", 0, at(3))
    assert first["error"].startswith(
        "events: row 1 of bundle 1: column 'n' is string there and int64 in the query, and the "
        "value does not fit: Failed to parse string: 'many' as a scalar of type int64 [quiver "
    )
    with pa.ipc.open_stream(second["payload"]) as stream:
        assert stream.read_all().to_pylist() == [{"at": at(5), "id": 5, "n": "more"}]
    assert staged(tmp_path) == []
    assert totals(tmp_path) == {"events": 2}
    made.stop()
    assert letter_ids(tmp_path) == [3, 5]


def test_a_driver_counts_what_was_set_aside_since_it_began(tmp_path: Path) -> None:
    begun(tmp_path)
    for first in (2, 6):
        count = RejectedCount(tmp_path / "checkpoint")
        made = driver(tmp_path)
        made.next()
        count.look()
        assert count.by_vertex == {}
        made.stop()
        count.look()
        assert count.by_vertex == {"events": 2}
        append(tmp_path / "q", bundle(first + 4, WORDS))


def test_a_batch_without_them_writes_nothing(tmp_path: Path) -> None:
    append(tmp_path / "q", bundle(0, pa.array([1, 2], pa.int64())))
    made = driver(tmp_path)
    assert ids(made.next()) == [0, 1]
    made.stop()
    assert not (tmp_path / "letters").exists()
    assert totals(tmp_path) == {}


# -------------------------------------------------------------------------------- deaths


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, place: str, *, after: bool) -> Iterator[None]:
    """End the driver at one step, before or after its effect."""
    owner, name = {
        "begin": (dead_letters._RejectedNote, "begin"),
        "append": (Quiver, "append"),
        "finish": (dead_letters._RejectedNote, "finish"),
        "remove": (Path, "unlink"),
    }[place]
    step: Callable[..., Any] = getattr(owner, name)

    def die(*args: Any, **options: Any) -> None:
        if place == "remove" and not str(args[0]).endswith(".arrow"):
            step(*args, **options)
            return
        if after:
            step(*args, **options)
        raise Killed(place)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            yield


@pytest.mark.thinned(3)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", ["begin", "append", "finish", "remove"])
@pytest.mark.parametrize("log", ["kept", "lost"])
def test_a_driver_that_dies_loses_none_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, after: bool, log: str
) -> None:
    """Also if the power went, and took the batch from Spark's logs: it is planned anew, longer."""
    begun(tmp_path)
    made = driver(tmp_path)
    assert ids(made.next()) == [2, 4]
    with dying(monkeypatch, place, after=after):
        made.plan()
    kill(made)
    append(tmp_path / "q", bundle(6, WORDS))
    if log == "lost":
        for name in ("offsets", "commits"):
            (tmp_path / "checkpoint" / name / "1").unlink()
    again = driver(tmp_path)
    assert ids(again.next()) == ([6, 8] if log == "kept" else [2, 4, 6, 8])
    again.stop()
    assert letter_ids(tmp_path) == [3, 5, 7, 9]
    assert totals(tmp_path) == {"events": 4}
    assert staged(tmp_path) == []


def test_many_are_written_in_parts_and_a_death_between_them_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PART_BYTES", 1000)
    begun(tmp_path)
    append(tmp_path / "q", bundle(6, pa.array([f"word {n}" for n in range(10)])))
    made = driver(tmp_path)
    assert ids(made.next()) == [2, 4]
    step, appended = Quiver.append, []

    def die_at_the_third(*args: Any, **options: Any) -> None:
        appended.append(options["epoch"])
        if len(appended) == 3:
            raise Killed
        step(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Quiver, "append", die_at_the_third)
        with pytest.raises(Killed):
            made.plan()
    kill(made)
    assert 0 < len(letter_ids(tmp_path)) < 12
    driver(tmp_path).reader.planner.close()
    assert letter_ids(tmp_path) == [3, 5, *range(6, 16)]
    assert totals(tmp_path) == {"events": 12}


def test_a_batch_that_is_run_again_sets_them_aside_once(tmp_path: Path) -> None:
    begun(tmp_path)
    made = driver(tmp_path)
    planned = made.plan()
    assert planned is not None
    made.run(planned)
    kill(made)
    again = driver(tmp_path)
    assert again.plan() == planned
    assert ids(again.run(planned)) == [2, 4]
    again.run(planned)  # a query may read its source twice
    again.finish(planned)
    again.stop()
    assert letter_ids(tmp_path) == [3, 5]
    assert totals(tmp_path) == {"events": 2}


def test_a_task_that_comes_too_late_changes_nothing(tmp_path: Path) -> None:
    begun(tmp_path)
    made = driver(tmp_path)
    planned = made.plan()
    assert planned is not None
    made.run(planned)
    (path,) = staged(tmp_path)
    shutil.copy(path, tmp_path / "copy")
    made.finish(planned)
    assert made.plan() is None
    shutil.copy(tmp_path / "copy", path)
    append_late(made, tmp_path)
    assert letter_ids(tmp_path) == [3, 5, 7, 9]
    assert staged(tmp_path) == []


def append_late(made: Driver, folder: Path) -> None:
    """Run one more batch."""
    kill(made)
    append(folder / "q", bundle(6, WORDS))
    again = driver(folder)
    assert ids(again.next()) == [6, 8]
    again.stop()


def test_two_quivers_have_numbers_of_their_own(tmp_path: Path) -> None:
    append(tmp_path / "other", bundle(100, pa.array([1], pa.int64())))
    append(tmp_path / "q", bundle(0, pa.array([1], pa.int64())))
    made = driver(tmp_path, tmp_path / "other")
    assert ids(made.next()) == [0, 100]
    made.stop()
    append(tmp_path / "q", bundle(1, WORDS))
    append(tmp_path / "other", bundle(101, WORDS))
    again = driver(tmp_path, tmp_path / "other")
    assert ids(again.next()) == [1, 3, 101, 103]
    again.stop()
    assert sorted(letter_ids(tmp_path)) == [2, 4, 102, 104]
    assert totals(tmp_path) == {"events": 4}


# ---------------------------------------------------------------------------- the others


def test_while_somebody_has_them_open_nothing_is_acknowledged_and_all_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "FREE_TIMEOUT_S", 0.2)
    begun(tmp_path)
    made = driver(tmp_path)
    (gateway,) = made.reader.planner._gateways
    with Quiver.open(tmp_path / "letters", CONFIG):
        assert ids(made.next()) == [2, 4]
        assert made.plan() is None
        assert gateway.position().seq == 1
    assert made.plan() is None
    assert gateway.position().seq == 2
    made.stop()
    assert letter_ids(tmp_path) == [3, 5]


def test_a_query_that_starts_again_has_the_types_it_began_with(tmp_path: Path) -> None:
    """What is stored has a wider type by now, or types with nothing in common."""
    append(tmp_path / "q", bundle(0, pa.array([1], pa.int64())))
    driver(tmp_path)
    rows = bundle(1, pa.array([0.5])).append_column("new", pa.array(["!"]))
    append(tmp_path / "q", rows.drop_columns(["at"]))
    wider = driver(tmp_path).schema
    assert wider.field("n").type == pa.int64()
    assert {"at", "new"} <= set(wider.names)  # columns that are new come along
    append(tmp_path / "q", bundle(2, WORDS))
    made = driver(tmp_path)
    assert made.schema == wider
    assert ids(made.next()) == [0, 2, 4]
    made.stop()
    assert letter_ids(tmp_path) == [1, 3, 5]


def test_the_watermark_passes_them_like_all_that_is_read(tmp_path: Path) -> None:
    """They hold nothing when their batch is planned, and what is unread still does."""
    append(tmp_path / "q", bundle(0, pa.array([1, 2], pa.int64())))
    made = driver(tmp_path, watermark="true", max_delay="0s")
    made.next()
    made.stop()
    append(tmp_path / "q", bundle(2, WORDS), bundle(6, WORDS), seal_each=True)
    again = driver(tmp_path, watermark="true", max_delay="0s")
    rows = again.next(max_rows=4)
    assert rows is not None
    # Its own control row, and the rows that fit; the next bundle begins at second 6.
    assert (rows.column("_control").to_pylist().count(True), ids(rows)) == (1, [2, 4])
    assert set(rows.column("_wm").to_pylist()) == {at(6)}
    # Read once: a batch that is committed is acknowledged, and its segment may go.
    last = again.next()
    assert last is not None
    assert set(last.column("_wm").to_pylist()) == {at(9)}
    again.stop()


# ------------------------------------------------------------------------------ property

VALUES = [
    pa.array([1, None, 3], pa.int64()),
    pa.array(["7", "word", None]),
    pa.array([2.0, 2.5]),
    pa.array([{"x": 1}, None]),
    pa.array([2**60, 4], pa.uint64()),
    pa.array([True]),
    pa.nulls(2),
]
FITTING = {0: 3, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1, 6: 2}
Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.just("bundle"), st.integers(0, len(VALUES) - 1))
    | st.tuples(st.sampled_from(["seal", "batch", "half a batch", "kill"]), st.integers(1, 6)),
    max_size=25,
)


@settings(max_examples=examples(40))
@given(STEPS)
def test_rows_that_went_on_and_dead_letters_are_all_rows_each_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    folder = tmp_path_factory.mktemp("drift")
    append(folder / "q", bundle(0, VALUES[0]))
    made, went_on, accepted, unfit = driver(folder), list[int](), 3, 0
    waiting: list[pa.RecordBatch] = []
    for what, number in [*steps, ("seal", 1), ("batch", 100), ("batch", 100)]:
        if what == "bundle":
            waiting.append(bundle(accepted, VALUES[number]))
            accepted += len(VALUES[number])
            unfit += len(VALUES[number]) - FITTING[number]
        elif what == "seal":
            made.stop()
            append(folder / "q", *waiting)
            made, waiting = driver(folder), []
        elif what == "batch":
            went_on += ids(made.next(max_rows=number))
        elif what == "half a batch":
            planned = made.plan(max_rows=number)
            if planned is not None:
                made.run(planned)
        else:
            kill(made)
            made = driver(folder)
    made.stop()
    rejected = letter_ids(folder)
    assert sorted([*went_on, *rejected]) == list(range(accepted))
    assert (rejected, len(rejected)) == (sorted(rejected), unfit)
    assert totals(folder).get("events", 0) == unfit
