"""Spark's own files, put right for a plan that was edited, and rows that it would leave behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from tests.dataflow.spec.pipelines import pipeline

from holdfast.dataflow.compiler.continuation import continued, record_of
from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.driver.checkpoint_edits import (
    arrange_offsets,
    copy_state,
    leftovers,
    mend_moved,
    settle_copies,
)
from holdfast.dataflow.sink.options import SLOT
from holdfast.dataflow.sink.records import BatchRecord, BatchRecords
from holdfast.dataflow.source.checkpoint import Checkpoint, Offset
from holdfast.dataflow.source.notes import recall_start, remember_start
from holdfast.errors import UnknownPosition
from holdfast.quiver import Quiver

HEADER = ["v1", '{"batchWatermarkMs":7}']


def line(subscriber: str, seq: int = 1) -> str:
    """Return a line as the source writes it."""
    return json.dumps(Offset(subscriber, {"quiver": seq}).to_fields())


def offsets(folder: Path, batch: int, *lines: str) -> Path:
    """Write the offsets of a batch, with a sum beside them."""
    path = folder / "offsets" / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((*HEADER, *lines)))
    path.with_name(f".{batch}.crc").write_bytes(b"sum")
    return path


def test_offsets_are_arranged_as_the_plan_has_its_sources(tmp_path: Path) -> None:
    old = offsets(tmp_path, 3, line("a"), line("b"))
    before = offsets(tmp_path, 4, line("a", 2), line("b", 2))
    newest = offsets(tmp_path, 5, line("a", 3), line("b", 3))
    arrange_offsets(tmp_path, ["b", "new", "a", "b"])
    assert newest.read_text().split("\n") == [
        *HEADER, line("b", 3), "-", line("a", 3), line("b", 3),
    ]  # fmt: skip
    assert before.read_text().split("\n")[2:] == [line("b", 2), "-", line("a", 2), line("b", 2)]
    assert old.read_text().split("\n")[2:] == [line("a"), line("b")]
    assert sorted(path.name for path in newest.parent.glob(".*.crc")) == [".3.crc"]
    found = Checkpoint(str(tmp_path)).offsets(5)
    assert {name: offset.seqs["quiver"] for name, offset in found.items()} == {"a": 3, "b": 3}


def test_offsets_that_are_right_are_not_touched(tmp_path: Path) -> None:
    newest = offsets(tmp_path, 0, line("a"), "-")
    arrange_offsets(tmp_path, ["a", "b"])
    assert newest.with_name(".0.crc").exists()
    arrange_offsets(tmp_path / "nothing", ["a"])


def test_a_source_that_comes_again_does_not_begin_where_it_once_began(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    remember_start(checkpoint, Offset("a", {"quiver": 0}))
    remember_start(checkpoint, Offset("b", {"quiver": 0}))
    offsets(tmp_path, 0, line("b"))
    arrange_offsets(tmp_path, ["a", "b"])
    assert recall_start(checkpoint, "a") is None
    assert recall_start(checkpoint, "b") is not None


def test_a_batch_is_the_same_however_often_its_plan_has_a_source(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    offsets(tmp_path, 0, line("a"), line("b"))
    records = BatchRecords(tmp_path, "query", checkpoint)
    records.record(0, BatchRecord(checkpoint.span(0)))
    arrange_offsets(tmp_path, ["b", "a", "c", "b"])
    assert records.judge(0, checkpoint.span(0)) == "again"
    arrange_offsets(tmp_path, ["b"])
    with pytest.raises(UnknownPosition):
        records.judge(0, checkpoint.span(0))


def test_state_of_python_reducers_is_found_where_it_was_moved_to(tmp_path: Path) -> None:
    path = tmp_path / "state" / "1" / "_metadata" / "v2" / "0"
    path.parent.mkdir(parents=True)
    old = 'v2\n{"stateSchemaFilePaths":["file:/old/place/state/1/_stateSchema/default/0_x"]}'
    path.write_text(old)
    mend_moved(tmp_path)
    new = f"file:{tmp_path}/state/1/_stateSchema/default/0_x"
    assert json.loads(path.read_text().split("\n")[1]) == {"stateSchemaFilePaths": [new]}


# ----------------------------------------------------------------- left behind

LANE = {"map": {"python": "m:f", "returns": "k string", "retry_lane": {}}}
PLAIN = {"map": {"python": "m:f", "returns": "k string"}}
REDUCE = {"reduce": {"window": {"fixed": "10s"}, "aggregate": {"n": "count(*)"}}}


def left(folder: Path, *, lane: bool) -> list[str]:
    """Return what is left behind if a lane is taken away, or the part behind a cut."""
    kinds = {"ev": "source", "m": LANE, "r": REDUCE, "z": "sink", "y": "sink"}
    edges: tuple[str, ...] = ("ev -> m", "m -> r", "r -> z", "ev -> y")
    recorded = record_of(continued("p", pipeline(*edges, **kinds), None, folder))
    # The reduce never began: else nobody may take it away.
    begun = recorded.without({"r"})
    now = {**kinds, "m": LANE if lane else PLAIN}
    if lane:
        now, edges = {"ev": "source", "m": LANE, "y": "sink"}, ("ev -> m", "ev -> y", "m -> y")
    plan = continued("p", pipeline(*edges, **now), begun, folder)
    return list(leftovers(plan, begun, Places(folder, folder)))


def put(folder: Path, reader: str) -> None:
    """Leave a row in a quiver that somebody would have read."""
    with Quiver.open(folder, SINK_CONFIG) as quiver:
        quiver.register(reader)
        quiver.append({SLOT: pa.RecordBatch.from_pylist([{"k": "a"}])})


def test_rows_in_a_lane_that_is_gone_are_not_left_behind(tmp_path: Path) -> None:
    assert left(tmp_path, lane=False) == []
    put(tmp_path / "ev" / "lane" / "waiting", "mover")
    assert left(tmp_path, lane=False) == ["1 rows wait in the retry lane of ev, which was removed"]


def test_rows_between_queries_that_are_gone_are_not_left_behind(tmp_path: Path) -> None:
    assert left(tmp_path, lane=True) == []
    put(tmp_path / "buffers" / "m", "p.r.m")
    assert left(tmp_path, lane=True) == ["1 rows of m wait for a query that was removed"]


@pytest.mark.parametrize("edit", ["moved", "removed"])
def test_rows_that_wait_for_a_vertex_are_not_left_behind_when_its_query_no_longer_reads_them(
    tmp_path: Path, edit: str
) -> None:
    """A vertex in another query reads under another name, and begins with what comes from then."""
    durable = {"from": "a", "to": "v", "durable": True}
    kinds = {"a": "source", "b": {"source": {"quiver": "r"}}, "f": "map", "v": "map"}
    kinds |= {"z": "sink", "y": "sink"}
    edges = (durable, {**durable, "to": "y"}, "b -> f", "f -> v", "v -> z")
    recorded = record_of(continued("p", pipeline(*edges, **kinds), None, tmp_path))
    places = Places(tmp_path, tmp_path)
    now = {
        "moved": (*edges[:3], {"from": "f", "to": "v", "durable": True}, edges[4]),
        "removed": edges[1:],
    }
    same, plan = (
        continued("p", pipeline(*lines, **kinds), recorded, tmp_path)
        for lines in (edges, now[edit])
    )
    assert plan.query_of("v").name == {"moved": "v", "removed": "b"}[edit]
    put(tmp_path / "buffers" / "a", "p.y.a")
    assert list(leftovers(plan, recorded, places)) == [], "they wait for another query"
    put(tmp_path / "buffers" / "a", "p.b.a")
    (left,) = leftovers(plan, recorded, places)
    whose = {"moved": "v in b", "removed": "b"}[edit]
    assert left.startswith(f"2 rows of a wait for {whose}, which would no longer read them: ")
    assert list(leftovers(same, recorded, places)) == []


def test_a_batch_that_was_begun_is_finished_by_the_same_sources(tmp_path: Path) -> None:
    kinds = {"ev": "source", "aa": {"source": {"quiver": "r"}}, "z": "sink"}
    edges = ("ev -> z", "aa -> z")
    recorded = record_of(continued("p", pipeline(*edges, **kinds), None, tmp_path))
    kinds.pop("aa")
    plan = continued("p", pipeline("ev -> z", **kinds), recorded, tmp_path)
    places = Places(tmp_path, tmp_path)
    checkpoint = tmp_path / recorded.queries[0].name / "checkpoint"
    offsets(checkpoint, 0, line("p.ev"), line("p.aa"))
    assert "a batch with aa was started" in next(leftovers(plan, recorded, places))
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").touch()
    assert list(leftovers(plan, recorded, places)) == []


# ------------------------------------------------------------------ copied states


def operator(folder: Path, number: int) -> Path:
    """Make a state as Spark has it."""
    state = folder / "state" / str(number)
    (state / "0").mkdir(parents=True)
    (state / "0" / "7.changelog").write_bytes(b"rows")
    (state / "_metadata").mkdir()
    info = {"operatorId": number, "operatorName": "stateStoreSave"}
    told = json.dumps({"operatorInfo": info}, separators=(",", ":"))
    (state / "_metadata" / "metadata").write_text(f"v1\n{told}")
    (state / "_metadata" / ".metadata.crc").write_bytes(b"sum")
    return state


def test_a_copied_state_is_that_of_another_operator(tmp_path: Path) -> None:
    known = operator(tmp_path, 1)
    copy_state(tmp_path, 1, 2)
    copied = tmp_path / "state" / "2"
    assert (copied / "0" / "7.changelog").read_bytes() == b"rows"
    told = (copied / "_metadata" / "metadata").read_text()
    assert '"operatorId":2,' in told
    assert not (copied / "_metadata" / ".metadata.crc").exists()
    assert '"operatorId":1,' in (known / "_metadata" / "metadata").read_text()
    assert (known / "_metadata" / ".metadata.crc").exists()
    copy_state(tmp_path, 5, 6)  # it never ran
    assert not (tmp_path / "state" / "6").exists()


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_copy_that_no_plan_file_tells_of_is_removed(tmp_path: Path, is_recorded: bool) -> None:
    """The driver was killed between the copy and the plan file, and the file changed back."""
    operator(tmp_path, 0)
    copy_state(tmp_path, 0, 1)
    settle_copies(tmp_path, 2 if is_recorded else 1)
    assert (tmp_path / "state" / "1").exists() is is_recorded
    assert (tmp_path / "state" / "0").exists()
    settle_copies(tmp_path, 1)
    assert (tmp_path / "state" / "1").exists() is is_recorded


def test_a_copy_that_was_left_half_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator(tmp_path, 0)
    for step in ("link", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, _killed)
            with pytest.raises(KeyboardInterrupt):
                copy_state(tmp_path, 0, 1)
        assert not (tmp_path / "state" / "1").exists()
        settle_copies(tmp_path, 1)
    copy_state(tmp_path, 0, 1)
    assert (tmp_path / "state" / "1" / "0" / "7.changelog").read_bytes() == b"rows"
    assert not (tmp_path / "holdfast" / "state-1").exists()


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
