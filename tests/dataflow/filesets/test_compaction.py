"""Compaction by parts makes the same layers as in one process, to the last chunk."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.dataflow.filesets.stores import make_store, write_layer

from holdfast.dataflow.filesets.compaction import Leaf, compact_on_spark, merge_in_parts
from holdfast.dataflow.filesets.shipping import ShippedPart
from holdfast.store.filesets import Commits, Layer, compact
from holdfast.store.filesets.layer_builder import compact_run
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path) as made:
        yield made


@pytest.fixture
def job(store: Store) -> Iterator[Job]:
    with store.references.open_job("test") as opened:
        yield opened


def layers_of(store: Store, job: Job, seed: int) -> list[Layer]:
    """Return a large layer, and some that change, delete and add a little of it."""
    random = Random(seed)
    paths = [f"d{n % 7}/{n:05}" for n in range(700)]
    layers = [write_layer(store, job, {path: path.encode() for path in paths})]
    for number in range(random.randint(1, 3)):
        some: dict[str, bytes | None] = dict.fromkeys(random.sample(paths, 30), b"new")
        some |= dict.fromkeys(random.sample(paths, 10))
        some |= {f"d{random.randrange(7)}/": None} if random.random() < 0.7 else {}
        some |= {f"n{number}/{n:04}": b"more" for n in range(random.choice([0, 200]))}
        layers.append(write_layer(store, job, some))
    return [layer.at(seq) for seq, layer in enumerate(layers, 1)]


def here(
    task: Callable[[ShippedPart], list[Leaf]], parts: Sequence[ShippedPart]
) -> Iterator[list[Leaf]]:
    """Run tasks as Spark does: with what they are sent, and no more."""
    for part in parts:
        yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task))(part)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_base", [True, False])
def test_parts_make_the_same_layer(store: Store, job: Job, seed: int, is_base: bool) -> None:
    layers = layers_of(store, job, seed)
    run = layers if is_base else layers[1:]
    with store.chunks.writer(job) as writer:
        expected = compact_run(store, writer, run, is_base=is_base)
    for shard_files in (50, 333):
        made = merge_in_parts(here, store, job, run, is_base=is_base, shard_files=shard_files)
        assert made == expected


def test_nothing_may_be_left(store: Store, job: Job) -> None:
    layers = [write_layer(store, job, {"a/b": b"x"}).at(1), write_layer(store, job, {"a/": None})]
    with store.chunks.writer(job) as writer:
        expected = compact_run(store, writer, layers, is_base=True)
    assert expected.index is None
    assert merge_in_parts(here, store, job, layers, is_base=True) == expected


@pytest.mark.slow
def test_spark_compacts_a_commit(spark: SparkSession, store: Store, job: Job) -> None:
    commits = Commits(store)
    commits.create(job, "many", layers_of(store, job, 1))
    with commits.open("many") as files:
        expected = compact(store, job, files.layers, whole=True)
        made = compact_on_spark(spark, store, job, files.layers, whole=True, shard_files=200)
        assert made == expected
        assert compact_on_spark(spark, store, job, made) == made
        commits.create(job, "few", made, parent="many")
    with commits.open("many") as before, commits.open("few") as after:
        assert len(after.layers) == 1
        assert list(before.diff(after)) == []
