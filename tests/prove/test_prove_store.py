"""The proof of the store, and that its checker finds what it looks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.operate.cli import cli
from holdfast.prove import points
from holdfast.prove.journal import ProofJournal, digest_of
from holdfast.prove.store import ROLES, sites_of
from holdfast.prove.store_checker import StoreVerdict, check_store
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.gc.collector import Collector
from holdfast.store.store import Store

FILES = {"a": b"alpha", "b/c": bytes(300_000)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(str(tmp_path / "store")) as made:
        yield made


@pytest.fixture
def journal(tmp_path: Path) -> ProofJournal:
    (tmp_path / "journals").mkdir()
    return ProofJournal(tmp_path / "journals" / "one.journal")


def make(store: Store, journal: ProofJournal, name: str, note: str = "SA") -> None:
    """Make a commit, and note it."""
    files = {**FILES, "name": name.encode()}
    if "S" in note:
        journal.note("S", name, digest_of(files.items()))
    with store.references.open_job(name) as job:
        with FileSetWriter(store, job) as writer:
            for path, data in files.items():
                writer.put(path, data)
            layer = writer.close()
        Commits(store).create(job, name, [layer])
    if "A" in note:
        journal.note("A", name)


def verdict_of(store: Store, tmp_path: Path) -> StoreVerdict:
    Collector(store.references, store.objects).collect()
    return check_store(store, tmp_path / "journals")


def test_what_was_written_and_is_there_is_well(
    store: Store, journal: ProofJournal, tmp_path: Path
) -> None:
    for name in ("1", "2", "3"):
        make(store, journal, name)
    journal.note("D", "2")
    Commits(store).delete("2")
    journal.note("G", "2")
    found = verdict_of(store, tmp_path)
    assert found.ok
    assert (found.commits_made, found.commits_deleted, found.commits_left) == (3, 1, 2)


def lose_a_commit(store: Store, journal: ProofJournal) -> None:
    Commits(store).delete("1")


def revive_a_commit(store: Store, journal: ProofJournal) -> None:
    journal.note("D", "1")
    journal.note("G", "1")


def write_something_else(store: Store, journal: ProofJournal) -> None:
    journal.note("S", "1", "another digest")


def lose_a_chunk(store: Store, journal: ProofJournal) -> None:
    largest = max(store.objects.list("chunks/"), key=lambda stored: stored.size_bytes)
    store.objects.delete_many([largest.key])


def read_something_else(store: Store, journal: ProofJournal) -> None:
    journal.note("R", "1", "another digest")


def fail_to_read(store: Store, journal: ProofJournal) -> None:
    journal.note("X", "1", "ObjectMissing")


def leave_a_chunk(store: Store, journal: ProofJournal) -> None:
    store.objects.put(f"chunks/00/{'0' * 64}.{1:016x}", [b"left"])


def leave_a_record(store: Store, journal: ProofJournal) -> None:
    store.objects.put(f"commits/left.{99:016x}", [b"left"])


@pytest.mark.parametrize(
    ("harm", "field"),
    [
        (lose_a_commit, "lost_commits"),
        (revive_a_commit, "revived_commits"),
        (write_something_else, "wrong_commits"),
        (lose_a_chunk, "missing_chunks"),
        (read_something_else, "wrong_reads"),
        (fail_to_read, "wrong_reads"),
        (leave_a_chunk, "leaked_objects"),
        (leave_a_record, "leaked_objects"),
    ],
)
def test_whatever_is_wrong_is_found(
    store: Store,
    journal: ProofJournal,
    tmp_path: Path,
    harm: Callable[[Store, ProofJournal], None],
    field: str,
) -> None:
    make(store, journal, "1")
    make(store, journal, "2")
    harm(store, journal)
    found = verdict_of(store, tmp_path)
    assert not found.ok
    assert getattr(found, field) > 0
    assert found.details


def test_a_row_too_many_is_found(store: Store, journal: ProofJournal, tmp_path: Path) -> None:
    make(store, journal, "1")
    found = verdict_of(store, tmp_path)
    assert found.ok
    assert not replace(found, leaked_rows=1).ok


def test_every_point_is_described() -> None:
    described = {point for point, _ in points("store")}
    sites = {site for role in set(ROLES.values()) for site in sites_of(role, is_local=False)}
    assert sites <= described


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_missing_or_leaked_over_kills(tmp_path: Path) -> None:
    words = [
        "prove",
        "store",
        "--kills",
        "4",
        "--seed",
        "3",
        "--json",
        "--dir",
        str(tmp_path / "p"),
    ]
    found = CliRunner().invoke(cli, words, standalone_mode=False, catch_exceptions=False)
    result = json.loads(found.stdout)
    assert (found.return_value, result["ok"]) == (0, True), result
    assert (result["missing"], result["leaked"], result["kills"]) == (0, 0, 4)
    assert all(place["reads"] and place["commits_made"] for place in result["places"].values())
