"""The guide to components of your own: its package is installed into an empty environment, and run.

The environment has what `pip install .[gateway]` brings and nothing else. There may be no network,
and so no build backend either: the wheel is made here, of what `pyproject.toml` says, and pip
installs it.
"""

from __future__ import annotations

import ast
import base64
import ensurepip
import hashlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.docs.bare_install import make_install
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "extend.md").read_text()
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_PUBLIC = re.compile(r"^\| `(holdfast[\w.]*)` \| (.*) \|$", re.MULTILINE)
_LISTENS = re.compile(r"listens on tcp://127\.0\.0\.1:(\d+)")
FILES = dict(_FILE.findall(GUIDE))
MODULES = {name: text for name, text in FILES.items() if name.endswith(".py")}


def public() -> set[tuple[str, str]]:
    """Return module and name of everything that the page names as public."""
    found = set()
    for module, names in _PUBLIC.findall(GUIDE):
        listed = re.findall(r"`(\w+)`", names)
        if listed == ["__all__"]:
            listed = importlib.import_module(module).__all__
        found |= {(module, name) for name in listed}
    return found


def imported(code: str) -> set[tuple[str, str]]:
    """Return what code imports of Holdfast."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {(one.name, "") for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", one.name) for one in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] == "holdfast"}


def test_everything_that_is_public_exists() -> None:
    assert len(public()) > 30
    for module, name in public():
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("path", MODULES)
def test_the_package_imports_only_what_is_public(path: str) -> None:
    assert imported(MODULES[path]) - public() == set()


def test_an_import_of_something_else_is_noticed() -> None:
    code = "from holdfast.settings import Settings\n"
    assert imported(code) - public() == set()
    code += (
        "import holdfast.graph\ndef f():\n    from holdfast.deliver.destination import Destination"
    )
    assert imported(code) - public() == {
        ("holdfast.graph", ""),
        ("holdfast.deliver.destination", "Destination"),
    }


def make_wheel(folder: Path) -> Path:
    """Return the package of the page as a wheel."""
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    name = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{name}.dist-info"
    content = {
        **MODULES,
        f"{info}/METADATA": _metadata(project),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(
            f"[{group}]\n" + "\n".join(f"{one} = {module}" for one, module in entries.items())
            for group, entries in project["entry-points"].items()
        ),
    }
    content[f"{info}/RECORD"] = "".join(
        [*(_record(path, text) for path, text in content.items()), f"{info}/RECORD,,\n"]
    )
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return wheel


def _metadata(project: dict[str, Any]) -> str:
    lines = [f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {one}" for one in project["dependencies"]]
    return "\n".join(["Metadata-Version: 2.1", *lines, ""])


def _record(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
    return f"{path},sha256={digest.decode()},{len(text.encode())}\n"


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return how `holdfast` is run in an environment that has the package installed."""
    folder = tmp_path_factory.mktemp("extend")
    venv = folder / "venv"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    def run(*words: object) -> None:
        done = subprocess.run(
            [str(word) for word in words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    make_install(folder / "installed", "gateway")
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "installed.pth").write_text(f"{folder / 'installed'}\n")
    # Pip as Python brings it, from its wheel: unpacking it takes longer than all the rest.
    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    run(python, pip / "pip", "install", "--no-index", "--no-deps", make_wheel(folder))
    return [str(python), "-m", "holdfast"]


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[int]:
    """Run a gateway; give the port of its receiver."""
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, "up", "gateway.yaml"], cwd=folder, stderr=output)
    try:

        def listens() -> object:
            assert process.poll() is None, log.read_text()
            return _LISTENS.search(log.read_text())

        until(listens, "listening", log.read_text)
        found = _LISTENS.search(log.read_text())
        assert found is not None
        yield int(found[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_the_package_receives_changes_and_delivers(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    # Any port, where others run gateways on this machine, too; also of the admin page.
    graph = FILES["gateway.yaml"].replace(":7000", ":0")
    (folder / "gateway.yaml").write_text(graph + "admin: {listen: '127.0.0.1:0'}\n")
    given, written = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    with (
        running(command, folder) as port,
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
        connection.makefile("rw") as lines,
    ):
        answers = []
        for line in ("wrong\n", '{"sensor": "attic", "percent": 40}\n', given):
            lines.write(line)
            lines.flush()
            answers.append(lines.readline())
        assert answers == [
            "no: a reading is a JSON object with the name of a sensor\n",
            "ok\n",
            "ok\n",
        ]
        table = folder / "readings.csv"
        until(lambda: table.exists() and table.read_text(), "delivery")
    assert table.read_text() == written


def test_a_mistyped_setting_of_the_package_is_reported_with_its_line(
    command: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(FILES["gateway.yaml"].replace("digits", "digit"))
    done = subprocess.run(
        [*command, "validate", path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 78
    assert "gateway.yaml:11" in done.stdout + done.stderr
    assert "digits" in done.stdout + done.stderr
