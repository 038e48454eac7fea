"""`holdfast prove CONFIG`: the user's receiver and buffer, in a copy, on the user's disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast.operate.cli import cli
from holdfast.operate.cli.base.cases import write_case
from holdfast.prove.gateway import GatewayProver
from holdfast.prove.own_config import disk_of


def test_a_copy_has_the_files_own_buffer_and_nothing_of_its_destinations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "own.yaml"
    write_case("openlineage", config)
    before = config.read_text()
    made: list[str] = []

    def looked_at(prover: GatewayProver) -> None:
        made.append(prover._config_path.read_text())
        raise ZeroDivisionError

    monkeypatch.setattr(GatewayProver, "start", looked_at)
    words = ["prove", str(config), "--kills", "1", "--dir", str(tmp_path / "proof")]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(result.exception, ZeroDivisionError)
    tree = yaml.safe_load(made[0])
    assert tree["nodes"]["buffer"]["config"]["retention"] == {"size_cap": "10GB"}
    assert "marquez" not in made[0]
    assert tree["data_dir"].startswith(str(tmp_path / "proof"))
    assert config.read_text() == before
    assert disk_of(config) == tmp_path


@pytest.mark.parametrize("name", ["quivers", "missing.yaml"])
def test_what_is_neither_a_proof_nor_a_file_is_refused(name: str) -> None:
    result = CliRunner().invoke(cli, ["prove", name])
    assert result.exit_code == 2
    assert "neither a graph file nor one of quiver" in result.output


@pytest.mark.slow
def test_the_file_of_a_case_is_proven(tmp_path: Path) -> None:
    write_case("openlineage", tmp_path / "own.yaml")
    words = ["prove", str(tmp_path / "own.yaml"), "--kills", "3", "--json"]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.return_value == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]
