"""`holdfast dataflow redrive`, without Spark: letters in, rows in the lane, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.dataflow.quivers import at

from holdfast.dataflow.compiler.places import SINK_CONFIG
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.errors import BadConfig, BadInput, DirectoryLocked, HoldfastError
from holdfast.operate.cli import cli
from holdfast.quiver import Quiver
from holdfast.quiver.base.envelope import TIME_TYPE

FILE = """
pipelines:
  owned:
    vertices:
      events: {source: {quiver: ./q}}
      parse: {map: {python: "jobs:parse", retry_lane: {attempts: 2}}}
      owner: {map: {python: "jobs:owner", retry_lane: {attempts: 2}}}
      small: {filter: {python: "jobs:small"}}
      out: {sink: {files: ./out}}
    edges: [events -> parse, parse -> owner, owner -> small, small -> out]
  plain:
    vertices:
      events: {source: {quiver: ./q}}
      small: {filter: {python: "jobs:small"}}
      out: {sink: {files: ./out}}
    edges: [events -> small, small -> out]
"""
LETTERS = pa.schema(
    [("vertex", pa.string()), ("attempts", pa.int32()), ("payload", pa.binary()),
     (EVENT_TIME, TIME_TYPE)]
)  # fmt: skip


class Stand:
    """A file with pipelines, and the state of one that has dead letters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.state = folder / "state" / "owned"
        (folder / "file.yaml").write_text(FILE)

    def write(self, *vertices: str, payload: bytes | None = b"row") -> None:
        rows = [
            {"vertex": name, "attempts": 3, "payload": payload, EVENT_TIME: at(1)}
            for name in vertices
        ]
        with Quiver.open(self.state / "events" / "dead_letters", SINK_CONFIG) as letters:
            for row in rows:
                letters.append({SLOT: pa.RecordBatch.from_pylist([row], LETTERS)})

    def waiting(self) -> list[str]:
        """Return the vertices of the rows in the lane."""
        with Quiver.open(self.state / "events" / "lane" / "waiting", SINK_CONFIG) as lane:
            found = lane.scan(["vertex"], slot=SLOT).read_all()
        return [str(name) for name in found["vertex"].to_pylist()]

    def redrive(self, *arguments: str, name: str = "owned") -> str:
        words = ["dataflow", "redrive", str(self._folder / "file.yaml"), name]
        words += ["--state-dir", str(self._folder / "state")]
        told = CliRunner().invoke(cli, [*words, *arguments], catch_exceptions=True)
        if isinstance(told.exception, HoldfastError):
            raise told.exception
        assert told.exit_code == 0, told.output
        return told.output


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_letters_go_back_into_the_lane_once(stand: Stand) -> None:
    stand.write("parse", "owner", "parse")
    assert stand.redrive() == (
        "parse: 2 dead letters will come again\nowner: 1 dead letters will come again\n"
    )
    assert sorted(stand.waiting()) == ["owner", "parse", "parse"]
    with pytest.raises(BadInput, match="no dead letter of parse, owner can come again") as told:
        stand.redrive()
    assert "not sent twice" in told.value.hint
    assert len(stand.waiting()) == 3


def test_only_those_of_a_vertex_go(stand: Stand) -> None:
    stand.write("parse", "owner")
    told: dict[str, Any] = json.loads(stand.redrive("--vertex", "owner", "--json"))
    assert told == {"sent": 1, "left": 0, "vertices": {"owner": {"sent": 1, "left": 0}}}
    assert stand.waiting() == ["owner"]
    assert json.loads(stand.redrive("--json"))["vertices"] == {
        "parse": {"sent": 1, "left": 0}, "owner": {"sent": 0, "left": 0},
    }  # fmt: skip
    assert stand.waiting() == ["owner", "parse"]


def test_letters_of_before_the_lane_are_told_of(stand: Stand) -> None:
    stand.write("parse", payload=None)
    with pytest.raises(BadInput, match="1 failed before there was a retry lane"):
        stand.redrive("--vertex", "parse")


def test_without_letters_there_is_nothing_to_do(stand: Stand) -> None:
    with pytest.raises(BadInput, match="no dead letter of parse, owner can come again"):
        stand.redrive()


@pytest.mark.parametrize(
    ("name", "vertex", "error", "message", "hint"),
    [
        ("owned", "small", BadConfig, "small has no retry lane", "parse, owner have one"),
        ("owned", "smal", BadInput, "no vertex 'smal'", "parse, owner have one"),
        ("plain", "", BadConfig, "the pipeline has no retry lane", "none of its vertices has one"),
    ],
)
def test_without_a_lane_it_is_refused(
    stand: Stand, name: str, vertex: str, error: type[HoldfastError], message: str, hint: str
) -> None:
    with pytest.raises(error, match=message) as told:
        stand.redrive(*(["--vertex", vertex] if vertex else []), name=name)
    assert hint in told.value.hint


def test_a_pipeline_that_runs_or_is_closed_is_refused(stand: Stand) -> None:
    stand.write("parse")
    with StateDir(stand.state).lock(), pytest.raises(DirectoryLocked, match="another driver runs"):
        stand.redrive()
    StateDir(stand.state).close()
    with pytest.raises(BadConfig, match="the pipeline was closed"):
        stand.redrive()
