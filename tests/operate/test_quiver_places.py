"""Tools find the quiver that is meant: by its directory, its root, a gateway's data or file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.errors import CannotOpen
from holdfast.operate.cli import cli
from holdfast.quiver import Quiver

GRAPH = """\
data_dir: data
nodes:
  lineage: {kind: receiver, type: openlineage, to: out}
  out: {kind: exporter, type: console}
"""


def holdfast(*words: object) -> Result:
    arguments = list(map(str, words))
    return CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway.yaml").write_text(GRAPH)
    make(tmp_path / "data" / "quiver" / "core-00", b'{"run": "run-1"}')
    for store in ("rejected", "undelivered"):
        make(tmp_path / "data" / "dead_letters" / store, b"{}")
    return tmp_path


def make(directory: Path, payload: bytes) -> None:
    directory.mkdir(parents=True)
    with Quiver.open(directory) as quiver:
        quiver.register("out")
        quiver.append_raw(payload, slot="openlineage")


@pytest.mark.parametrize("place", ["gateway.yaml", "data", "data/quiver", "data/quiver/core-00"])
def test_the_only_quiver_is_meant(folder: Path, place: str) -> None:
    told = holdfast("quiver", "ledger", folder / place, "--balance", "--json")
    (account,) = json.loads(told.output)
    assert account["accepted"]["events"] == 1


@pytest.mark.parametrize("place", ["gateway.yaml", "data", "data/quiver", "data/quiver/core-00"])
def test_a_run_is_explained_wherever_one_looks(folder: Path, place: str) -> None:
    told = holdfast("explain", "run-1", folder / place)
    assert told.return_value == 0
    assert "pending" in told.output


def test_of_several_quivers_one_has_to_be_named(folder: Path) -> None:
    make(folder / "data" / "quiver" / "core-01", b"{}")
    for place in ("gateway.yaml", "data", "data/quiver"):
        with pytest.raises(CannotOpen, match="2 quivers") as refused:
            holdfast("quiver", "ls", folder / place)
        assert str(folder / "data" / "quiver" / "core-01") in str(refused.value.hint)


def test_a_gateway_that_never_ran_has_none(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "gateway.yaml").write_text(GRAPH)
    with pytest.raises(CannotOpen, match="no quiver"):
        holdfast("quiver", "ls", other / "gateway.yaml")
    with pytest.raises(CannotOpen, match="no quiver"):
        holdfast("quiver", "ls", other)


@pytest.mark.parametrize("place", ["gateway.yaml", "data", "data/quiver", "data/quiver/core-00"])
def test_figures_are_printed_wherever_one_looks(folder: Path, place: str) -> None:
    told = holdfast("quiver", "metrics", folder / place)
    assert told.return_value is None
    assert told.output.startswith("# HELP ")
