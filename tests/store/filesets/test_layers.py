"""The merge property on the real writer, index, merge and compaction: reading is replaying."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import (
    NO_JOB,
    Operation,
    collides,
    content,
    layer_of,
    operations,
    put_all,
    read_all,
    replay,
)
from tests.support.examples import examples

from holdfast.store.filesets import Commits, FileSet, compact
from holdfast.store.filesets.layer_builder import compact_run
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store


@settings(max_examples=examples(80))
@given(st.lists(operations(8), min_size=1, max_size=5), st.data())
def test_reading_layers_is_replaying_their_operations(
    given_layers: list[list[Operation]], data: st.DataObject
) -> None:
    check_layers(given_layers, data)


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.lists(operations(8), min_size=1, max_size=5), st.data())
def test_reading_layers_is_replaying_their_operations_at_length(
    given_layers: list[list[Operation]], data: st.DataObject
) -> None:
    check_layers(given_layers, data)


def check_layers(given_layers: list[list[Operation]], data: st.DataObject) -> None:
    assume(not any(collides(replay(one)) for one in given_layers))
    store, chunks = memory_store()
    layers = [layer_of(store, one) for one in given_layers]
    state = replay([operation for one in given_layers for operation in one])
    files = FileSet(store, layers)
    assert read_all(files) == content(state)
    for path in state:
        assert files.stat(path).tags == [
            (tag, sum(map(len, state[path][tag]))) for tag in sorted(state[path])
        ]
        assert files.read(path) == content(state)[path]
    # Any neighbouring layers may become one, and all of them as well.
    start = data.draw(st.integers(0, len(layers) - 1))
    end = data.draw(st.integers(start + 1, len(layers)))
    with chunks.writer(None) as writer:
        run = compact_run(store, writer, layers[start:end], is_base=start == 0)  # type: ignore[arg-type]
    grouped = FileSet(store, [*layers[:start], run, *layers[end:]])
    assert read_all(grouped) == content(state)
    assert list(files.diff(grouped)) == []


@settings(max_examples=examples(50))
@given(st.lists(operations(8), min_size=1, max_size=4))
def test_a_base_does_not_depend_on_how_it_came_about(
    given_layers: list[list[Operation]],
) -> None:
    assume(not any(collides(replay(one)) for one in given_layers))
    store, _ = memory_store()
    layers = [layer_of(store, one) for one in given_layers]
    whole = compact(store, NO_JOB, layers, whole=True)
    one_by_one = layers[:1]
    for layer in layers[1:]:
        one_by_one = compact(store, NO_JOB, [*one_by_one, layer.at(0)], whole=True)
    one_by_one = compact(store, NO_JOB, one_by_one, whole=True)
    assert [layer.root for layer in whole] == [layer.root for layer in one_by_one]


@settings(max_examples=examples(50))
@given(operations(20), st.integers(1, 3000))
def test_a_full_buffer_changes_nothing(one: list[Operation], max_buffer_bytes: int) -> None:
    state = replay(one)
    assume(not collides(state))
    store, _ = memory_store()
    before = layer_of(store, [Operation("put", path, b"1", b"old") for path in ("a/x", "b/z")])
    spilled = layer_of(store, one, max_buffer_bytes=max_buffer_bytes)
    expected = replay(one, {"a/x": {b"1": (b"old",)}, "b/z": {b"1": (b"old",)}})
    assert read_all(FileSet(store, [spilled])) == content(state)
    assert read_all(FileSet(store, [before, spilled])) == content(expected)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_layers=st.lists(operations(6), min_size=2, max_size=3))
def test_a_real_store_holds_the_same(
    store: Store, job: Job, commits: Commits, given_layers: list[list[Operation]]
) -> None:
    assume(not any(collides(replay(one)) for one in given_layers))
    state = replay([operation for one in given_layers for operation in one])
    assume(not collides(state))
    layers = [layer_of(store, one, job) for one in given_layers]
    name = f"commit-{len(commits.list())}"
    commits.create(job, name, layers)
    compacted = commits.compact(job, name, f"{name}-compact", whole=True)
    assert len(compacted.layers) <= 1
    for made in (name, compacted.name):
        with commits.open(made) as files:
            assert read_all(files) == content(state)


@pytest.mark.parametrize("count", [0, 1, 50, 700])
def test_equal_files_have_equal_roots(count: int) -> None:
    files = {f"folder-{n % 7}/file-{n:04}": b"%d" % n * (n % 90) for n in range(count)}
    store, _ = memory_store()
    sorted_layer = put_all(store, files)
    backwards = put_all(store, dict(reversed(files.items())))
    assert sorted_layer.root == backwards.root
    halves = [
        put_all(store, dict(list(files.items())[: count // 2])),
        put_all(store, dict(list(files.items())[count // 2 :]), base=False),
    ]
    [merged] = compact(store, NO_JOB, halves, whole=True) or [put_all(store, {})]
    if count:
        # Content is packed with its neighbours, which differ; the index says the same.
        assert read_all(FileSet(store, [merged])) == dict(sorted(files.items()))
