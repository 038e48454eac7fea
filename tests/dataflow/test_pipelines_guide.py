"""docs/guide/pipelines.md: its Python runs as printed, its files are valid, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from tests.docs.test_guide import run

from holdfast.graph.pipelines import load_pipelines
from holdfast.operate.cli.dataflow import command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pipelines.md"
TEXT = GUIDE.read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_snippets_run_as_printed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert spark.version == "4.3.0"
    monkeypatch.chdir(tmp_path)
    run(GUIDE, TEXT, capsys, {"__name__": "guide"})


def test_the_files_are_valid(tmp_path: Path) -> None:
    files = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert len(files) == 5
    for number, text in enumerate(files):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        assert load_pipelines(path).warnings == ()


def test_the_commands_exist() -> None:
    named = re.findall(r"^holdfast dataflow (\w+)(.*)$", TEXT, re.MULTILINE)
    assert {name for name, _ in named} == set(command.commands)
    for name, rest in named:
        known = {
            option
            for parameter in command.commands[name].params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
        }
        assert set(re.findall(r"--[\w-]+", rest)) <= known
