"""Whatever a file holds, loading it gives a graph or `BadConfig`, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.graph.files import TOYS
from tests.graph.strategies import graph_files, texts

from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.paths import plan
from holdfast.graph.printing import as_mermaid, as_text, as_yaml, printed
from holdfast.graph.shorthand import KEYS

SHARED = settings(
    max_examples=max(10, settings().max_examples // 3),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def load_bytes(folder: Path, content: bytes) -> None:
    """Load; whatever can be loaded can be planned, printed and drawn."""
    path = folder / "any.yaml"
    path.write_bytes(content)
    with contextlib.suppress(BadConfig):
        loaded = load(path, registry=TOYS, environment={"A": "1"})
        plan(loaded.graph)
        as_yaml(printed(loaded))
        as_text(loaded.graph)
        as_mermaid(loaded.graph)


def places_in(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = [at]
    for key, value in inner:
        found += places_in(value, (*at, key)) if isinstance(value, dict | list) else [(*at, key)]
    return found


def changed(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return the tree with another value at one place."""
    if not at:
        return value
    if isinstance(tree, dict):
        return {k: changed(v, at[1:], value) if k == at[0] else v for k, v in tree.items()}
    return [changed(v, at[1:], value) if i == at[0] else v for i, v in enumerate(tree)]


@SHARED
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode()))
def test_any_bytes(content: bytes, tmp_path: Path) -> None:
    load_bytes(tmp_path, content)


@SHARED
@given(tree=graph_files(), data=st.data())
def test_a_file_with_anything_anywhere(
    tree: dict[str, Any], data: st.DataObject, tmp_path: Path
) -> None:
    at = data.draw(st.sampled_from(places_in(tree)))
    names = st.sampled_from(list(tree["nodes"]))
    value = data.draw(VALUES | names | st.lists(names, max_size=3))
    load_bytes(tmp_path, as_yaml(changed(tree, at, value)).encode())


@SHARED
@given(tree=graph_files(), data=st.data())
def test_a_file_with_any_byte_changed(
    tree: dict[str, Any], data: st.DataObject, tmp_path: Path
) -> None:
    content = bytearray(as_yaml(tree).encode())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    load_bytes(tmp_path, bytes(content))


@SHARED
@given(
    tree=graph_files(),
    short=st.fixed_dictionaries({}, optional={key: VALUES | st.just("h:1") for key in KEYS}),
    data=st.data(),
)
def test_a_file_with_short_keys_of_data_nodes(
    tree: dict[str, Any], short: dict[str, Any], data: st.DataObject, tmp_path: Path
) -> None:
    at = data.draw(st.sampled_from(places_in(tree["nodes"])))
    tree = {**tree, **short, "nodes": changed(tree["nodes"], at, data.draw(VALUES))}
    load_bytes(tmp_path, as_yaml(tree).encode())
