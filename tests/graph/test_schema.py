"""The JSON Schema: what loads is valid by it, and common mistakes are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from tests.graph.files import TOYS, escaped_tree, load_text
from tests.graph.strategies import graph_files

from holdfast.graph.document import Substitution, read_document
from holdfast.graph.printing import as_yaml, printed
from holdfast.graph.registry import Registry
from holdfast.graph.schema import graph_schema

SCHEMA = jsonschema_rs.validator_for(graph_schema(TOYS))
FULL = jsonschema_rs.validator_for(graph_schema(Registry.standard()))


class _AsWritten(Substitution):
    """Leaves references as they are, as an editor sees them."""

    def apply(self, text: str) -> str:
        return text


def test_the_example_is_valid_as_it_is_written() -> None:
    example = Path(__file__).parents[2] / "examples" / "openlineage.yaml"
    document = read_document(example, _AsWritten({}, example.parent))
    assert "${env:MARQUEZ_URL" in str(document.value)
    FULL.validate(document.value)


def test_data_nodes_may_be_written_as_a_mapping_a_list_or_a_text() -> None:
    for nodes in ({"a": "h:1"}, ["h:1"], "h:1,h:2"):
        node = {"kind": "exporter", "type": "nodes", "config": {"nodes": nodes}}
        SCHEMA.validate({"nodes": {"in": NODE, "copies": node}})


@settings(
    max_examples=max(10, settings().max_examples // 5),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tree=graph_files())
def test_what_print_config_prints_is_valid(tree: dict[str, Any], tmp_path: Path) -> None:
    SCHEMA.validate(printed(load_text(tmp_path, as_yaml(escaped_tree(tree)))))


NODE = {"kind": "receiver", "type": "toy"}


@pytest.mark.parametrize(
    "tree",
    [
        {"nodes": {}},
        {"nodes": {"a": NODE}, "wrokers": 1},
        {"nodes": {"a": {**NODE, "config": {"listn": "x"}}}},
        {"nodes": {"a": {**NODE, "config": {"limits": {"max_body": "lots"}}}}},
        {"nodes": {"a": {"kind": "reciever", "type": "toy"}}},
        {"nodes": {"a": {"kind": "exporter", "type": "memory", "delivery": {"order": "x"}}}},
        {"nodes": {"a": {"kind": "processor", "plugin_urn": "persistence", "config": {"a": 1}}}},
        {"nodes": {"a": NODE}, "dead_letters": {"handlers": {"b": {"type": "memory", "x": 1}}}},
        {
            "nodes": {"a": NODE},
            "dead_letters": {"handlers": {"b": {"type": "memory", "config": {"x": 1}}}},
        },
    ],
)
def test_mistakes_are_found(tree: dict[str, Any]) -> None:
    SCHEMA.validate({"nodes": {"a": {**NODE, "config": {"listen": ":1", "ratio": "${env:R}"}}}})
    assert not SCHEMA.is_valid(tree)


def test_every_component_has_its_settings_in_it() -> None:
    definitions = graph_schema(Registry.standard())["$defs"]
    for component in Registry.standard():
        schema = definitions[f"{component.kind}_{component.type}"]
        assert schema["anyOf"][0]["properties"]
