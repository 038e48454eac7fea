"""What the pages said at commit 33cd38c still works: their files, snippets and commands.

`tests/golden/docs` holds the blocks of README, docs/ and examples/ of that commit, each with its
line and with what it is part of; `every-key.yaml` has every key that a graph file could have, and
`commands.txt` the commands that are named between the lines. Deprecated keys may warn.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from tests.docs.test_guide import run, snippets

from holdfast.graph.loader import load
from holdfast.graph.pipelines import load_pipelines
from holdfast.operate.cli import cli
from holdfast.operate.gateway_metrics import ALL_METRICS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "tests" / "golden" / "docs"
ENVIRONMENT = ("DATAHUB_TOKEN", "AIRFLOW_LINEAGE_TOKEN", "MARQUEZ_TOKEN", "KAFKA_PASSWORD")
_BLOCK = re.compile(r"<!-- (\d+) ?([^\n]*?) ?-->\n```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
# Where a shell's own words begin.
_SHELL = {"|", "||", "&", "&&", ">", "2>", "2>>"}
# Snippets that need neither Spark, a gateway nor a server.
RUN_HERE = ("README", "guide-dead-letters", "guide-embed", "guide-store")


class Block(NamedTuple):
    """A block of a page, where it was, and what it is part of."""

    page: str
    line: int
    part_of: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = [
        Block(path.stem, int(line), part_of, language, text)
        for path in sorted(PAGES.glob("*.md"))
        for line, part_of, language, text in _BLOCK.findall(path.read_text())
        if language in languages
    ]
    assert found
    return found


def test_no_block_is_overlooked() -> None:
    fences = sum(path.read_text().count("\n```") for path in PAGES.glob("*.md"))
    outputs = sum(path.read_text().count("\n```text\n") for path in PAGES.glob("*.md"))
    assert fences == 2 * (len(blocks("yaml", "sh", "python", "py")) + outputs)


# ---------------------------------------------------------------------------- graph files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the files refer to."""
    for name in (*ENVIRONMENT, "PROXY_PASSWORD"):
        monkeypatch.setenv(name, "a-secret-of-20-letters")
    (tmp_path / "schemas").mkdir()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "lineage").write_text("a-secret")
    return tmp_path


def merged(base: Any, more: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    both = {key: merged(base[key], more[key]) for key in base if key in more}
    return {**base, **more, **both}


def whole(block: Block) -> Any:
    """Return the smallest graph that a block is part of."""
    (base,) = [
        yaml.safe_load(one.text)
        for one in blocks("yaml")
        if one.part_of == "graph" and "type: http\n    config:\n      url: http://127" in one.text
    ]
    said = yaml.safe_load(block.text)
    kind, _, name = block.part_of.partition(" ")
    if kind == "receiver":
        said = {"nodes": {"lineage": {"config": said}}}
    if kind == "exporter":
        said = {"nodes": {"marquez": {"kind": "exporter", **said}}}
        base["nodes"]["marquez"].pop("config")
    if kind == "processor":
        node = said.get("by_team", {"kind": kind, "type": name, "to": ["marquez"], **said})
        behind = [port["destinations"] for port in node.get("out_ports", {}).values()]
        others = {one: {"kind": "exporter", "type": "console"} for (one,) in behind}
        said = {"nodes": {"lineage": {"to": ["it"]}, "it": node, **others, **base["nodes"]}}
        said["nodes"]["lineage"] = {**base["nodes"]["lineage"], "to": ["it"]}
        if others:
            said["nodes"]["marquez"] = others["marquez"]
        base = {}
    return merged(base, said)


NO_GRAPHS = ("of a client", "alerts", "pipelines", "never valid")
GRAPHS = [block for block in blocks("yaml") if block.part_of not in NO_GRAPHS]


@pytest.mark.parametrize("block", GRAPHS, ids=str)
def test_every_graph_file_is_valid(block: Block, folder: Path) -> None:
    path = folder / "gateway.yaml"
    path.write_text(block.text if block.part_of == "graph" else yaml.safe_dump(whole(block)))
    assert load(path).graph.nodes


PIPELINES = [block for block in blocks("yaml") if block.part_of == "pipelines"]


@pytest.mark.parametrize("block", PIPELINES, ids=str)
def test_every_pipeline_is_valid(block: Block, folder: Path) -> None:
    path = folder / "pipelines.yaml"
    path.write_text(block.text)
    assert load_pipelines(path).pipelines


def test_every_example_is_valid() -> None:
    examples = sorted((PAGES / "examples").glob("*.yaml"))
    assert examples
    for path in examples:
        if not path.stem.endswith("_tests"):
            assert load(path).graph.nodes


def test_every_key_is_accepted(folder: Path) -> None:
    loaded = load(PAGES / "every-key.yaml")
    assert loaded.graph.nodes["marquez"].delivery is not None
    urn = folder / "urn.yaml"
    urn.write_text(
        (PAGES / "every-key.yaml").read_text().replace("\n    type: ", "\n    plugin_urn: ")
    )
    assert load(urn).graph.nodes.keys() == loaded.graph.nodes.keys()


def test_every_metric_of_an_alert_exists() -> None:
    names = {metric.name.replace(".", "_") for metric in ALL_METRICS}
    (block,) = [block for block in blocks("yaml") if block.part_of == "alerts"]
    named = re.findall(r"gateway_\w+", block.text)
    assert named
    assert [name for name in named if name not in names] == []


# ------------------------------------------------------------------------------- snippets


@pytest.mark.parametrize("block", blocks("python", "py"), ids=str)
def test_every_imported_name_exists(block: Block) -> None:
    for statement in ast.walk(ast.parse(block.text)):
        if isinstance(statement, ast.ImportFrom):
            named = [(statement.module or "", alias.name) for alias in statement.names]
        elif isinstance(statement, ast.Import):
            named = [(alias.name, "") for alias in statement.names]
        else:
            continue
        for module, name in named:
            if module.split(".")[0] == "holdfast":
                imported = importlib.import_module(module)
                assert not name or hasattr(imported, name), f"{block}: {module}.{name}"


@pytest.mark.parametrize("page", RUN_HERE)
def test_every_snippet_runs_as_printed(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = PAGES / f"{page}.md"
    text = re.sub(r"^```\n```text\n", "```\n\n```text\n", kept.read_text(), flags=re.MULTILINE)
    today = ROOT / (f"{page}.md" if page == "README" else f"docs/{page.replace('-', '/', 1)}.md")
    if [code for _, code, _ in snippets(text)] == [
        code for _, code, _ in snippets(today.read_text())
    ]:
        return  # the tests of the page run the same
    monkeypatch.chdir(tmp_path)
    if page == "README":
        # One after the other, as its own test runs them: the second goes on where the first ends.
        namespace = {"__name__": "readme"}
        for _, code, _ in snippets(text):
            exec(compile(code, page, "exec"), namespace)
    else:
        run(kept, text, capsys, {"__name__": "guide"})


# ------------------------------------------------------------------------------- commands


def bare(word: str) -> str:
    """Return a word without the brackets that make it optional."""
    word = word.removeprefix("[")
    return word[:-1] if word.count("]") > word.count("[") else word


def words_of(line: str) -> list[str]:
    words = [bare(word) for word in shlex.split(line, comments=True)]
    ends = [index for index, word in enumerate(words) if word in _SHELL]
    return words[: ends[0]] if ends else words


def typed() -> Iterator[tuple[str, bool]]:
    """Yield every command line, and whether all of its arguments are there."""
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("holdfast "):
                yield line, True
    for line in (PAGES / "commands.txt").read_text().splitlines():
        yield line.replace("…", "X"), False


@pytest.mark.parametrize(("line", "is_whole"), list(typed()))
def test_every_command_line_can_be_parsed(line: str, is_whole: bool) -> None:
    context = click.Context(cli, info_name="holdfast", resilient_parsing=not is_whole)
    command: click.Command = cli
    words = words_of(line)[1:]
    while isinstance(command, click.Group) and words and words[0] != "X":
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command = found
        context = click.Context(command, parent=context, resilient_parsing=not is_whole)
    if isinstance(command, click.Group):
        return
    values, rest, _ = command.make_parser(context).parse_args(words)
    assert rest == []
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if value is None or isinstance(parameter.type, click.Path):
            needed = is_whole and parameter.required and parameter.envvar is None
            assert value is not None or not needed, f"{line}: {parameter.name}"
        elif is_whole and isinstance(parameter.type, click.Choice) and isinstance(value, str):
            parameter.type.convert(value, parameter, context)
