"""Layers: what they do one after another is what their composition does, in any grouping."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.store.filesets.operations import Operation, State, operations, replay
from tests.support.examples import examples

from holdfast.store.filesets import algebra
from holdfast.store.filesets.algebra import Change, TagChange, Tombstones

Piece = bytes
LayerModel = tuple[Tombstones, dict[str, Change[Piece]]]
EMPTY: LayerModel = (Tombstones(), {})


def one(operation: Operation) -> LayerModel:
    """Return the layer of one operation."""
    kind, path, tag, data = operation
    if kind == "delete_prefix":
        return Tombstones([path]), {}
    changes: dict[str, Change[Piece]] = {
        "append": algebra.append(tag, (data,)),
        "put": algebra.overwrite(tag, (data,)),
        "replace_tag": algebra.replace_tag(tag, (data,)),
        "delete_tag": algebra.delete_tag(tag),
        "delete": algebra.delete(),
    }
    return Tombstones(), {path: changes[kind]}


def compose(newer: LayerModel, older: LayerModel) -> LayerModel:
    """Return the one layer that two make."""
    changes = {path: change for path, change in older[1].items() if not newer[0].covers(path)}
    for path, change in newer[1].items():
        changes[path] = algebra.compose(change, changes.get(path))
    return newer[0] | older[0], changes


def fold(given: list[Operation]) -> LayerModel:
    layer = EMPTY
    for operation in given:
        layer = compose(one(operation), layer)
    return layer


def bare(layer: LayerModel) -> LayerModel:
    """Return a layer as it is stored: without flags below its own tombstones."""
    gone, changes = layer
    stored = {
        path: algebra.over_nothing(change) if gone.covers(path) else change
        for path, change in changes.items()
    }
    return gone, {path: change for path, change in stored.items() if change is not None}


def apply(layer: LayerModel, state: State) -> State:
    """Return what a layer makes of some files."""
    gone, changes = layer
    files = {path: file for path, file in state.items() if not gone.covers(path)}
    for path, change in changes.items():
        file = {} if change.reset else dict(files.get(path, {}))
        for tag, part in change.parts.items():
            if part.set:
                file.pop(tag, None)
            if part.refs is not None:
                file[tag] = file.get(tag, ()) + part.refs
        files.pop(path, None)
        if file:
            files[path] = file
    return files


@settings(max_examples=examples(150))
@given(operations(), operations(), operations(), operations(4))
def test_composition_is_associative_and_equals_sequential_replay(
    a: list[Operation], b: list[Operation], c: list[Operation], before: list[Operation]
) -> None:
    check_composition(a, b, c, before)


def check_composition(
    a: list[Operation], b: list[Operation], c: list[Operation], before: list[Operation]
) -> None:
    first, second, third = fold(a), fold(b), fold(c)
    left = compose(third, compose(second, first))
    right = compose(compose(third, second), first)
    assert left == right
    state = replay(before)
    assert apply(left, state) == replay([*a, *b, *c], state)


@pytest.mark.slow
@settings(max_examples=3000)
@given(operations(), operations(), operations(), operations(4))
def test_composition_is_associative_and_equals_sequential_replay_at_length(
    a: list[Operation], b: list[Operation], c: list[Operation], before: list[Operation]
) -> None:
    check_composition(a, b, c, before)


@settings(max_examples=examples(150))
@given(operations(), operations(), operations(4))
def test_flags_may_be_dropped_below_a_layers_own_tombstones(
    a: list[Operation], b: list[Operation], before: list[Operation]
) -> None:
    older, newer = fold(a), fold(b)
    assert bare(compose(bare(newer), bare(older))) == bare(compose(newer, older))
    state = replay(before)
    assert apply(bare(newer), apply(bare(older), state)) == replay([*a, *b], state)


def test_a_base_drops_what_only_takes_away() -> None:
    change = Change(True, {b"1": TagChange(True, (b"x",)), b"2": TagChange(True, None)}, "known")
    assert algebra.over_nothing(change) == Change(False, {b"1": TagChange(False, (b"x",))}, "known")
    assert algebra.over_nothing(algebra.delete()) is None
    assert algebra.over_nothing(algebra.delete_tag(b"1")) is None


def test_metadata_is_that_of_the_newest_layer_that_knows_any() -> None:
    older = algebra.overwrite(b"1", (b"x",), "old")
    assert algebra.compose(algebra.append(b"1", (b"y",)), older).metadata == "old"
    assert algebra.compose(algebra.append(b"1", (b"y",), "new"), older).metadata == "new"
    # Another file under the same path is not the old one.
    assert algebra.compose(algebra.overwrite(b"1", (b"y",)), older).metadata is None


def test_an_empty_part_is_a_file_and_none_is_not() -> None:
    assert algebra.append(b"1", ()).present
    assert not algebra.delete_tag(b"1").present
    assert not algebra.delete().present


def test_tombstones_hold_no_folder_within_another() -> None:
    assert Tombstones(["b/", "a/x/", "a/", "b/"]).folders == ("a/", "b/")
    assert Tombstones(["a/", ""]).folders == ("",)
    assert len(Tombstones(["a/"]) | Tombstones(["a/b/", "c/"])) == 2


def test_tombstones_cover_what_stands_below() -> None:
    gone = Tombstones(["a/", "c/d/"])
    assert [
        path for path in ("a", "a-b", "a/", "a/x", "a0", "c/d/e", "c/e") if gone.covers(path)
    ] == [
        "a/",
        "a/x",
        "c/d/e",
    ]
    assert Tombstones([""]).covers("x")
    assert not Tombstones().covers("x")


def test_tombstones_know_whether_they_touch_a_range() -> None:
    gone = Tombstones(["b/", "d/"])
    assert not gone.touch("a", "a/z")
    assert gone.touch("a", "b/x")
    assert gone.touch("b/m", "b/n")
    assert gone.touch("b/m", "c")
    assert not gone.touch("b0", "c")
    assert not gone.touch("e", "f")
    assert gone.covers_all("b/m", "b/n")
    assert not gone.covers_all("b/m", "c")
    assert not gone.covers_all("c", "d/x")
    assert Tombstones([""]).covers_all("a", "z")
