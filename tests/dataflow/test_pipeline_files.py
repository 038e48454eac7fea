"""Pipelines in files: lines and columns of what is wrong, print-config, and the commands."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.errors import BadConfig, DirectoryLocked, HoldfastError
from holdfast.graph.loader import load
from holdfast.graph.pipelines import load_pipelines
from holdfast.graph.printing import as_yaml, printed
from holdfast.operate.cli import cli

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lineage_stats.yaml"

GATEWAY = """
nodes:
  in: {kind: receiver, type: openlineage, to: [buffer]}
  buffer: {kind: processor, type: quiver, config: {path: ./buffer}, to: [out]}
  out: {kind: exporter, type: log}
pipelines:
  counts:
    vertices:
      events: {source: {quiver: buffer, decode: openlineage}}
      n: {reduce: {window: {fixed: 1m}, aggregate: {n: count(*)}}}
      out: {sink: {files: out}}
    edges: [events -> n, {from: n, to: out, tags: {or: [x]}}]
"""
WRONG = """
pipelines:
  p:
    vertices:
      a: {source: {quiver: q}}
      r: {reduce: {aggregate: {n: "count(*"}}}
      m: {map: {python: "no.such.module:f"}}
      z: {sink: {fils: out}}
    edges:
      - a -> r
      - r -> zz
"""


def write(folder: Path, text: str) -> str:
    path = folder / "file.yaml"
    path.write_text(text)
    return str(path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["dataflow", *arguments])


def places(error: BadConfig) -> list[tuple[int, int, str]]:
    return [(found.line, found.column, found.message) for found in error.findings]


def test_everything_that_is_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        load_pipelines(write(tmp_path, WRONG))
    # A key that nobody knows comes first: without its shape a pipeline cannot be looked at.
    assert (8, 18, "there is no key 'fils' here") in places(caught.value)
    assert caught.value.findings[0].hint == "did you mean 'files'?"
    text = WRONG.replace("fils", "files")
    with pytest.raises(BadConfig) as caught:
        load_pipelines(write(tmp_path, text), imports=True)
    found = {(line, column): message for line, column, message in places(caught.value)}
    assert found[6, 11] == "the reduce 'r' has no window"
    assert "a bracket is not closed" in found[6, 35]
    assert "no.such.module:f" in found[7, 25]
    assert found[11, 9] == "there is no vertex 'zz'"


def test_pipelines_beside_a_gateway_know_its_quivers(tmp_path: Path) -> None:
    loaded = load_pipelines(write(tmp_path, GATEWAY))
    assert loaded.quivers == {"buffer": str(tmp_path / "buffer" / "core-00")}
    assert list(loaded.pipelines) == ["counts"]
    assert loaded.data_dir == tmp_path / "holdfast_data"


def test_a_gateway_s_own_check_looks_at_pipelines_too(tmp_path: Path) -> None:
    text = GATEWAY.replace("events -> n", "evnts -> n")
    with pytest.raises(BadConfig) as caught:
        load(write(tmp_path, text))
    assert (12, 13, "there is no vertex 'evnts'") in places(caught.value)


def test_what_is_printed_means_the_same(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, GATEWAY))
    again = load(write(tmp_path, as_yaml(printed(loaded))))
    assert again.graph.settings.pipelines == loaded.graph.settings.pipelines


@pytest.mark.parametrize("text", ["", "pipelines: {}", "pipelines: 7", "nodes: 3", "{", "x: 1"])
def test_a_file_of_no_shape_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfig) as caught:
        load_pipelines(write(tmp_path, text))
    assert caught.value.findings


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadConfig):
        load_pipelines(tmp_path / "nowhere.yaml")


def test_validate_ends_with_78_if_anything_is_wrong(tmp_path: Path) -> None:
    for path, code in ((str(EXAMPLE), 0), (write(tmp_path, WRONG), 78)):
        arguments = ["dataflow", "validate", path, "--json"]
        told = CliRunner().invoke(cli, arguments, standalone_mode=False)
        assert told.return_value == code
        assert json.loads(told.output)["ok"] == (code == 0)


def test_graph_and_explain_show_the_example() -> None:
    text = call("graph", str(EXAMPLE))
    assert text.output.splitlines()[-1] == "per_job.late -> late"
    drawn = ET.fromstring(call("graph", str(EXAMPLE), "--format", "svg").output)
    names = {node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"events", "per_job", "stats", "query events", "late"} <= names
    assert "one query" in call("explain", str(EXAMPLE)).output
    plan = json.loads(call("explain", str(EXAMPLE), "--json").output)
    assert plan["queries"][0]["taps"] == ["per_job", "per_job.late"]
    assert plan["cuts"] == []


def test_explain_tells_of_cuts_and_runs(tmp_path: Path) -> None:
    window = "{window: {fixed: 1m}, aggregate: {n: count(*)}}"
    text = f"""
pipelines:
  p:
    vertices:
      a: {{source: {{quiver: q}}}}
      f: {{map: {{python: "m:f", on_failure: fail}}}}
      g: {{filter: {{python: "m:g", on_failure: fail}}}}
      r: {{reduce: {window}}}
      s: {{reduce: {window}}}
      y: {{sink: {{files: y}}}}
      z: {{sink: {{files: z}}}}
    edges: [a -> f, f -> g, g -> r, r -> s, r -> y, s -> z]
"""
    told = call("explain", write(tmp_path, text)).output
    assert "f, g are called together" in told
    assert "r -> s: results of a reduce are used more than once" in told
    assert "through a quiver" in call("graph", write(tmp_path, text)).output


def test_a_pipeline_is_named_where_there_are_several(tmp_path: Path) -> None:
    written = yaml.safe_load(EXAMPLE.read_text())
    written["pipelines"]["other"] = written["pipelines"]["lineage-stats"]
    path = write(tmp_path, yaml.safe_dump(written))
    assert call("explain", path, "other").output.startswith("other:")
    for arguments in (["explain", path], ["explain", path, "third"]):
        result = call(*arguments)
        assert isinstance(result.exception, HoldfastError)
        assert "lineage-stats, other" in result.exception.hint


def test_nothing_is_known_of_a_watermark_before_the_first_run(tmp_path: Path) -> None:
    result = call("watermark", str(EXAMPLE), "--state-dir", str(tmp_path))
    assert result.output == "lineage-stats: nothing is claimed yet\n"


def test_what_is_refused_is_refused_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second driver, or a file that the state does not fit: starting Spark takes long."""

    def start_session(*arguments: object, **options: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("holdfast.operate.cli.dataflow.run.start_session", start_session)
    file = write(tmp_path, GATEWAY)
    state = StateDir(tmp_path / "state" / "counts")
    with state.lock():
        second = call("run", file, "--state-dir", str(tmp_path / "state"))
    assert isinstance(second.exception, DirectoryLocked)
    (state.path / "n" / "checkpoint" / "offsets").mkdir(parents=True)
    unknown = call("run", file, "--state-dir", str(tmp_path / "state"))
    assert isinstance(unknown.exception, BadConfig)
    assert "the plan file of counts is missing" in unknown.exception.message
