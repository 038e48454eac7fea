"""What can be wrong with pipelines beside a gateway, at which line; and how they are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.printing import as_mermaid, as_text

GRAPH = """\
data_dir: data
nodes:
  lineage: {kind: receiver, type: openlineage, to: [buffer]}
  buffer: {kind: processor, type: quiver}
pipelines:
  counts:
    vertices:
      events:
        source: {quiver: buffer, decode: openlineage}
      out: {sink: {files: out}}
      again: {sink: {quiver: buffer}}
    edges: [events -> out, events -> again]
"""


def findings(folder: Path, text: str) -> list[tuple[int, str, str]]:
    path = folder / "graph.yaml"
    path.write_text(text)
    try:
        told = load(path).warnings
    except BadConfig as error:
        told = tuple(error.findings)
    return [(found.line, found.message, found.hint) for found in told]


def test_a_quiver_that_a_pipeline_reads_is_read(tmp_path: Path) -> None:
    assert findings(tmp_path, GRAPH) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        ("quiver: buffer, decode", "quiver: bufer, decode", 9, "there is no quiver 'bufer'",
         "did you mean 'buffer'?; a folder is ./bufer"),
        ("quiver: buffer, decode", "quiver: ./data/buffer, decode", 9,
         "this is the directory of the quiver 'buffer', which the gateway has open",
         "name it: buffer"),
        ("quiver: buffer, decode", "quiver: ./data/buffer/core-00, decode", 9,
         "this is the directory of the quiver 'buffer', which the gateway has open",
         "name it: buffer"),
        ("pipelines:", "flight: {tls: {cert_file: c, key_file: k, client_ca_file: ca}}\npipelines:",
         5, "pipelines beside the gateway have no certificate to show",
         "use tokens instead, or run them elsewhere: `spark: {run: false}`"),
        ("pipelines:", 'flight: {listen: "127.0.0.1:8480"}\npipelines:', 5,
         "'admin' listens there already", "use another port"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_its_line(
    tmp_path: Path, old: str, new: str, line: int, message: str, hint: str
) -> None:
    found = findings(tmp_path, GRAPH.replace(old, new, 1))
    assert (line, message, hint) in found


def test_a_source_may_read_what_a_sink_writes_and_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    text = GRAPH.replace("quiver: buffer, decode: openlineage", "quiver: [own, there, ./later]")
    text = text.replace("again: {sink: {quiver: buffer}}", "again: {sink: {quiver: own}}")
    assert [m for _, m, _ in findings(tmp_path, text)] == ["nothing reads the quiver 'buffer'"]


def test_lineage_to_a_gateway_that_takes_none_is_an_error(tmp_path: Path) -> None:
    text = GRAPH.replace("  lineage: {kind: receiver, type: openlineage, to: [buffer]}\n", "")
    text += "spark:\n  lineage: {to: gateway}\n"
    assert (13, "this gateway does not take lineage") in [
        found[:2] for found in findings(tmp_path, text)
    ]


def test_a_pipeline_that_is_run_elsewhere_needs_a_quiver_that_is_served(tmp_path: Path) -> None:
    elsewhere = GRAPH + "spark: {run: false}\n"
    assert findings(tmp_path, elsewhere) == [
        (9, "no other process can use the quiver 'buffer' while the gateway runs",
         "add `flight: {}`, and `dataflow run` finds it there"),
    ]  # fmt: skip
    assert findings(tmp_path, elsewhere + "flight: {}\n") == []


def test_workers_have_flight_ports_of_their_own(tmp_path: Path) -> None:
    text = GRAPH.replace("pipelines:", 'workers: 3\nflight: {listen: "127.0.0.1:8478"}\npipelines:')
    told = [found[:2] for found in findings(tmp_path, text)]
    assert (6, "'admin' listens there already") in told, "the third worker has 8480"


def test_pipelines_are_drawn_behind_the_quivers_they_read(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    graph = load(tmp_path / "graph.yaml").graph
    assert as_text(graph).splitlines() == [
        "lineage -> buffer", "buffer -> pipeline counts", "pipeline counts -> buffer",
    ]  # fmt: skip
    chart = as_mermaid(graph)
    assert 'n2{{"pipeline counts<br/><small>Spark</small>"}}' in chart
    assert "n1 --> n2" in chart
