"""`print-config`: what it prints can be loaded, means the same, and tells no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.graph.files import TOYS, escaped_tree, load_text
from tests.graph.strategies import graph_files, texts

from holdfast.graph.document import Document, Substitution, parse_document
from holdfast.graph.loader import Loaded, load
from holdfast.graph.printing import MASK, as_yaml, printed

SHARED = settings(
    max_examples=max(10, settings().max_examples // 3),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def without_secrets(loaded: Loaded) -> list[Any]:
    configs = [
        (name, node.kind, node.component, node.config.model_dump(mode="json"), node.delivery)
        for name, node in (*loaded.graph.nodes.items(), *loaded.graph.handlers.items())
    ]
    ports = [node.ports for node in loaded.graph.nodes.values()]
    top = loaded.graph.settings.model_dump(exclude={"nodes": True, "dead_letters": {"handlers"}})
    return [configs, ports, top]


@SHARED
@given(tree=graph_files())
def test_what_is_printed_loads_to_the_same_graph(tree: dict[str, Any], tmp_path: Path) -> None:
    first = load_text(tmp_path, as_yaml(escaped_tree(tree)))
    again = load_text(tmp_path, as_yaml(printed(first)))
    assert without_secrets(again) == without_secrets(first)
    assert printed(again) == printed(first)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_plain_data_is_written_so_that_it_is_read_back(value: Any) -> None:
    written = as_yaml({"root": escaped_tree(value)}).encode()
    found = parse_document(written, Document("x"), Substitution({}, Path()))
    assert [one for one in found.findings if one.severity == "error"] == []
    assert found.value == {"root": value}


FILE = """\
nodes:
  in:
    kind: receiver
    type: toy
    to: out
    config:
      tokens:
        from_variable: ${env:TOKEN}
        from_file: ${file:token}
        with_default: ${env:OTHER:-hunter2-default}
        plain: hunter2-plain
        mixed: Bearer ${env:TOKEN}
      auth: {type: key, key: "${env:TOKEN}"}
  out:
    kind: exporter
    type: memory
    config: {url: "https://user:hunter2-url@backend/x?team=a&api_key=hunter2-query&Token=hunter2"}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    (tmp_path / "token").write_text("hunter2-file")
    return load_text(tmp_path, FILE, {"TOKEN": "hunter2-variable"})


def test_no_secret_is_printed(loaded: Loaded) -> None:
    text = as_yaml(printed(loaded))
    assert "hunter2" not in text
    assert "hunter2" not in str(printed(loaded))


def test_a_secret_is_printed_as_the_reference_it_was(loaded: Loaded) -> None:
    config = printed(loaded)["nodes"]["in"]["config"]
    assert config["tokens"] == {
        "from_variable": "${env:TOKEN}",
        "from_file": "${file:token}",
        "with_default": MASK,
        "plain": MASK,
        "mixed": MASK,
    }
    assert config["auth"]["key"] == "${env:TOKEN}"
    assert printed(loaded)["nodes"]["out"]["config"]["url"] == (
        f"https://user:{MASK}@backend/x?team=a&api_key={MASK}&Token={MASK}"
    )


def test_every_default_is_filled_in(loaded: Loaded) -> None:
    tree = printed(loaded)
    assert tree["workers"] == 1
    assert tree["nodes"]["in"]["config"]["limits"] == {"max_body": "1KB", "timeout": "2500ms"}
    assert tree["nodes"]["out"]["delivery"]["order"] == "received"
    assert tree["dead_letters"]["rejected"]["max_size"] == "256MB"


def test_the_example_is_printed_and_loaded(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "openlineage.yaml"
    first = load(example, environment={})
    assert first.warnings == ()
    path = tmp_path / "printed.yaml"
    path.write_text(as_yaml(printed(first)))
    again = load(path, environment={})
    assert printed(again) == printed(first)
    assert [node.component.type for node in first.graph.of_kind("exporter")] == ["http", "files"]


def test_toys_are_only_for_tests() -> None:
    assert TOYS.find("receiver", "openlineage") is None
