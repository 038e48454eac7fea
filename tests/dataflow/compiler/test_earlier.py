"""State of the version before plan files, without Spark: whose it is, also if the file changed."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.dataflow.golden.shapes import SHAPES, TENS, pipeline

from holdfast.dataflow.compiler.continuation import continued, planned, record_of, recorded_plan
from holdfast.dataflow.compiler.plan import Plan
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
# The queries of each shape, with the reduces as Spark had numbered them.
QUERIES: dict[str, dict[str, tuple[str, ...]]] = {
    "one": {"ev": ("tens",)},
    "two": {"ev": ("tens", "minutes")},
    "chain": {"ev": ("minutes", "tens")},
    "windows": {"ev": ("slide", "session")},
    "cut": {"ev": (), "tens": ("tens",)},
    "lane": {"ev": (), "minutes": ("minutes",)},
    "python": {"ev": ("tens", "session")},
    "files": {"ev": ("tens",)},
}


def unpacked(name: str, folder: Path) -> Path:
    """Return a golden state directory."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "state"


def plan_of(state: Path, written: dict[str, Any]) -> Plan:
    return planned("golden", PipelineSettings.model_validate(written), state)


@pytest.mark.parametrize("name", SHAPES)
def test_state_is_known_whatever_the_order_of_lines_is_now(tmp_path: Path, name: str) -> None:
    state, written = unpacked(name, tmp_path), pipeline(name)
    turned = {
        **written,
        "vertices": dict(reversed(written["vertices"].items())),
        "edges": list(reversed(written["edges"])),
    }
    for file in (written, turned):
        plan = plan_of(state, file)
        assert {query.name: query.operators for query in plan.queries} == QUERIES[name]
        # What is written down now goes on in the same way.
        again = PipelineSettings.model_validate(turned)
        later = continued("golden", again, record_of(plan), state)
        assert {query.name: query.operators for query in later.queries} == QUERIES[name]


def test_what_the_sources_were_is_in_the_offset_log(tmp_path: Path) -> None:
    state = unpacked("lane", tmp_path)
    found = recorded_plan("golden", PipelineSettings.model_validate(pipeline("lane")), state)
    assert found is not None
    assert [(one.name, one.sources, one.reads, one.has_lane) for one in found.queries] == [
        ("ev", ["ev"], [], True), ("minutes", [], ["double"], False),
    ]  # fmt: skip


def test_a_file_that_was_changed_at_the_same_time_is_refused(tmp_path: Path) -> None:
    state, written = unpacked("two", tmp_path), pipeline("two")
    written["vertices"]["minutes"] = TENS
    with pytest.raises(BadConfig, match="minutes has other window than before") as refused:
        plan_of(state, written)
    assert "`holdfast dataflow drain FILE golden --close`" in refused.value.hint


def test_a_reduce_that_was_added_at_the_same_time_gets_its_own_query(tmp_path: Path) -> None:
    state, written = unpacked("one", tmp_path), pipeline("one")
    written["vertices"] = {"more": TENS, **written["vertices"], "z": {"sink": {"files": "z"}}}
    written["edges"] = ["ev -> more", "more -> z", *written["edges"]]
    plan = plan_of(state, written)
    assert {q.name: q.operators for q in plan.queries} == {"ev": ("tens",), "more": ("more",)}


def test_state_that_an_edited_file_left_behind_before_is_not_forgotten(tmp_path: Path) -> None:
    """The version before began a second query beside the first when a source was put on top."""
    state = unpacked("one", tmp_path)
    shutil.copytree(state / "ev", state / "aa")
    with pytest.raises(BadConfig, match="ev, tens has state in aa and in ev"):
        plan_of(state, pipeline("one"))
