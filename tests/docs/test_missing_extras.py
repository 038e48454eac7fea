"""Without an extra, what needs it says so in one line; everything else works."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from tests.docs.bare_install import ROOT, make_install, run_command

from holdfast.extras import MODULES
from holdfast.operate.cli import cli
from holdfast.quiver import Quiver

PIPELINE = """\
pipelines:
  p:
    vertices:
      made: {source: {generator: {rows_per_s: 1}}}
      shown: {sink: {console: true}}
    edges: [made -> shown]
"""
GATEWAY = """\
data_dir: data
nodes:
  in:
    kind: receiver
    type: openlineage
    config: {listen: "127.0.0.1:0"}
    out_ports: {out: {destinations: [kafka]}}
  kafka:
    kind: exporter
    type: kafka
    config: {brokers: "127.0.0.1:9", topic: lineage}
admin: {listen: null}
"""

# What is asked of the base, and the extra that it needs; None: it works without any.
BASE_CALLS: list[tuple[list[str], str | None]] = [
    (["quiver", "ls", "quiver"], None),
    (["quiver", "show", "quiver", "1"], None),
    (["quiver", "cat", "quiver", "--slot", "events"], None),
    (["quiver", "ledger", "quiver", "--balance"], None),
    (["quiver", "metrics", "quiver"], None),
    (["quiver", "fsck", "quiver"], None),
    (["quiver", "scrub", "quiver"], None),
    (["quiver", "backup", "quiver", "backup"], None),
    (["quiver", "sql", "quiver", "select 1"], "query"),
    (["explain", "0", "quiver"], None),
    (["prove", "quiver", "--kills", "1"], None),
    (["prove", "gateway", "--kills", "1"], "gateway"),
    (["bench", "--list"], None),
    (["bench", "gateway", "--quick"], "gateway"),
    (["doctor"], None),
    (["completion", "bash"], None),
    (["up", "kafka.yaml"], "gateway"),
    (["node", "--data", "node"], "gateway"),
    (["validate", "kafka.yaml"], "gateway"),
    (["components"], "gateway"),
    (["config", "schema"], "gateway"),
    (["destination", "ls", "kafka.yaml"], "gateway"),
    (["handoff", "status", "kafka.yaml"], "gateway"),
    (["lineage", "lint", "kafka.yaml"], "gateway"),
    (["dlq", "ls", "kafka.yaml"], "gateway"),
    (["demo"], "gateway"),
    (["dataflow", "run", "pipeline.yaml"], "spark"),
    (["store", "info", "--store", "kept"], "store"),
    (["gc", "status", "--store", "kept"], "store"),
    (["files", "ls", "commit", "--store", "kept"], "store"),
]
# The same, of an installation with `gateway`.
CALLS: list[tuple[list[str], str | None]] = [
    (["quiver", "sql", "kept", "select 1"], "query"),
    (["dataflow", "validate", "pipeline.yaml"], None),
    (["dataflow", "explain", "pipeline.yaml"], None),
    (["dataflow", "graph", "pipeline.yaml"], None),
    (["dataflow", "run", "pipeline.yaml"], "spark"),
    (["dataflow", "redrive", "pipeline.yaml"], "spark"),
    (["dataflow", "replay", "pipeline.yaml", "--into", "again"], "spark"),
    (["store", "create", "--store", "kept"], "store"),
    (["store", "fsck", "--store", "kept"], "store"),
    (["gc", "status", "--store", "kept"], "store"),
    (["files", "ls", "commit", "--store", "kept"], "store"),
    (["prove", "store", "--kills", "1"], "store"),
    (["prove", "dataflow", "--kills", "1"], "spark"),
    (["bench", "store", "--quick"], "store"),
    (["bench", "dataflow", "--quick"], "spark"),
    (["up", "--check", "kafka.yaml"], "kafka"),
    (["up", "kafka.yaml"], "kafka"),
    (["doctor"], None),
    (["components"], None),
    (["validate", "kafka.yaml"], None),
]


def install_of(folder: Path, *extras: str) -> Path:
    make_install(folder / "install", *extras)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    (folder / "kafka.yaml").write_text(GATEWAY)
    with Quiver.open(folder / "quiver") as quiver:
        quiver.append(pa.record_batch({"ms": [1.5]}))
        quiver.flush()
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_of(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_of(tmp_path_factory.mktemp("bare"), "gateway")


@pytest.mark.thinned(5)
@pytest.mark.parametrize(("words", "extra"), BASE_CALLS, ids=str)
def test_the_base_is_the_quiver_and_its_tools(
    base: Path, words: list[str], extra: str | None
) -> None:
    check(base, words, extra)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("words", "extra"), CALLS, ids=str)
def test_a_missing_extra_is_one_line(bare: Path, words: list[str], extra: str | None) -> None:
    check(bare, words, extra)


def check(folder: Path, words: list[str], extra: str | None) -> None:
    told = run_command(folder / "install", *words, cwd=folder)
    assert "Traceback" not in told.stderr
    if extra is None:
        assert told.returncode == 0, told.stderr
    else:
        assert told.returncode == 78
        assert f"pip install 'holdfast[{extra}]'" in told.stderr


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command there is, with the groups that lead to it."""
    context = click.Context(group, info_name=" ".join(("holdfast", *words)))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


HELP_OF_ALL = """\
import json, sys
from click.testing import CliRunner
from holdfast.operate.cli import cli
from holdfast.quiver import Quiver
wrong = []
for words in json.load(sys.stdin):
    result = CliRunner().invoke(cli, [*words, "--help"])
    if result.exit_code or "Usage" not in result.output:
        wrong.append([*words, repr(result.exception)])
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("installed", ["base", "bare"])
def test_every_help_is_shown_without_any_extra(
    installed: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(installed)
    wanted = list(commands(cli))
    assert len(wanted) > len(cli.list_commands(click.Context(cli)))
    told = run_command(folder / "install", cwd=folder, code=HELP_OF_ALL, given=json.dumps(wanted))
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == []


def test_components_and_validate_know_what_is_missing(bare: Path) -> None:
    listed = run_command(bare / "install", "components", "--json", cwd=bare)
    kafka = next(one for one in json.loads(listed.stdout) if one["type"] == "kafka")
    assert kafka["installed"] is False
    checked = run_command(bare / "install", "validate", "kafka.yaml", "--json", cwd=bare)
    [found] = json.loads(checked.stdout)["findings"]
    assert found["severity"] == "warning"
    assert "holdfast[kafka]" in found["hint"]


def test_an_install_with_the_extra_has_it(tmp_path: Path) -> None:
    make_install(tmp_path / "install", "kafka")
    listed = run_command(tmp_path / "install", "components", "--json", cwd=tmp_path)
    kafka = next(one for one in json.loads(listed.stdout) if one["type"] == "kafka")
    assert kafka["installed"] is True


def test_the_table_of_extras_names_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"all", "demo", "dev", "docs"}
    assert set(MODULES) == extras
    for extra, modules in MODULES.items():
        listed = project["optional-dependencies"][extra]
        named = {re.split(r"[\[<=>]", one)[0].lower().replace("-", "_") for one in listed}
        # Their distributions, where these have other names, and py4j, which comes with pyspark.
        named |= {"py4j"} if extra == "spark" else set()
        named |= {"grpc", "google"} if extra == "store" else set()
        named |= {"opentelemetry"} if extra == "otel" else set()
        named |= {"yaml"} if extra == "gateway" else set()
        named |= {"pydantic", "yaml"} if "holdfast[gateway]" in listed else set()
        assert set(modules) <= named
