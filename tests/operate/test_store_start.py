"""Commands on a store start with what they need: modules are counted, because time is not ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S

from holdfast.operate.cli import cli

# Loading one of these takes longer than most of what these commands do.
HEAVY = {"grpc", "numpy", "obstore", "psycopg", "pyarrow", "pydantic", "rich", "sqlalchemy", "yaml"}
MODULES_MAX = 340

RUN = """
import json, sys
from holdfast.operate.cli import main
try:
    main()
except SystemExit as done:
    code = done.code
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


def loaded(*arguments: str) -> set[str]:
    """Return the modules of a process that ran a command and succeeded."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["code"] == 0, ran.stderr
    return set(found["modules"])


def test_commands_load_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("words")
    for setting_up in (["store", "create"], ["files", "put", "one", str(folder)]):
        assert CliRunner().invoke(cli, setting_up).exit_code == 0
    for command in (
        ["files", "put", "two", str(folder), "--parent", "one"],
        ["files", "get", "two", str(tmp_path / "restored")],
        ["gc", "run", "--json"],
    ):
        modules = loaded(*command)
        assert modules & HEAVY == set(), command
        assert len(modules) < MODULES_MAX, (command, len(modules))


def test_what_cuts_is_loaded_only_where_there_is_something_to_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("words")
    assert CliRunner().invoke(cli, ["store", "create"]).exit_code == 0
    assert "pyfastcdc" not in loaded("files", "put", "one", str(folder))
