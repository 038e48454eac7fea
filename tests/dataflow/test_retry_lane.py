"""The retry lane: rows that failed come again, once, when they are due, and hold the watermark."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dataflow.quivers import at
from tests.patience import PATIENCE_S
from tests.support.examples import examples

from holdfast.dataflow.compiler.calls import FAILED_TYPE, LANE_TYPE
from holdfast.dataflow.compiler.lane import Lane
from holdfast.dataflow.compiler.places import SINK_CONFIG
from holdfast.dataflow.compiler.python import Call, FunctionRun
from holdfast.dataflow.driver.redrive import redrive
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.dataflow.spec.vertices import LaneSettings, RetrySettings
from holdfast.errors import Damaged
from holdfast.quiver import Quiver
from holdfast.quiver.base.envelope import TIME_TYPE

SECOND = 1_000_000
ROWS = pa.schema([*LANE_TYPE, pa.field("batch", pa.int64()), pa.field(EVENT_TIME, TIME_TYPE)])


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_us = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now_us


class Stand:
    """A lane in a folder, which may be opened again as after a crash."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self._folder = folder
        self.open()

    def open(self) -> None:
        names = ("waiting", "due", "written")
        quivers = [Quiver.open(self._folder / name, SINK_CONFIG) for name in names]
        self.waiting, self.due, self.written = quivers
        self.lane = Lane(self.waiting, self.due, [self.written], 600 * SECOND, self.clock)

    def close(self) -> None:
        for quiver in (self.waiting, self.due, self.written):
            quiver.close()

    def put(self, name: str, *, due_s: float = 0, event_s: float = 0, batch: int = 0) -> None:
        row = {
            "id": name, "vertex": "v", "tries": 1, "attempts": 1, "row": b"",
            "failed_us": self.clock.now_us, "due_us": self.clock.now_us + int(due_s * SECOND),
            "batch": batch, EVENT_TIME: at(event_s),
        }  # fmt: skip
        self.waiting.append({SLOT: pa.RecordBatch.from_pylist([row], ROWS)})

    def come(self) -> list[str]:
        """Return the rows that have come so far, in their order."""
        if not self.due.statement().pending_events:
            return []
        found: list[str] = self.due.scan(["id"], slot=SLOT).read_all()["id"].to_pylist()
        return found


@pytest.fixture
def stand(tmp_path: Path) -> Any:
    one = Stand(tmp_path)
    yield one
    one.close()


def test_what_keeps_rows_from_moving_is_logged_once(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks, enough = iter(range(1_000)), threading.Event()

    def move() -> NoReturn:
        if next(looks) == 2:
            enough.set()
        raise Damaged("a block cannot be read", hint="see fsck")

    monkeypatch.setattr(stand.lane, "move", move)
    with caplog.at_level(logging.WARNING, "holdfast.dataflow"):
        stand.lane.start()
        assert enough.wait(PATIENCE_S)
        stand.lane.stop()
    said = [record.message for record in caplog.records if "were not moved" in record.message]
    assert len(said) == 1


# ------------------------------------------------------------------------- moving


def test_rows_come_when_they_are_due_in_their_order(stand: Stand) -> None:
    stand.put("a", due_s=10)
    stand.put("b", due_s=1)
    assert (stand.lane.move(), stand.come(), stand.lane.rows) == (0, [], 2)
    stand.clock.now_us += 9 * SECOND
    assert stand.lane.move() == 0
    stand.clock.now_us += SECOND
    assert stand.lane.move() == 2
    assert stand.come() == ["a", "b"]
    assert stand.lane.move() == 0


def test_all_come_at_once_when_nothing_else_will(stand: Stand) -> None:
    stand.put("a", due_s=1000)
    assert stand.lane.move(hurry=True) == 1
    assert stand.come() == ["a"]


def test_a_row_that_was_moved_when_the_driver_died_comes_once(stand: Stand) -> None:
    """Killed between the append to the one quiver and the acknowledgement in the other."""
    stand.put("a")
    head = stand.lane._first()
    assert head is not None
    stand.due.append({SLOT: head.rows}, producer="lane", epoch=head.seq + 1)
    stand.close()
    stand.open()
    assert stand.lane.move() == 1
    assert stand.come() == ["a"]


def test_a_thread_moves_them_as_time_goes_on(stand: Stand) -> None:
    import time

    stand.put("a", due_s=10)
    stand.lane.start()
    try:
        stand.clock.now_us += 10 * SECOND
        give_up_s = time.monotonic() + PATIENCE_S
        while not stand.come() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        assert stand.come() == ["a"]
    finally:
        stand.lane.stop()


@settings(max_examples=examples(25))
@given(
    steps=st.lists(st.one_of(st.integers(0, 30), st.sampled_from(["move", "crash"])), max_size=12)
)
def test_no_row_is_lost_or_comes_twice_or_early(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]
) -> None:
    stand = Stand(tmp_path_factory.mktemp("lane"))
    put: dict[str, int] = {}
    try:
        for number, step in enumerate([*steps, "move"]):
            if isinstance(step, int):
                put[str(number)] = stand.clock.now_us + step * SECOND
                stand.put(str(number), due_s=step)
            elif step == "crash":
                stand.close()
                stand.open()
            else:
                stand.clock.now_us += 7 * SECOND
                stand.lane.move()
                assert all(put[name] <= stand.clock.now_us for name in stand.come())
        stand.clock.now_us += 30 * SECOND
        stand.lane.move()
        assert stand.come() == list(put)
    finally:
        stand.close()


# ------------------------------------------------------------------------ holding


def us(seconds: float) -> int:
    return int(at(seconds).timestamp() * SECOND)


def test_the_earliest_row_holds_wherever_it_waits(stand: Stand) -> None:
    """Hole H1 of Numaflow, and H2: neither the oldest row decides, nor is a nacked one left out."""
    assert stand.lane.holds_us(0) is None
    stand.put("a", event_s=10)
    stand.put("b", event_s=12, due_s=100)
    stand.put("c", event_s=11, due_s=100)
    assert stand.lane.holds_us(0) == us(10)
    stand.lane.move()
    assert stand.lane.holds_us(0) == us(10)  # it can come, and has not yet
    end_seq = stand.due.statement().through_seq + 1
    assert stand.lane.holds_us(end_seq) == us(11)  # the batch that reads it is being finished


def test_a_row_holds_no_longer_than_max_hold_nor_if_it_was_late(stand: Stand) -> None:
    stand.put("a", event_s=10)
    stand.clock.now_us += 599 * SECOND
    assert stand.lane.holds_us(0) == us(10)
    stand.clock.now_us += SECOND
    assert stand.lane.holds_us(0) is None
    stand.put("b", event_s=20)
    stand.written.heartbeat("query", us(21) * 1000)
    assert stand.lane.holds_us(0) is None


def test_a_batch_that_is_run_again_finds_what_it_put_there(stand: Stand) -> None:
    """Hole H4 of Numaflow: here a batch is known for ever, not for 60 s."""
    stand.put("a", batch=7)
    stand.put("b", batch=8)
    assert stand.lane.ids_of(7) == {"a"}
    assert stand.lane.ids_of(9) == set()
    stand.lane.move()
    assert stand.lane.ids_of(7) == {"a"}


# --------------------------------------------------------------- rows, in the task

COLUMNS = pa.schema([("key", pa.string()), ("number", pa.int64())])
SYSTEM = pa.schema(
    [
        ("_event_time", TIME_TYPE),
        ("_failed", FAILED_TYPE),
        ("_lane", LANE_TYPE),
        ("_tags", pa.list_(pa.string())),
    ]
)


def calling(function: Any, vertex: str = "v", *, attempts: int = 2, tries: int = 1) -> Call:
    return Call(
        vertex=vertex, kind="map", function=function, returns=COLUMNS, timeout_s=60.0,
        retry=RetrySettings(attempts=tries, interval=0.0),
        lane=LaneSettings(attempts=attempts, interval=5.0),
    )  # fmt: skip


def run(rows: list[dict[str, Any]], *calls: Call, batch: int = 3) -> list[dict[str, Any]]:
    given_rows = pa.RecordBatch.from_pylist(rows, pa.schema([*COLUMNS, *SYSTEM]))
    out = FunctionRun(calls, pa.schema([*COLUMNS, *SYSTEM]), batch)(iter([given_rows]))
    return [row for one in out for row in one.to_pylist()]


def refusing(row: dict[str, Any]) -> dict[str, Any]:
    raise ConnectionError("closed")


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["key"], "number": row["number"] * 2}


def same(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["key"], "number": row["number"], "_tags": ["seen"]}


def fresh(number: int) -> dict[str, Any]:
    return {"key": f"k{number}", "number": number, "_event_time": at(number)}


def again(letter: dict[str, Any]) -> dict[str, Any]:
    return {"_event_time": letter["_event_time"], "_lane": letter["_failed"]["lane"]}


def test_a_row_comes_again_to_the_very_function_it_failed_in() -> None:
    (letter,) = run([fresh(4)], calling(doubled, "first"), calling(refusing, "second"))
    lane = letter["_failed"]["lane"]
    assert (lane["id"], lane["vertex"], lane["tries"], lane["attempts"]) == (
        "second.3.0.0", "second", 1, 1,
    )  # fmt: skip
    assert lane["due_us"] - lane["failed_us"] == 5 * SECOND
    rows = run([fresh(1), again(letter)], calling(doubled, "first"), calling(same, "second"))
    # Doubled once before it failed, and not again.
    assert sorted((row["key"], row["number"]) for row in rows) == [("k1", 2), ("k4", 8)]
    assert {row["_event_time"] for row in rows} == {at(1), at(4)}
    assert all(row["_lane"] is None and row["_tags"] == ["seen"] for row in rows)


def test_a_row_comes_so_often_and_is_then_a_dead_letter_with_everything() -> None:
    function = calling(refusing, attempts=2, tries=3)
    (letter,) = run([fresh(4)], function)
    first = letter["_failed"]["lane"]
    (letter,) = run([again(letter)], function)
    second = letter["_failed"]["lane"]
    assert (second["id"], second["tries"], second["attempts"]) == (first["id"], 2, 6)
    assert second["failed_us"] == first["failed_us"]
    assert second["due_us"] - second["failed_us"] >= 10 * SECOND  # twice as long as before
    (letter,) = run([again(letter)], function)
    failed = letter["_failed"]
    assert (failed["lane"], failed["attempts"]) == (None, 9)
    assert failed["error"] == "ConnectionError: closed"
    assert '"number": 4' in failed["row"]
    kept = pa.ipc.open_stream(failed["payload"]).read_all().to_pylist()
    assert kept == [{"key": "k4", "number": 4, "_tags": None}]


def test_a_row_whose_columns_changed_meanwhile_is_a_dead_letter() -> None:
    (letter,) = run([fresh(4)], calling(refusing))
    lane = again(letter)
    other = pa.RecordBatch.from_pylist([{"number": "four"}])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, other.schema) as stream:
        stream.write_batch(other)
    lane["_lane"]["row"] = bytes(out.getvalue())
    (row,) = run([lane], calling(same))
    assert "its columns changed" in row["_failed"]["error"]
    assert row["_failed"]["lane"] is None


def test_without_a_lane_a_row_fails_at_once() -> None:
    plain = Call("v", "map", refusing, COLUMNS, 60.0, RetrySettings())
    (letter,) = run([fresh(1)], plain)
    assert (letter["_failed"]["lane"], letter["_failed"]["payload"]) == (None, None)


# ------------------------------------------------------------------------ redrive


LETTERS = pa.schema(
    [("vertex", pa.string()), ("attempts", pa.int32()), ("payload", pa.binary()),
     (EVENT_TIME, TIME_TYPE)]
)  # fmt: skip


def letter(vertex: str, payload: bytes | None = b"row", attempts: int = 9) -> dict[str, Any]:
    return {"vertex": vertex, "attempts": attempts, "payload": payload, EVENT_TIME: at(1)}


def write(letters: Quiver, *rows: dict[str, Any]) -> None:
    letters.append({SLOT: pa.RecordBatch.from_pylist(list(rows), LETTERS)})
    letters.flush()


def test_dead_letters_come_again_once_and_hold_nothing(stand: Stand, tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "dead_letters", SINK_CONFIG) as dead:
        write(dead, letter("v"), letter("v", None), letter("other", None))
        assert redrive(dead, stand.waiting, "v", ["v"]) == (1, 1)
        assert redrive(dead, stand.waiting, "v", ["v"]) == (0, 0)
    assert stand.lane.holds_us(0) is None
    assert stand.lane.move() == 1
    (row,) = (
        stand.due.scan(["vertex", "tries", "attempts", "row"], slot=SLOT).read_all().to_pylist()
    )
    assert row == {"vertex": "v", "tries": 1, "attempts": 9, "row": b"row"}


def test_letters_of_one_vertex_come_without_those_of_another(stand: Stand, tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "dead_letters", SINK_CONFIG) as dead:
        write(dead, letter("v"))
        write(dead, letter("w"))
        write(dead, letter("v"))
        assert redrive(dead, stand.waiting, "v", ["v", "w"]) == (2, 0)
        # A quiver deletes what all its readers have had.
        assert dead.balance("redrive.w").pending.events == 3
    with Quiver.open(tmp_path / "dead_letters", SINK_CONFIG) as dead:
        assert redrive(dead, stand.waiting, "w", ["v", "w"]) == (1, 0)
    assert stand.lane.move() == 3


def test_letters_that_cannot_come_again_are_kept(stand: Stand, tmp_path: Path) -> None:
    """A quiver deletes what all its readers have had: somebody has to be left who had them not."""
    with Quiver.open(tmp_path / "dead_letters", SINK_CONFIG) as dead:
        for one in (letter("v"), letter("no_lane", None), letter("v", None), letter("v")):
            write(dead, one)
        assert redrive(dead, stand.waiting, "v", ["v"]) == (2, 1)
        assert dead.balance("kept").pending.events >= 3
        kept = dead.scan(["vertex", "payload"], slot=SLOT).read_all().to_pylist()
    assert [row["vertex"] for row in kept if row["payload"] is None] == ["no_lane", "v"]
