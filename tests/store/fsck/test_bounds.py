"""Every bound of a check: memory, findings, paths, rounds; and facts in any order say the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.store.fsck.stage import LIMITS, Damaged
from tests.store.fsck.ways import object_lost, row_lost, row_of_an_index_lost, wrong_holds

from holdfast.seam.disk import RealDisk
from holdfast.store.fsck import indexes
from holdfast.store.fsck.check import (
    edge_facts,
    object_facts,
    row_facts,
    source_facts,
    walk_facts,
)
from holdfast.store.fsck.commit_check import check_commits
from holdfast.store.fsck.compare import compare
from holdfast.store.fsck.findings import FindingKind, from_table
from holdfast.store.fsck.indexes import IndexReader
from holdfast.store.fsck.tables import (
    FACTS,
    PREFIXES,
    FactTable,
    FsckSettings,
    Spill,
    facts,
    partition_of,
    prefixes_of,
)


def changed(**given: Any) -> FsckSettings:
    return replace(LIMITS, **given)


def test_facts_that_do_not_fit_are_spilled_and_found_again(damaged: Damaged) -> None:
    row_lost(damaged)
    wrong_holds(damaged)
    expected = damaged.check().findings
    assert len(expected) == 3
    found = damaged.check(changed(memory_rows=20, partitions=5)).findings
    assert sorted(found) == sorted(expected)
    assert list(damaged.scratch.iterdir()) == []  # nothing is left behind


def test_keys_that_are_forgotten_in_the_middle_of_a_walk_are_asked_for_again(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the chunk at hand was forgotten with the others: a large store ended a check."""
    row_lost(damaged)
    expected = damaged.check().findings
    monkeypatch.setattr(indexes, "KEYS_MAX", 0)
    assert sorted(damaged.check().findings) == sorted(expected)


def test_memory_of_a_spill_is_bounded(damaged: Damaged) -> None:
    limits = FsckSettings(partitions=4, memory_rows=100)
    spill = Spill(RealDisk(), damaged.scratch, limits)
    for number in range(50):
        hashes = [bytes([n]) * 32 for n in range(number, number + 10)]
        columns: dict[str, list[Any]] = {"hash": hashes, "generation": [number] * 10}
        spill.add(facts(FactTable.WALKED, [hash_[0] for hash_ in hashes], columns))
    assert spill.spilled_rows >= 400
    rows = [row for n in range(4) for batch in spill.part(n) for row in batch.to_pylist()]
    assert len(rows) == 500
    for number in range(4):
        inside = prefixes_of(number, 4)
        assert all(
            row["prefix"] in inside for batch in spill.part(number) for row in batch.to_pylist()
        )
    spill.close()
    assert list(damaged.scratch.iterdir()) == []


def test_parts_hold_every_prefix_once() -> None:
    for parts in (1, 2, 3, 7, 100, PREFIXES):
        assert [p for n in range(parts) for p in prefixes_of(n, parts)] == list(range(PREFIXES))


def test_facts_may_come_in_any_order_and_be_split_anyhow(damaged: Damaged) -> None:
    """What one prefix says does not depend on others: so that any engine can compare them."""
    object_lost(damaged)
    wrong_holds(damaged)
    database, objects = damaged.store.references.database, damaged.store.objects
    commits = check_commits(damaged.store.references, objects)
    reader = IndexReader(objects, damaged.store.references)
    every = range(PREFIXES)
    batches = [
        *walk_facts(reader, commits.commits, visited_max=0),
        *object_facts(objects, every, 9, lambda _: None),
        *edge_facts(database, 11),
        *row_facts(database, every, 13),
        source_facts(database, {commit.id for commit in commits.commits}, []),
    ]
    whole = set(from_table(compare(partition_of(batches))))
    assert {finding.kind for finding in whole} == {
        FindingKind.MISSING_CHUNK,
        FindingKind.WRONG_COUNT,
    }
    rows = [row for batch in batches for row in batch.to_pylist()]
    random.Random(1).shuffle(rows)
    split = set()
    for remainder in range(8):
        own = [row for row in rows if row["prefix"] % 8 == remainder]
        table = pa.Table.from_pylist(own, schema=FACTS)
        split |= set(from_table(compare(partition_of(table.to_batches()))))
    assert split == whole


def test_findings_are_bounded_and_the_rest_counted(damaged: Damaged) -> None:
    damaged.sql("UPDATE gc_chunk SET holds = 5")
    report = damaged.check(changed(findings_max=10))
    assert len(report.findings) == 10
    assert report.omitted == len(damaged.known()) - 10
    assert not report.ok


def test_paths_of_one_chunk_are_bounded_and_the_rest_counted(damaged: Damaged) -> None:
    with damaged.store.references.open_job("same") as job:
        damaged.write(job, "same", {f"same/{n:02}": b"x" * 2000 for n in range(9)})
    key = damaged.file_chunk("same", "same/00")
    damaged.store.objects.delete_many([key.object_key()])
    found = damaged.check(changed(paths_per_chunk_max=4)).findings
    assert [one.path for one in found] == [f"same/{n:02}" for n in range(4)]
    assert found[-1].detail.endswith("and 5 more places")


def test_a_check_that_remembers_no_index_says_the_same(damaged: Damaged) -> None:
    row_lost(damaged)
    expected = damaged.check().findings
    assert damaged.check(changed(visited_max=0)).findings == expected


def test_rounds_of_a_repair_are_bounded(damaged: Damaged) -> None:
    """The row of a commit comes back first; only then is it known which references it lacks."""
    number = damaged.commits.get("two").id
    row_of_an_index_lost(damaged)
    damaged.sql("DELETE FROM gc_commit WHERE id = :id", id=number)
    index = damaged.commits.get("one").layers[0].chunks[0]
    damaged.sql("DELETE FROM gc_edge WHERE source_id = :id", id=index)
    once = damaged.repair(changed(repair_rounds=1))
    assert len(once.repairs) == 1
    assert not once.after.ok
    assert damaged.repair().after.ok
