"""validate, print-config, config schema, components, graph: JSON and text, with exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner, Result

from holdfast.errors import BadConfig, BadInput
from holdfast.graph.registry import COMPONENTS
from holdfast.operate.cli import cli
from holdfast.operate.cli.base.target import Target

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "openlineage.yaml")


def run(name: str, *arguments: str) -> Result:
    told = [name.replace("_", "-"), *arguments]
    return CliRunner().invoke(cli, told, catch_exceptions=False, standalone_mode=False)


def test_the_example_is_valid() -> None:
    told = run("validate", EXAMPLE)
    assert told.return_value == 0
    assert told.output.endswith("openlineage.yaml: 0 errors, 0 warnings\n")
    assert json.loads(run("validate", EXAMPLE, "--json").output) == {"ok": True, "findings": []}


def test_warnings_are_told_and_are_no_failure(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(
        "nodes:\n"
        "  lineage: {kind: receiver, type: openlineage, to: out}\n"
        "  out: {kind: exporter, type: console}\n"
        "  other: {kind: exporter, type: console}\n"
    )
    told = run("validate", str(file))
    assert told.return_value == 0
    assert f"{file}:4:3: warning: 'other' is not connected, and is not started" in told.output
    assert told.output.endswith("0 errors, 1 warning\n")


def test_print_config_prints_yaml_or_json_that_mean_the_same() -> None:
    as_yaml = yaml.safe_load(run("print_config", EXAMPLE).output)
    as_json = json.loads(run("print_config", EXAMPLE, "--json").output)
    assert as_yaml == as_json
    assert as_json["nodes"]["marquez"]["delivery"]["retention_time"] == "3d"
    assert as_json["nodes"]["marquez"]["config"]["url"] == "http://127.0.0.1:5001"


def test_the_schema_is_a_schema_and_knows_the_example() -> None:
    schema = json.loads(run("config", "schema").output)
    jsonschema_rs.meta.validate(schema)
    printed = json.loads(run("print_config", EXAMPLE, "--json").output)
    jsonschema_rs.validator_for(schema).validate(printed)


def test_components_are_listed() -> None:
    told: list[dict[str, Any]] = json.loads(run("components", "--json").output)
    assert {(one["kind"], one["type"]) for one in told} >= {(c.kind, c.type) for c in COMPONENTS}
    assert "openlineage" in run("components").output


def test_a_component_tells_its_settings() -> None:
    (told,) = json.loads(run("components", "quiver", "--json").output)
    keys = {one["key"]: one for one in told["settings"]}
    assert keys["retention.size_cap"]["default"] == "10GB"
    assert "retention.size_cap" in run("components", "urn:otap:processor:persistence").output
    with pytest.raises(BadInput, match="no component 'quivver'") as caught:
        run("components", "quivver")
    assert caught.value.hint == "did you mean 'quiver'?"


def test_a_graph_is_drawn() -> None:
    assert "buffer -> marquez" in run("graph", EXAMPLE).output.splitlines()
    assert run("graph", EXAMPLE, "--format", "mermaid").output.startswith("flowchart LR\n")
    told = json.loads(run("graph", EXAMPLE, "--json").output)
    assert {"from": "lineage", "to": "buffer", "label": ""} in told["connections"]
    assert {"name": "archive", "kind": "exporter", "type": "files"} in told["nodes"]


@pytest.mark.parametrize("name", ["print_config", "graph", "up"])
def test_a_bad_file_is_an_error_with_its_findings(name: str, tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text("nodes: {a: {kind: receiver}}")
    with pytest.raises(BadConfig) as caught:
        run(name, str(file))
    assert caught.value.findings


def test_a_tool_finds_the_data_directory_without_the_secrets_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text("data_dir: there\nnodes: {a: {config: {token: '${env:UNSET_SECRET}'}}}\n")
    assert Target(str(file)).data_dir() == tmp_path / "there"
    file.write_text("nodes: {}")
    assert Target(str(file)).data_dir() == tmp_path / "holdfast_data"
    assert Target(str(tmp_path)).data_dir() == tmp_path
    for text in ("data_dir: 5", "data_dir: '${env:UNSET_SECRET}'", "just text", ""):
        file.write_text(text)
        with pytest.raises(BadInput, match="does not say"):
            Target(str(file)).data_dir()
