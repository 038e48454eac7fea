"""The habits that no linter knows: sizes, names, unfinished marks, traces of one machine.

Every check is a function from text to findings, and has a test of its own that makes it find
something.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[2]

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# A module is named after what it holds; these names hold anything.
GRAB_BAGS = {"common", "helper", "helpers", "misc", "util", "utils"}

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")

# Written so that they do not match themselves. A folder of that name inside a longer path or an
# address ("docs/home/") is no machine's.
MACHINE_PATH = re.compile(rb"(?<![\w.\-])/(work|root|home)/")
INDEX_ADDRESS = re.compile(
    rb"index[-_]url|find[-_]links|uv[._]index|pypi\.org/simple|pythonhosted\.org"
    rb"|https?://[^\s\"']+/simple\b",
    re.IGNORECASE,
)


def without_docstring(source: str) -> list[str]:
    begins_with_one = source.startswith('"""') and source[3:4].isalnum()
    if begins_with_one or ast.get_docstring(ast.parse(source)):  # to parse all takes seconds
        return []
    return ["no module docstring"]


def too_long_module(source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{lines} lines; at most {MODULE_LINES_MAX}"] if lines > MODULE_LINES_MAX else []


def too_long_functions(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{node.name} has {lines} lines; at most {FUNCTION_LINES_MAX}")
    return found


def unfinished_marks(source: str) -> list[str]:
    return [
        f"line {number}: {mark[1]}"
        for number, line in enumerate(source.splitlines(), start=1)
        if (mark := UNFINISHED.search(line))
    ]


def grab_bags(path: PurePath) -> list[str]:
    return [part for part in path.with_suffix("").parts if part in GRAB_BAGS]


def machine_paths(content: bytes) -> list[str]:
    return [match[0].decode() for match in MACHINE_PATH.finditer(content)]


def index_addresses(content: bytes) -> list[str]:
    return [match[0].decode() for match in INDEX_ADDRESS.finditer(content)]


def source_paths() -> list[Path]:
    paths = sorted((ROOT / "src").rglob("*.py"))
    assert paths
    return paths


def tracked_paths() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing is tracked")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    assert paths
    return [path for path in paths if path.is_file()]


def findings(check: Callable[[str], list[str]], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in paths
        for finding in check(path.read_text())
    ]


def findings_in_bytes(check: Callable[[bytes], list[str]], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in paths
        for finding in check(path.read_bytes())
    ]


# The code as it is.


def test_every_module_has_a_docstring() -> None:
    paths = [*source_paths(), *sorted((ROOT / "tests").rglob("*.py"))]
    assert findings(without_docstring, paths) == []


def test_no_module_is_too_long() -> None:
    assert findings(too_long_module, source_paths()) == []


def test_no_function_is_too_long() -> None:
    assert findings(too_long_functions, source_paths()) == []


def test_nothing_is_marked_unfinished() -> None:
    assert findings(unfinished_marks, source_paths()) == []


def test_no_module_is_a_grab_bag() -> None:
    paths = [path.relative_to(ROOT / "src") for path in source_paths()]
    assert [str(path) for path in paths if grab_bags(path)] == []


def test_no_path_of_one_machine_is_tracked() -> None:
    assert findings_in_bytes(machine_paths, tracked_paths()) == []


def test_no_package_index_is_tracked() -> None:
    assert findings_in_bytes(index_addresses, tracked_paths()) == []


# The checks can fail.


def test_a_missing_docstring_is_found() -> None:
    assert without_docstring("# A comment is none.\nx = 1\n")
    assert not without_docstring('"""Holds x."""\nx = 1\n')


def test_a_long_module_is_found() -> None:
    assert too_long_module("x = 1\n" * (MODULE_LINES_MAX + 1))
    assert not too_long_module("x = 1\n" * MODULE_LINES_MAX)


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_long_function_is_found(keyword: str) -> None:
    head = f"class A:\n    {keyword} f(self):\n"
    assert too_long_functions(head + "        x = 1\n" * FUNCTION_LINES_MAX)
    assert not too_long_functions(head + "        x = 1\n" * (FUNCTION_LINES_MAX - 1))


def test_an_unfinished_mark_is_found() -> None:
    assert unfinished_marks("x = 1\ny = 2  # " + "TODO: z\n") == ["line 2: TODO"]
    assert not unfinished_marks("XXXL = 'a size'\n")


def test_a_grab_bag_is_found() -> None:
    assert grab_bags(PurePath("holdfast/quiver/utils.py"))
    assert grab_bags(PurePath("holdfast/common/frame.py"))
    assert not grab_bags(PurePath("holdfast/quiver/log/frame.py"))


@pytest.mark.parametrize("folder", ["work", "root", "home"])
def test_a_path_of_one_machine_is_found(folder: str) -> None:
    assert machine_paths(f"cd '/{folder}/project'".encode())
    assert not machine_paths(f"see docs/{folder}/index.md and https://a.org/{folder}/".encode())


@pytest.mark.parametrize(
    "words",
    [
        ("--extra-index", "-url=x"),
        ("PIP_FIND", "_LINKS=x"),
        ("[[tool.uv", ".index]]"),
        ("https://pypi", ".org/simple"),
        ("http://mirror.example", ":3141/all/simple/"),
        ("https://files.python", "hosted.org/x.whl"),
    ],
)
def test_a_package_index_is_found(words: tuple[str, str]) -> None:
    assert index_addresses("".join(words).encode())
    assert not index_addresses(b"https://pypi.org/project/pyarrow/ is a page, not an index")


# The tests' own habit: no process outlives its test (tests/conftest.py).

LEAVES_A_CHILD = """
import subprocess, sys

def test_leaves_a_child():
    global child
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

def test_never_waits_for_its_child():
    global ended
    ended = subprocess.Popen([sys.executable, "-c", ""])

def test_takes_its_child_along():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_child_left_behind_is_found(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_children.py").write_text(LEAVES_A_CHILD)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rE", str(tmp_path)]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        # The path: what conftest.py imports of ours. The patience: both children are there anyway.
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST_PATIENCE": "0.1"},
    )
    assert "3 passed, 2 errors" in result.stdout
    assert "ERROR test_children.py::test_leaves_a_child" in result.stdout
    assert "time.sleep(60)" in result.stdout
    assert "ERROR test_children.py::test_never_waits_for_its_child" in result.stdout
