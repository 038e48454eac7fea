"""A store damaged on purpose: each damage is told, nothing else is, and it is repaired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.fsck.stage import FILES, LARGE, SETTINGS, Damaged, filled_store
from tests.store.fsck.ways import WAYS, Said, Way
from tests.store.postgres import schema

from holdfast.errors import HoldfastError
from holdfast.store.fsck.findings import FindingKind, StoreFinding
from holdfast.store.fsck.scrub import scrub
from holdfast.store.gc.collector import Collector
from holdfast.store.objects.objects import ChunkKey

ON_POSTGRES = (
    *("row_lost", "wrong_refcount", "missing_reference_of_a_chunk", "commit_row_lost"),
    "index_damaged_but_another_generation_is_there",
    "object_cut_off_but_another_generation_is_there",
)


def said(finding: StoreFinding) -> Said:
    about = finding.key if finding.hash else finding.generation
    return (finding.kind, about, finding.commit, finding.path, finding.source)


def check_way(way: Way, damaged: Damaged) -> None:
    """Damage a store, check it, repair it; all files are as they were, and stay."""
    expected = way.damage(damaged)
    result = damaged.repair()
    assert sorted(map(said, result.before.findings), key=str) == sorted(expected, key=str)
    if not way.repairs:
        assert not result.after.ok
        assert result.repairs[0].left
        return
    assert result.after.findings == []
    assert result.repairs[-1].left == []
    Collector(damaged.store.references, damaged.store.objects).collect()
    Collector(damaged.store.references, damaged.store.objects).sweep()
    assert damaged.check().findings == []
    assert damaged.read("one") == dict(sorted((FILES | {"large": LARGE}).items()))
    if way.name != "commit_half_deleted":
        assert "d1/new" in damaged.read("two")


def test_a_sound_store_is_sound(damaged: Damaged) -> None:
    report = damaged.check()
    assert report.ok
    assert (report.commits, report.chunks) == (2, len(damaged.known()))
    assert report.objects == report.chunks
    assert report.references > report.chunks


@pytest.mark.thinned(3)
@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_each_damage_is_told_and_repaired(way: Way, damaged: Damaged) -> None:
    check_way(way, damaged)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ON_POSTGRES)
def test_on_postgres(name: str, tmp_path: Path, postgres_url: str) -> None:
    [way] = [way for way in WAYS if way.name == name]
    with schema(postgres_url) as url, filled_store(tmp_path, url) as damaged:
        check_way(way, damaged)


def test_all_damages_at_once(damaged: Damaged) -> None:
    """Those that leave each other alone; more rounds than one are needed, and enough."""
    chosen = ("leaked_object", "leaked_row", "wrong_holds", "commit_object_lost", "row_lost")
    expected = [line for way in WAYS if way.name in chosen for line in way.damage(damaged)]
    result = damaged.repair()
    assert sorted(map(said, result.before.findings), key=str) == sorted(expected, key=str)
    assert result.after.ok


def test_a_lost_chunk_heals_when_its_data_is_stored_again(damaged: Damaged) -> None:
    key = damaged.file_chunk("one", "large")
    damaged.store.objects.delete_many([key.object_key()])
    assert damaged.repair().after.counts() == {FindingKind.MISSING_CHUNK.value: 2}
    damaged.forget_chunks()
    with pytest.raises(HoldfastError, match="not in the store"):
        damaged.read("one")
    with damaged.store.references.open_job("again") as job:
        damaged.write(job, "again", {"large": LARGE})
    assert damaged.check().counts() == {FindingKind.STALE_EDGE.value: 1}
    assert damaged.repair().after.ok
    damaged.commits.delete("again")
    Collector(damaged.store.references, damaged.store.objects).collect()
    assert damaged.check().ok
    assert damaged.read("one")["large"] == LARGE


def test_what_is_set_aside_is_kept(damaged: Damaged) -> None:
    [way] = [way for way in WAYS if way.name == "index_damaged"]
    key = damaged.root("one")
    way.damage(damaged)
    broken = damaged.object(key)
    result = damaged.repair()
    [name] = result.repairs[0].set_aside
    assert name.startswith(f"quarantine/{key.object_key()}.")
    assert damaged.store.objects.get(name) == broken
    assert result.after.counts() == {FindingKind.MISSING_CHUNK.value: 2}


def test_a_scrubbed_chunk_comes_back_from_another_generation(damaged: Damaged) -> None:
    key = damaged.file_chunk("one", "large")
    good = damaged.object(key)
    damaged.replace_object(key, good[:-1] + bytes([good[-1] ^ 8]))
    other = ChunkKey(key.hash, 600)
    damaged.store.objects.put(other.object_key(), [good])
    found = scrub(damaged.store).findings
    result = damaged.repair(damaged=found)
    assert result.after.ok
    now = damaged.key(key.hash)
    assert now.generation not in (key.generation, other.generation)
    assert damaged.object(now) == good
    assert len(result.repairs[0].set_aside) == 1


@pytest.mark.parametrize(
    "name",
    [
        "row_lost",
        "row_of_an_index_lost",
        "object_lost_but_another_generation_is_there",
        "index_damaged_but_another_generation_is_there",
    ],
)
def test_what_comes_back_has_a_name_that_no_late_delete_can_mean(
    name: str, damaged: Damaged
) -> None:
    """Of a collector, a sweep, or a repair before this one, that timed out."""
    [way] = [way for way in WAYS if way.name == name]
    before = {one.key for one in damaged.store.objects.list("chunks/")}
    [about, *_] = [about for _, about, *_ in way.damage(damaged) if isinstance(about, ChunkKey)]
    before |= {one.key for one in damaged.store.objects.list("chunks/")}
    assert damaged.repair().after.ok
    assert damaged.key(about.hash).object_key() not in before


def test_a_job_does_not_store_again_what_a_repair_found_lost(damaged: Damaged) -> None:
    """Under its old name the repair would take it away, or leave the damaged bytes there."""
    with damaged.store.references.open_job("long") as job:
        damaged.write(job, "held", {"large": LARGE})
        key = damaged.file_chunk("held", "large")
        data = damaged.object(key)
        damaged.replace_object(key, data[:-1] + bytes([data[-1] ^ 1]))
        damaged.repair(damaged=scrub(damaged.store).findings)
        [again] = damaged.store.references.reserve_chunks(job, [(key.hash, len(LARGE))])
        assert again.needs_upload
        assert again.key != key
        damaged.write(job, "again", {"large": LARGE})
    assert damaged.repair().after.ok
    assert damaged.read("held") == {"large": LARGE}


def test_a_commit_whose_root_is_lost_is_a_clear_error(damaged: Damaged) -> None:
    [way] = [way for way in WAYS if way.name == "object_of_an_index_lost"]
    way.damage(damaged)
    damaged.repair()
    damaged.forget_chunks()
    with pytest.raises(HoldfastError, match="not in the store"), damaged.commits.open("one") as it:
        list(it.files())
    damaged.commits.delete("one")
    damaged.commits.delete("two")
    Collector(damaged.store.references, damaged.store.objects).collect()
    assert damaged.known() == []
    assert damaged.check().ok


def test_an_object_younger_than_the_grace_is_left_to_the_collector(tmp_path: Path) -> None:
    patient = replace(SETTINGS, gc=replace(SETTINGS.gc, orphan_grace_s=3600.0))
    with filled_store(tmp_path, settings=patient) as damaged:
        [way] = [way for way in WAYS if way.name == "leaked_object"]
        expected = way.damage(damaged)
        result = damaged.repair()
        assert list(map(said, result.after.findings)) == expected
        [(_, why)] = result.repairs[0].left
        assert "grace" in why
