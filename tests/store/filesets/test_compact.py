"""Compaction: by levels, by reference, and with nothing left of what is deleted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, Operation, layer_of, put_all, read_all
from tests.support.examples import examples

from holdfast.errors import BadInput
from holdfast.store.filesets import FileSet, Layer, compact
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.layer_builder import compact_run, plan


def sized(entries: int) -> Layer:
    return Layer(pb.Index(path="a", range=pb.Range(num_entries=entries)))


def is_level(weights: list[int], factor: int) -> bool:
    return all(weights[n] >= factor * sum(weights[n + 1 :]) for n in range(len(weights) - 1))


@given(st.lists(st.integers(1, 10_000), max_size=12), st.integers(1, 12))
def test_a_plan_leaves_levels(weights: list[int], factor: int) -> None:
    start = plan([sized(weight) for weight in weights], factor)
    after = weights[:start] + ([sum(weights[start:])] if start < len(weights) else [])
    assert is_level(after, factor)
    if is_level(weights, factor):
        assert start == len(weights)


def test_a_thousand_layers_are_rewritten_a_few_times_each() -> None:
    weights: list[int] = []
    written = 0
    most = 0
    for _ in range(1000):
        weights.append(10)
        start = plan([sized(weight) for weight in weights], 4)
        if start < len(weights):
            written += sum(weights[start:])
            weights[start:] = [sum(weights[start:])]
        most = max(most, len(weights))
    assert sum(weights) == 10_000
    assert most <= 10
    # Every entry at once with each layer would be 5,000,000.
    assert written < 10_000 * 40


def test_a_level_factor_must_make_levels() -> None:
    with pytest.raises(BadInput):
        plan([sized(1)], 0)


def test_layers_that_are_well_are_left_alone() -> None:
    store, _ = memory_store()
    layers = [put_all(store, {f"{n:03}": b"" for n in range(100)}), put_all(store, {"x": b""})]
    assert compact(store, NO_JOB, layers) == layers
    [merged] = compact(store, NO_JOB, layers, whole=True)
    assert merged.files == 1


def test_an_upper_run_keeps_what_it_takes_away() -> None:
    store, _ = memory_store()
    base = put_all(store, {f"d/{n:03}": b"old" for n in range(300)} | {"e": b"e", "f": b"f"})
    upper = [
        layer_of(store, [Operation("delete_prefix", "d/"), Operation("delete", "e")]),
        layer_of(store, [Operation("put", "d/new", b"", b"new")]),
        layer_of(store, [Operation("append", "f", b"", b"+")]),
    ]
    layers = compact(store, NO_JOB, [base, *upper])
    assert len(layers) == 2
    assert layers[0] == base
    assert layers[1].num_tombstones == 1
    assert read_all(FileSet(store, layers)) == {"d/new": b"new", "f": b"f+"}


def test_single_layer_subtrees_pass_by_reference() -> None:
    store, chunks = memory_store()
    base = put_all(store, {f"d{n % 9}/{n:05}": b"" for n in range(3000)})
    upper = put_all(store, {"d4/00004": b"changed", "d7/new": b"new"}, base=False)
    before = set(chunks.data)
    chunks.reads.clear()
    [merged] = compact(store, NO_JOB, [base, upper], whole=True)
    assert merged.files == 3001
    added = set(chunks.data) - before
    assert len(added) < 30
    # Opened: the levels above, and the few chunks at the lowest that both layers have a part in.
    assert len(chunks.reads) * 3 < len(before)
    expected = {f"d{n % 9}/{n:05}": b"" for n in range(3000)}
    expected |= {"d4/00004": b"changed", "d7/new": b"new"}
    assert read_all(FileSet(store, [merged])) == dict(sorted(expected.items()))


@settings(max_examples=examples(15))
@given(st.integers(0, 2**32))
def test_by_reference_or_anew_makes_the_same_index(seed: int) -> None:
    dice = random.Random(seed)
    store, _ = memory_store()
    paths = [f"d{n % 5}/{n:04}" for n in range(250)]
    base = put_all(store, dict.fromkeys(paths, b""))
    changed = dict.fromkeys(dice.sample(paths, 5), b"x" * 600)
    gone = dice.sample([path for path in paths if path not in changed], 5)
    operations = [Operation("put", path, b"", data) for path, data in changed.items()]
    operations += [Operation("delete", path) for path in gone]
    [merged] = compact(store, NO_JOB, [base, layer_of(store, operations)], whole=True)
    after = {path: b"" for path in paths if path not in gone} | changed
    assert merged.root == put_all(store, after).root


PATHS = [f"d{n % 5}/{n:04}" for n in range(250)]


def test_entries_with_flags_are_written_anew_for_a_base() -> None:
    store, _ = memory_store()
    files = dict.fromkeys(PATHS, b"")
    [merged] = compact(store, NO_JOB, [put_all(store, files, base=False)], whole=True)
    assert merged.root == put_all(store, files).root


def test_a_chunk_that_ended_with_its_layer_is_written_anew() -> None:
    store, _ = memory_store()
    base = put_all(store, dict.fromkeys(PATHS, b""))
    for count in range(1, 8):
        more = {f"z/{n}": b"" for n in range(count)}
        layers = [base, put_all(store, more, base=False)]
        [merged] = compact(store, NO_JOB, layers, whole=True)
        assert merged.root == put_all(store, {**dict.fromkeys(PATHS, b""), **more}).root


def test_an_upper_run_is_what_one_writer_would_have_written() -> None:
    store, _ = memory_store()
    deletions = [Operation("delete_prefix", f"d{n}/") for n in (1, 3)]
    puts = [Operation("put", path) for path in PATHS]
    base = put_all(store, {f"old/{n:04}": b"" for n in range(5)})
    layers = [base, layer_of(store, deletions), layer_of(store, puts)]
    merged = compact(store, NO_JOB, layers, level_factor=1)
    assert len(merged) in (1, 2)
    with store.chunks.writer(NO_JOB) as writer:
        run = compact_run(store, writer, layers[1:], is_base=False)
    assert run.root == layer_of(store, [*deletions, *puts]).root
    assert run.num_tombstones == 2


def test_a_diff_sees_what_a_deleted_folder_takes_away() -> None:
    store, _ = memory_store()
    base = put_all(store, dict.fromkeys(PATHS, b""))
    deletion = layer_of(store, [Operation("delete_prefix", "d3/")])
    found = FileSet(store, [base]).diff(FileSet(store, [base, deletion]))
    assert [one.path for one in found] == sorted(path for path in PATHS if path.startswith("d3/"))
