"""The guide's snippets run as printed, one after another, and name only what exists."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.graph.loader import load
from holdfast.quiver import QuiverConfig

ROOT = Path(__file__).parents[2]
# Pipelines need Spark: tests/dataflow/test_pipelines_guide.py runs theirs.
GUIDES = sorted(p for p in (ROOT / "docs" / "guide").glob("*.md") if p.name != "pipelines.md")
# These need a gateway, or what one holds: test_openlineage_guide.py, test_extend_guide.py,
# test_telemetry_queries_guide.py and tests/console/test_pages.py run their snippets.
WITH_A_GATEWAY = {"console.md", "openlineage.md", "extend.md", "telemetry-queries.md"}
# Only YAML, which test_blocks.py validates.
WITHOUT_PYTHON: set[str] = set()
_SNIPPET = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
_OPTION = re.compile(
    r"`(append|wal|segment|producers|transactions|ledger|retention)\.(\w+)(?:`| =)"
)
_LINK = re.compile(r"\]\(([^)#]+)(#[\w-]+)?\)")
# What only the command line, the gateway or a pipeline raises.
ELSEWHERE = {
    "HoldfastError",
    "NotAccepted",
    "ReaderError",
    "OwnerGone",
    "CheckFailed",
    "BadConfig",
    "NotAllowed",
    "PipelineFailed",
    "PipelineDiskFull",
    "NotInstalled",
}


def snippets(text: str) -> list[tuple[int, str, str]]:
    """Return line number, code and expected output of every snippet."""
    found = _SNIPPET.finditer(text)
    return [(text.count("\n", 0, m.start()) + 2, m[1], m[2] or "") for m in found]


def run(
    path: Path, text: str, capsys: pytest.CaptureFixture[str], namespace: dict[str, object]
) -> None:
    """Run all snippets in one namespace, and compare what each prints."""
    for line, code, output in snippets(text):
        # So that a traceback names the line of the guide.
        exec(compile("\n" * (line - 1) + code, path.name, "exec"), namespace)
        assert capsys.readouterr().out == output, f"{path.name}, line {line}"


@pytest.mark.parametrize(
    "path",
    [path for path in GUIDES if path.name not in WITH_A_GATEWAY],
    ids=lambda path: path.name,
)
def test_the_snippets_run_as_printed(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run(path, path.read_text(), capsys, {"__name__": "guide"})


def test_no_snippet_is_overlooked() -> None:
    for path in GUIDES:
        count = path.read_text().count("```python")
        assert len(snippets(path.read_text())) == count
        assert (count == 0) is (path.name in WITHOUT_PYTHON)


def test_a_snippet_that_prints_something_else_is_noticed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "```python\nprint(1)\n```\n\n```text\n2\n```\n"
    with pytest.raises(AssertionError, match=r"x\.md, line 2"):
        run(Path("x.md"), text, capsys, {})


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_option_that_is_named_exists(path: Path) -> None:
    config = QuiverConfig()
    named = _OPTION.findall(path.read_text())
    assert named or path.name != "embed.md"
    known = {
        (part.name, option.name)
        for part in fields(config)
        if hasattr(getattr(config, part.name), "__dataclass_fields__")
        for option in fields(getattr(config, part.name))
    }
    assert [option for option in named if option not in known] == []


def test_the_handlers_of_dead_letters_are_valid(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs/guide/dead-letters.md").read_text(), re.DOTALL
    )
    path = tmp_path / "gateway.yaml"
    receiver = "lineage: {kind: receiver, type: openlineage, to: [screen]}"
    path.write_text(f"{text}nodes: {{{receiver}, screen: {{kind: exporter, type: console}}}}")
    assert load(path).graph.handlers.keys() == {"team_log", "archive"}


def test_the_guide_says_what_to_do_about_every_error() -> None:
    pages = [ROOT / "docs" / "guide" / name for name in ("embed.md", "store.md")]
    text = "\n".join(page.read_text() for page in pages)
    table = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    raised = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.HoldfastError)
    }
    assert raised - table == ELSEWHERE
    assert table & raised == raised - ELSEWHERE


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in _LINK.findall(path.read_text()):
        page = (path.parent / target).resolve()
        assert page.is_file(), target
        if page.suffix == ".png":
            continue
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        anchors = {"#" + re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        assert not anchor or anchor in anchors, anchor
