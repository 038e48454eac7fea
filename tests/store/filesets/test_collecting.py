"""File sets and the collector: what a commit holds stays, and what none holds goes."""

from __future__ import annotations

import random

import pytest
from tests.store.filesets.operations import put_all, read_all

from holdfast.errors import LeaseLost
from holdfast.store.filesets import Commits
from holdfast.store.gc.collector import Collector
from holdfast.store.store import Store


def chunk_keys(store: Store) -> set[str]:
    return {found.key for found in store.objects.list("chunks/")}


def collect(store: Store) -> None:
    """Let the collector work until it finds nothing more."""
    collector = Collector(store.references, store.objects)
    while collector.collect().did_something:
        pass


def test_a_deleted_commit_is_collected_and_no_other(store: Store, commits: Commits) -> None:
    dice = random.Random(1)
    files = {f"d{n % 5}/{n:03}": dice.randbytes(n * 10) for n in range(120)}
    with store.references.open_job("one") as job:
        commits.create(job, "one", [put_all(store, files, job)])
    collect(store)
    of_one = chunk_keys(store)
    with store.references.open_job("two") as job:
        upper = put_all(store, {"d1/001": b"changed", "e": dice.randbytes(5000)}, job, base=False)
        commits.create(job, "two", [*commits.get("one").layers, upper], parent="one")
    collect(store)
    assert chunk_keys(store) > of_one
    commits.delete("two")
    collect(store)
    assert chunk_keys(store) == of_one
    with commits.open("one") as opened:
        assert read_all(opened) == dict(sorted(files.items()))
    commits.delete("one")
    collect(store)
    assert chunk_keys(store) == set()


def test_a_compacted_commit_outlives_its_parent(store: Store, commits: Commits) -> None:
    dice = random.Random(2)
    files = {f"d{n % 5}/{n:03}": dice.randbytes(800) for n in range(120)}
    with store.references.open_job("write") as job:
        layers = [put_all(store, files, job)]
        layers.append(put_all(store, {"d3/new": b"new"}, job, base=False))
        commits.create(job, "parent", layers)
    with store.references.open_job("compact") as job:
        commits.compact(job, "parent", "child", whole=True)
    commits.delete("parent")
    collect(store)
    with commits.open("child") as opened:
        assert read_all(opened) == dict(sorted({**files, "d3/new": b"new"}.items()))


def test_a_spilled_run_is_collected(store: Store, commits: Commits) -> None:
    files = {f"{n * 7 % 200:03}": b"%d" % n * 60 for n in range(200)}
    with store.references.open_job("write") as job:
        commits.create(job, "name", [put_all(store, files, job, max_buffer_bytes=10_000)])
    before = chunk_keys(store)
    collect(store)
    assert chunk_keys(store) < before
    with commits.open("name") as opened:
        assert read_all(opened) == dict(sorted(files.items()))


def test_what_is_written_and_not_committed_goes_with_its_job(
    store: Store, commits: Commits
) -> None:
    with store.references.open_job("dropped") as job:
        put_all(store, {"a": b"x" * 5000}, job)
        collect(store)
        assert chunk_keys(store)
    collect(store)
    assert chunk_keys(store) == set()


def test_a_reader_whose_pin_has_ended_is_told_so(store: Store, commits: Commits) -> None:
    """It was told that a chunk is missing, and to check the store, with which all is well."""
    dice = random.Random(3)
    with store.references.open_job("write") as job:
        commits.create(job, "name", [put_all(store, {"a": dice.randbytes(50_000)}, job)])
    with commits.open("name") as opened:
        commits.delete("name")
        assert opened.pin is not None
        assert store.references.end_lease(opened.pin.id, sure=True) is not None
        collect(store)
        with pytest.raises(LeaseLost, match=r"pin 'name' has ended.*open it again"):
            opened.read("a")
