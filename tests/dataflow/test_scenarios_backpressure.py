"""Backpressure: sources wait while too much is behind them, and go on when there is room again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import at, fill
from tests.dataflow.spec.pipelines import pipeline, same
from tests.patience import PATIENCE_S

from holdfast.dataflow.compiler.continuation import record_of
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import Plan, make_plan
from holdfast.dataflow.driver.own_quivers import Buffers
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.pipeline import BufferSettings
from holdfast.quiver import Cursor, Quiver


def limited(one: PipelineSettings, max_rows: int = 10) -> Plan:
    return make_plan("p", one.model_copy(update={"buffers": BufferSettings(max_rows=max_rows)}))


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[tuple[Buffers, Plan, Places]]:
    """Two queries with a quiver between, of which ten rows may wait."""
    durable = {"from": "a", "to": "m", "durable": True}
    plan = limited(pipeline(durable, "m -> z", a="source", m="map", z="sink"))
    places = Places(tmp_path / "state", tmp_path)
    buffers = Buffers(plan, places)
    yield buffers, plan, places
    buffers.close()


def put(quiver: Quiver, rows: int) -> None:
    found = [{"number": number, EVENT_TIME: at(number)} for number in range(rows)]
    quiver.append({SLOT: pa.RecordBatch.from_pylist(found)})


def take(cursor: Cursor) -> None:
    planned = cursor.plan(max_events=1)
    assert planned is not None
    cursor.commit(planned)


def test_a_source_waits_while_a_file_is_there(tmp_path: Path) -> None:
    fill(tmp_path / "quiver", [(1.0, "k", 1)], seal_each=True)
    wait = tmp_path / "wait"
    wait.touch()
    driver = Driver(str(tmp_path / "quiver"), tmp_path / "c", wait_while=wait, poll_every="0s")
    assert driver.next() is None
    wait.unlink()
    rows = driver.next()
    assert rows is not None
    assert rows.num_rows == 1
    driver.stop()


def test_a_query_waits_for_what_it_writes_and_goes_on_with_some_room(
    cut: tuple[Buffers, Plan, Places],
) -> None:
    buffers, plan, places = cut
    first, second = plan.queries
    quiver = buffers._quivers["a"]
    cursor = quiver.cursor("p.m.a")
    for _ in range(11):
        put(quiver, 1)
        buffers.look()
    assert buffers.waiting_rows(first) == 11
    assert places.wait_file(first).exists()
    assert not places.wait_file(second).exists()  # nothing is behind it
    for left in (10, 9):
        take(cursor)
        buffers.look()
        assert places.wait_file(first).exists(), left
    take(cursor)
    buffers.look()
    assert not places.wait_file(first).exists()


def test_a_driver_looks_by_itself_and_a_new_one_begins_without_waiting(
    cut: tuple[Buffers, Plan, Places], tmp_path: Path
) -> None:
    buffers, plan, places = cut
    first = plan.queries[0]
    quiver = buffers._quivers["a"]
    put(quiver, 11)
    buffers.start()
    give_up_s = time.monotonic() + PATIENCE_S
    while not places.wait_file(first).exists() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert places.wait_file(first).exists()
    buffers.close()
    again = Buffers(plan, places)
    assert not places.wait_file(first).exists()
    again.close()


def test_a_full_retry_lane_makes_its_own_query_wait(tmp_path: Path) -> None:
    again = {"map": {"python": same, "retry_lane": {}}}
    plan = limited(pipeline("a -> f", "f -> z", a="source", f=again, z="sink"), max_rows=2)
    places = Places(tmp_path / "state", tmp_path)
    buffers = Buffers(plan, places)
    (query,) = plan.queries
    try:
        put(buffers._quivers["a-waiting"], 3)
        buffers.look()
        assert places.wait_file(query).exists()
    finally:
        buffers.close()


def test_the_limit_is_checked() -> None:
    with pytest.raises(ValidationError, match="max_rows"):
        BufferSettings(max_rows=0)
    with pytest.raises(ValidationError, match="resume"):
        BufferSettings(resume=1.5)


def test_a_query_that_is_added_to_a_quiver_between_queries_misses_nothing(tmp_path: Path) -> None:
    """It began when it first planned: others had written by then, and read, and let go."""
    durable = {"from": "a", "to": "m", "durable": True}
    one = pipeline(durable, "m -> z", a="source", m="map", z="sink")
    places = Places(tmp_path / "state", tmp_path)
    first = make_plan("p", one)
    buffers = Buffers(first, places)
    (between,) = buffers._quivers.values()
    put(between, 3)
    (reader,) = between.subscribers()
    with between.cursor(reader) as cursor:
        take(cursor)
    buffers.close()
    more = {"from": "a", "to": "n", "durable": True}
    both = pipeline(
        durable, more, "m -> z", "n -> y", a="source", m="map", n="map", z="sink", y="sink"
    )
    again = Buffers(make_plan("p", both), places, last=record_of(first))
    (between,) = again._quivers.values()
    (added,) = set(between.subscribers()) - {reader}
    assert between.balance(added).pending.events == 0, "it has rows of before it was there"
    put(between, 2)
    with between.cursor(reader) as cursor:
        take(cursor)
    assert between.balance(added).pending.events == 2
    again.close()
