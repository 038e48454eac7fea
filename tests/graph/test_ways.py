"""The ways through a graph, what happens on them, and how they are drawn."""

from __future__ import annotations

from pathlib import Path

from tests.graph.files import load_text

from holdfast.graph.delivery import chain_of
from holdfast.graph.model import Graph
from holdfast.graph.paths import plan
from holdfast.graph.printing import as_mermaid, as_text
from holdfast.quiver import Position
from holdfast.signals.event import Event

ROUTED = """\
nodes:
  in: {kind: receiver, type: toy, to: hold}
  hold: {kind: processor, type: quiver, to: [clean, all]}
  clean: {kind: processor, type: drop, to: letters}
  letters:
    kind: processor
    type: letters
    config: {by_letter: {a: first, b: second}}
    out_ports:
      first: {destinations: [left]}
      second: {destinations: [more]}
  more: {kind: processor, type: drop, config: {drop: never}, to: [left, right]}
  left: {kind: exporter, type: memory}
  right: {kind: exporter, type: memory}
  all: {kind: exporter, type: memory}
"""
SHORT = """\
nodes:
  in: {kind: receiver, type: toy, to: [out]}
  also: {kind: receiver, type: toy, to: [out]}
  out: {kind: exporter, type: memory}
"""
TURNS = """\
nodes:
  in: {kind: receiver, type: toy, to: hold}
  hold:
    kind: processor
    type: quiver
    config: {path: elsewhere}
    out_ports:
      out_port: {destinations: [one, two], dispatch_strategy: round_robin}
      alone: {destinations: [three], dispatch_strategy: round_robin}
  one: {kind: exporter, type: memory}
  two: {kind: exporter, type: memory}
  three: {kind: exporter, type: memory}
"""


def graph(folder: Path, text: str) -> Graph:
    return load_text(folder, text).graph


def event(payload: bytes) -> Event:
    return Event("q", Position(0, 0), "openlineage", payload, {}, 0)


def test_every_exporter_is_a_destination_with_its_chains(tmp_path: Path) -> None:
    (quiver,) = plan(graph(tmp_path, ROUTED))
    assert quiver.directory == tmp_path / "holdfast_data" / "hold"
    assert [node.name for node in quiver.receivers] == ["in"]
    chains = {
        one.name: [[(step.node.name, step.port) for step in chain] for chain in one.chains]
        for one in quiver.destinations
    }
    assert chains == {
        "left": [
            [("clean", None), ("letters", "first")],
            [("clean", None), ("letters", "second"), ("more", None)],
        ],
        "right": [[("clean", None), ("letters", "second"), ("more", None)]],
        "all": [[]],
    }


def test_an_event_takes_the_way_that_lets_it_through(tmp_path: Path) -> None:
    (quiver,) = plan(graph(tmp_path, ROUTED))
    chains = {one.name: [chain_of(steps) for steps in one.chains] for one in quiver.destinations}

    def arrives(payload: bytes) -> set[str]:
        unit = event(payload)
        return {name for name, some in chains.items() if any(one.process(unit) for one in some)}

    assert arrives(b"a thing") == {"left", "all"}
    assert arrives(b"b thing") == {"left", "right", "all"}
    assert arrives(b"b never") == {"all"}
    assert arrives(b"a secret") == {"all"}
    assert arrives(b"c") == {"all"}
    unchanged = event(b"a")
    assert chains["left"][0].process(unchanged) is unchanged


def test_without_a_quiver_there_is_one_between(tmp_path: Path) -> None:
    (quiver,) = plan(graph(tmp_path, SHORT))
    assert quiver.name == "quiver"
    assert quiver.directory == tmp_path / "holdfast_data" / "quiver"
    assert [node.name for node in quiver.receivers] == ["in", "also"]
    assert [one.name for one in quiver.destinations] == ["out"]


def test_exporters_that_take_turns_are_one_destination(tmp_path: Path) -> None:
    (quiver,) = plan(graph(tmp_path, TURNS))
    assert quiver.directory == tmp_path / "elsewhere"
    found = {one.name: [node.name for node in one.exporters] for one in quiver.destinations}
    assert found == {"hold.out_port": ["one", "two"], "three": ["three"]}


def test_a_graph_is_drawn_as_text(tmp_path: Path) -> None:
    assert as_text(graph(tmp_path, SHORT)) == "in -> quiver\nalso -> quiver\nquiver -> out\n"
    assert as_text(graph(tmp_path, TURNS)).splitlines() == [
        "in -> hold",
        "hold -> one  (out_port in turns)",
        "hold -> two  (out_port in turns)",
        "hold -> three  (alone)",
    ]


def test_a_graph_is_drawn_as_a_chart(tmp_path: Path) -> None:
    chart = as_mermaid(graph(tmp_path, SHORT)).splitlines()
    assert chart[0] == "flowchart LR"
    assert '    n3[("quiver<br/><small>quiver</small>")]' in chart
    assert chart[-3:] == ["    n0 --> n3", "    n1 --> n3", "    n3 --> n2"]
