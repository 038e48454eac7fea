"""Every block of YAML and shell on the pages without a test of their own is valid.

A graph file is loaded, other YAML is parsed, shell is parsed by bash, and every `holdfast …` in it
names a command and options that exist.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from tests.patience import PATIENCE_S

from holdfast.graph.loader import load
from holdfast.operate.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "guide" / "archive.md",
]
# Whatever names commands in its prose, comments or messages.
WITH_COMMANDS = [
    path
    for folder, pattern in (
        (ROOT, "*.md"),
        (ROOT / "docs", "**/*.md"),
        (ROOT / "deploy", "**/*"),
        (ROOT / "examples", "*.yaml"),
        (ROOT / "src" / "holdfast" / "operate" / "cases", "*.yaml"),
    )
    for path in sorted(folder.glob(pattern))
    if path.is_file() and "`holdfast " in path.read_text()
]
_BLOCK = re.compile(r"```(yaml|sh|bash)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(#[\w-]+)?\)")


def blocks(path: Path, *kinds: str) -> list[str]:
    return [text for kind, text in _BLOCK.findall(path.read_text()) if kind in kinds]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_of_yaml_are_valid(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", path.read_text()):
        monkeypatch.setenv(name, "a-secret-of-20-letters")
    for text in blocks(path, "yaml"):
        tree = yaml.safe_load(text)
        assert tree
        if "nodes" in tree:
            file = tmp_path / "graph.yaml"
            file.write_text(text)
            load(file)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_of_shell_are_valid(path: Path) -> None:
    text = "\n".join(blocks(path, "sh", "bash"))
    checked = subprocess.run(
        ["bash", "-n"], input=text, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert checked.returncode == 0, checked.stderr
    for line in re.findall(r"^\s*(?:until )?holdfast ([^;|&>#\n]*)", text, re.MULTILINE):
        assert problem_with(line) is None, line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in _LINK.findall(path.read_text()):
        page = (path.parent / target).resolve()
        assert page.exists(), target
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE) if anchor else []
        anchors = {"#" + re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        assert not anchor or anchor in anchors, anchor


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_between_the_lines_exist(path: Path) -> None:
    for line in re.findall(r"`holdfast ([a-z][^`\n…]*)`", path.read_text()):
        assert problem_with(line) is None, line


def problem_with(line: str) -> str | None:
    """Return what is wrong with a call, as far as one can see without running it."""
    words = shlex.split(line, comments=True)
    command: click.Command = cli
    context = click.Context(cli, info_name="holdfast")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            return f"there is no command {words[0]}"
        command, words = found, words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    known |= {"--help", "--version"}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known
    return f"unknown: {', '.join(unknown)}" if unknown else None


def test_a_call_that_cannot_be_is_found() -> None:
    assert problem_with("reprot gateway.yaml") is not None
    assert problem_with("report gateway.yaml --sinse T") is not None
    assert problem_with("quiver ls gateway.yaml --json") is None


def test_every_page_is_in_the_index_and_on_the_site() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    site = (ROOT / "mkdocs.yml").read_text()
    for path in sorted((ROOT / "docs").glob("**/*.md")):
        name = str(path.relative_to(ROOT / "docs"))
        if name.startswith("format/") and name != "format/README.md":
            continue
        assert name == "index.md" or f"]({name})" in index, name
        assert f": {name}\n" in site, name
