"""A lost database comes back from objects and commits: the same references, nothing revived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.gc.stage import SETTINGS, Died, DyingSeam, MemoryObjects, Stage, staged

from holdfast.errors import BadInput, DatabaseLost, ObjectMissing
from holdfast.seam import Seam
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.commit_rows import commit_object_key
from holdfast.store.gc.database import REBUILD_NUMBER_STEP
from holdfast.store.gc.rebuild import Resolve, WalkedChunk, rebuild, release_quarantine
from holdfast.store.gc.references import References
from holdfast.store.objects.objects import ChunkKey, hash_of

# A chunk's bytes are the names of its children, between commas; a commit's record is its root.
LEAF, OTHER = b"leaf", b"other"
TREE = b"leaf,other"


def walker(objects: MemoryObjects) -> object:
    """Return how to walk commits of this little format."""

    def walk(record: bytes, resolve: Resolve) -> Iterator[WalkedChunk]:
        def read(name: bytes) -> bytes:
            key = resolve([hash_of(name)]).get(hash_of(name))
            if key is None:
                raise ObjectMissing(f"chunk {name!r} is missing", hint="none")
            return objects.get(key.object_key())

        front = [record]
        while front:
            name = front.pop()
            below = [part for part in read(name).split(b",") if part != name]
            yield WalkedChunk(hash_of(name), [hash_of(c) for c in below], root=name == record)
            front += below

    return walk


def fill(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        stage.upload(job, LEAF)
        stage.upload(job, OTHER)
        stage.upload(job, TREE, [hash_of(LEAF), hash_of(OTHER)])
        for name, root in (("tree", TREE), ("leaf", LEAF)):
            number = stage.references.publish_commit(job, name, root, [hash_of(root)])
            stage.objects.put(commit_object_key(name, number), [root])
            stage.references.confirm_commit(number)
        stage.upload(job, b"garbage")


def edges_of(references: References) -> set[tuple[object, ...]]:
    return set(
        references.database.read(lambda connection: connection.rows("SELECT * FROM gc_edge"))
    )


def rebuilt(url: str, objects: MemoryObjects, seam: Seam | None = None) -> object:
    walk = walker(objects)
    return rebuild(url, objects, walk, settings=SETTINGS, seam=seam)  # type: ignore[arg-type]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(f"sqlite:///{tmp_path}/gc.sqlite") as opened:
        yield opened


def test_references_are_the_same_as_before(stage: Stage, database_url: str) -> None:
    fill(stage)
    url = database_url + ".new" if database_url.startswith("sqlite") else database_url
    report = rebuilt(url, stage.objects)
    assert report.__dict__ == {
        "chunks": 4,
        "superseded": 0,
        "commits": 2,
        "references": 4,
        "damaged_commits": {},
        "unknown_names": 0,
        "quarantined": 0,
        "set_aside": "",
    }
    with References(url, settings=SETTINGS) as references:
        assert edges_of(references) == edges_of(stage.references)
        assert [row.name for row in references.commits()] == ["leaf", "tree"]
        highest = max(row["generation"] for row in stage.rows("gc_chunk"))
        assert min(references.database.numbers(3)) > REBUILD_NUMBER_STEP > highest
        Collector(references, stage.objects).collect()
        Collector(references, stage.objects).sweep()
        stored = {key for name in stage.objects.stored if (key := ChunkKey.parse(name))}
        assert {key.hash for key in stored} == {hash_of(one) for one in (LEAF, OTHER, TREE)}


def test_a_database_that_is_not_lost_is_left_alone(stage: Stage) -> None:
    fill(stage)
    with pytest.raises(BadInput, match="not lost"):
        rebuilt(stage.url, stage.objects)


def test_an_interrupted_rebuild_cannot_be_used_and_begins_again(
    stage: Stage, tmp_path: Path
) -> None:
    fill(stage)
    url = f"sqlite:///{tmp_path}/new.sqlite"
    for deaths in range(3):
        dying = DyingSeam()
        dying.die_at = deaths
        with pytest.raises(Died):
            rebuilt(url, stage.objects, Seam(reached=dying))
        with pytest.raises(DatabaseLost, match="not rebuilt to the end"):
            References(url, settings=SETTINGS)
    rebuilt(url, stage.objects)
    with References(url, settings=SETTINGS) as references:
        assert edges_of(references) == edges_of(stage.references)


def test_of_two_generations_the_newer_is_kept(stage: Stage, tmp_path: Path) -> None:
    fill(stage)
    key = stage.references.resolve([hash_of(LEAF)])[hash_of(LEAF)]
    newer = ChunkKey(key.hash, key.generation + 7)
    stage.objects.put(newer.object_key(), [LEAF])
    url = f"sqlite:///{tmp_path}/new.sqlite"
    rebuilt(url, stage.objects)
    with References(url, settings=SETTINGS) as references:
        assert references.resolve([key.hash]) == {key.hash: newer}
        Collector(references, stage.objects).collect()
        assert newer.object_key() in stage.objects.stored
        assert key.object_key() not in stage.objects.stored


def test_a_commit_with_a_missing_chunk_is_told(stage: Stage, tmp_path: Path) -> None:
    fill(stage)
    key = stage.references.resolve([hash_of(OTHER)])[hash_of(OTHER)]
    del stage.objects.stored[key.object_key()]
    url = f"sqlite:///{tmp_path}/new.sqlite"
    report = rebuilt(url, stage.objects)
    damaged: dict[str, str] = report.damaged_commits  # type: ignore[attr-defined]
    assert list(damaged) == ["tree"]
    with References(url, settings=SETTINGS) as references:
        Collector(references, stage.objects).collect()
        left = references.resolve([hash_of(LEAF), hash_of(TREE)])
        assert set(left) == {hash_of(LEAF), hash_of(TREE)}  # nothing more is lost


def test_what_a_lost_index_may_have_led_to_is_not_collected(
    stage: Stage, database_url: str
) -> None:
    fill(stage)
    key = stage.references.resolve([hash_of(TREE)])[hash_of(TREE)]
    del stage.objects.stored[key.object_key()]
    url = database_url + ".new" if database_url.startswith("sqlite") else database_url
    report = rebuilt(url, stage.objects)
    assert report.quarantined == 2  # type: ignore[attr-defined]
    hashes = [hash_of(one) for one in (LEAF, OTHER, b"garbage")]
    with References(url, settings=SETTINGS) as references:
        collector = Collector(references, stage.objects)
        collector.collect()
        assert set(references.resolve(hashes)) == set(hashes)
        # Somebody stores the index again: what it leads to is there.
        with references.open_job("again") as job:
            [(new, _)] = references.reserve_chunks(job, [(key.hash, len(TREE))])
            stage.objects.put(new.object_key(), [TREE])
            references.mark_uploaded(job, [(new, hashes[:2])])
            references.update_references(job, add=[(("mine", b"tree"), key.hash)])
        assert release_quarantine(references.database) == 2
        assert release_quarantine(references.database) == 0
        collector.collect()
        assert set(references.resolve(hashes)) == set(hashes[:2])


def test_a_lost_chunk_that_leads_to_nothing_holds_back_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    fill(stage)
    key = stage.references.resolve([hash_of(OTHER)])[hash_of(OTHER)]
    del stage.objects.stored[key.object_key()]
    url = f"sqlite:///{tmp_path}/new.sqlite"

    def walk(record: bytes, resolve: Resolve) -> Iterator[WalkedChunk]:
        """Look into trees alone, as file sets do."""
        below = [hash_of(part) for part in record.split(b",") if part != record]
        yield WalkedChunk(hash_of(record), below, root=True)

    report = rebuild(url, stage.objects, walk, settings=SETTINGS)
    assert list(report.damaged_commits) == ["tree"]
    assert report.quarantined == 0
    with References(url, settings=SETTINGS) as references:
        Collector(references, stage.objects).collect()
        assert references.resolve([hash_of(b"garbage")]) == {}


def test_a_deleted_commit_is_not_revived(stage: Stage, tmp_path: Path) -> None:
    fill(stage)
    stage.delete("tree")
    stage.collector().collect()
    url = f"sqlite:///{tmp_path}/new.sqlite"
    rebuilt(url, stage.objects)
    with References(url, settings=SETTINGS) as references:
        assert [row.name for row in references.commits()] == ["leaf"]


def test_a_name_that_two_commits_had_goes_to_the_newer(stage: Stage, tmp_path: Path) -> None:
    fill(stage)
    stage.objects.put(commit_object_key("tree", 10_000), [LEAF])
    url = f"sqlite:///{tmp_path}/new.sqlite"
    rebuilt(url, stage.objects)
    with References(url, settings=SETTINGS) as references:
        assert references.commit("tree").id == 10_000
        Collector(references, stage.objects).collect()
        assert len(references.commits(every_state=True)) == 2
