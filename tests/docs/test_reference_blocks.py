"""Every block of YAML on the reference pages is valid as a part of the smallest graph around it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from holdfast.errors import BadConfig
from holdfast.graph.loader import load

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "reference/exporters",
    "reference/processors",
    "reference/http-api",
    "reference/telemetry",
    "guide/console",
)
# Those take telemetry, which another receiver brings.
OF_TELEMETRY = {"otlp", "otap", "filter_items", "attributes", "sample"}
SECRET = "a-secret-of-20-letters"
_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block and its section, which names the component where the block does not."""

    page: str
    section: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.section}:{self.number}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text()
        for number, match in enumerate(_BLOCK.finditer(text)):
            sections = _SECTION.findall(text[: match.start()]) or [""]
            found.append(Block(page, sections[-1], number, match[1]))
    return found


def graph_with(block: Block) -> dict[str, Any]:
    """Return the graph file that a block stands for."""
    said = yaml.safe_load(block.text)
    shown = {"kind": "exporter", "type": "console"}
    if "nodes" in said:
        nodes = said["nodes"]
        if all("to" in node or node["kind"] == "exporter" for node in nodes.values()):
            return {"nodes": nodes}
        return {"nodes": {**{name: {**nodes[name], "to": ["out"]} for name in nodes}, "out": shown}}
    if block.page == "reference/exporters":
        return _graph({"out": {"kind": "exporter", **said}}, block.section)
    if block.page != "reference/processors":
        return {**_graph({"out": shown}, ""), **said}
    # As the section of `sample` says.
    limited = {"delivery": {"signals": ["traces", "logs"]}} if block.section == "sample" else {}
    out = {**shown, **limited}
    if "config" in said:
        node = {"kind": "processor", "type": block.section, **said, "to": ["out"]}
        return _graph({"it": node, "out": out}, block.section)
    ((name, node),) = said.items()
    leads_to = [one for port in node["out_ports"].values() for one in port["destinations"]]
    return _graph({name: node, **dict.fromkeys(leads_to, out)}, block.section)


def _graph(nodes: dict[str, Any], section: str) -> dict[str, Any]:
    tables = "tables" in nodes.get("out", {}).get("config", {})
    kind = "otlp" if section in OF_TELEMETRY or tables else "openlineage"
    return {
        "nodes": {
            "in": {"kind": "receiver", "type": kind, "to": [next(iter(nodes))]},
            **nodes,
        }
    }


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_block_is_valid_as_a_part_of_a_graph(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", block.text):
        monkeypatch.setenv(name, SECRET)
    for name in re.findall(r"\$\{file:([^}]+)\}", block.text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SECRET)
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(graph_with(block)))
    assert load(tmp_path / "graph.yaml").graph.nodes


def test_a_key_that_is_not_there_is_found(tmp_path: Path) -> None:
    wrong = Block("reference/processors", "sample", 0, "config: {share: 0.1}")
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(graph_with(wrong)))
    with pytest.raises(BadConfig):
        load(tmp_path / "graph.yaml")
