"""Every way in which a store is damaged in tests, and exactly what a check must say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.store.fsck.stage import Damaged

from holdfast.store.fsck.findings import FindingKind, source_words
from holdfast.store.gc.commit_rows import commit_object_key
from holdfast.store.gc.references_sql import CHUNK_KIND, COMMIT_KIND
from holdfast.store.gc.tables import INSERT_EDGE, ONE_CHUNK
from holdfast.store.gc.transitions import CommitState
from holdfast.store.objects.objects import ChunkKey

# kind, chunk or commit, commit, path, source
Said = tuple[FindingKind, object, str, str, str]


class Way(NamedTuple):
    """One way to damage a store; `damage` returns what a check must say, and nothing else."""

    name: str
    damage: Callable[[Damaged], list[Said]]
    repairs: bool = True


def _set(damaged: Damaged, key: ChunkKey, change: str) -> None:
    damaged.sql(f"UPDATE gc_chunk SET {change} WHERE {ONE_CHUNK}", **key._asdict())


def _lose_row(damaged: Damaged, key: ChunkKey) -> None:
    damaged.sql(f"DELETE FROM gc_chunk WHERE {ONE_CHUNK}", **key._asdict())


def _set_commit(damaged: Damaged, number: int, column: str, value: object) -> None:
    damaged.sql(f"UPDATE gc_commit SET {column} = :value WHERE id = :id", value=value, id=number)


def _users(
    damaged: Damaged, kind: FindingKind, key: ChunkKey, generation: int | None = None
) -> list[Said]:
    """Return a finding for each commit and path whose first chunk this is."""
    shown = key if generation is None else ChunkKey(key.hash, generation)
    found: list[Said] = []
    for name in ("one", "two"):
        layers = damaged.commits.get(name).layers
        for layer in layers:
            assert layer.index is not None
            if layer.chunks[0] == key.hash:
                found.append((kind, shown, name, layer.index.path, ""))
    return found


def leaked_object(damaged: Damaged) -> list[Said]:
    orphan = ChunkKey(damaged.root("two").hash, 500)
    assert orphan not in damaged.known()
    damaged.store.objects.put(orphan.object_key(), [b"whatever"])
    return [(FindingKind.LEAKED_OBJECT, orphan, "", "", "")]


def leaked_row(damaged: Damaged) -> list[Said]:
    key = ChunkKey(damaged.root("one").hash[::-1], 3)  # type: ignore[arg-type]
    damaged.sql(
        "INSERT INTO gc_chunk (hash, generation, size_bytes, uploaded, refcount, holds, updated) "
        "VALUES (:hash, :generation, 5, TRUE, 2, 1, 0.0)",
        **key._asdict(),
    )
    damaged.store.objects.put(key.object_key(), [b"bytes"])
    return [(FindingKind.LEAKED_ROW, key, "", "", "")]


def reference_from_no_commit(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    return _leaked_edge(damaged, key, COMMIT_KIND, (99_999).to_bytes(8, "big"), 0)


def reference_from_no_job(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    _set(damaged, key, "holds = holds + 1")
    _set(damaged, key, "refcount = refcount - 1")
    return _leaked_edge(damaged, key, "job", (99_999).to_bytes(8, "big"), 0)


def reference_from_no_chunk(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    return _leaked_edge(damaged, key, CHUNK_KIND, bytes(32), 7)


def reference_that_a_chunk_does_not_make(damaged: Damaged) -> list[Said]:
    key, root = damaged.root("one"), damaged.root("one")
    return _leaked_edge(damaged, key, CHUNK_KIND, root.hash, root.generation)


def reference_that_a_commit_does_not_make(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    number = damaged.commits.get("two").id
    return _leaked_edge(damaged, key, COMMIT_KIND, number.to_bytes(8, "big"), 0)


def _leaked_edge(
    damaged: Damaged, key: ChunkKey, kind: str, source: bytes, generation: int
) -> list[Said]:
    named = {"source_kind": kind, "source_id": source, "source_generation": generation}
    damaged.sql(INSERT_EDGE, **key._asdict(), **named)
    _set(damaged, key, "refcount = refcount + 1")
    return [(FindingKind.LEAKED_EDGE, key, "", "", source_words(kind, source, generation))]


def reference_to_nothing(damaged: Damaged) -> list[Said]:
    number = damaged.commits.get("one").id.to_bytes(8, "big")
    key = ChunkKey(bytes(32), 5)  # type: ignore[arg-type]
    named = {"source_kind": "mine", "source_id": number, "source_generation": 0}
    damaged.sql(INSERT_EDGE, **key._asdict(), **named)
    return [(FindingKind.LEAKED_EDGE, key, "", "", source_words("mine", number, 0))]


def wrong_refcount(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    _set(damaged, key, "refcount = 17")
    return [(FindingKind.WRONG_COUNT, key, "", "", "")]


def refcount_of_nothing(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    _set(damaged, key, "refcount = 0")
    return [(FindingKind.WRONG_COUNT, key, "", "", "")]


def wrong_holds(damaged: Damaged) -> list[Said]:
    key = damaged.root("two")
    _set(damaged, key, "holds = 2")
    return [(FindingKind.WRONG_COUNT, key, "", "", "")]


def missing_reference_of_a_commit(damaged: Damaged) -> list[Said]:
    key, number = damaged.root("one"), damaged.commits.get("one").id
    return _missing_edge(damaged, key, COMMIT_KIND, number.to_bytes(8, "big"), 0)


def missing_reference_of_a_chunk(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    [source] = [
        (row["source_id"], row["source_generation"])
        for row in damaged.rows("gc_edge")
        if row["hash"] == key.hash and row["source_kind"] == CHUNK_KIND
    ]
    return _missing_edge(damaged, key, CHUNK_KIND, *source)


def _missing_edge(
    damaged: Damaged, key: ChunkKey, kind: str, source: bytes, generation: int
) -> list[Said]:
    gone = "DELETE FROM gc_edge WHERE hash = :hash AND source_kind = :kind AND source_id = :id"
    damaged.sql(gone, hash=key.hash, kind=kind, id=source)
    _set(damaged, key, "refcount = refcount - 1")
    words = source_words(kind, source, generation)
    return [(FindingKind.MISSING_EDGE, ChunkKey(key.hash, 0), "", "", words)]


def row_lost(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    _lose_row(damaged, key)
    shown = ChunkKey(key.hash, 0)
    return [(FindingKind.MISSING_ROW, shown, name, "large", "") for name in ("one", "two")]


def row_of_an_index_lost(damaged: Damaged) -> list[Said]:
    key = damaged.root("one")
    said = _users(damaged, FindingKind.MISSING_ROW, key, 0)
    _lose_row(damaged, key)
    return said


def chunk_dying_in_use(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    _set(damaged, key, "removing = 1.0")
    shown = ChunkKey(key.hash, 0)
    return [(FindingKind.MISSING_ROW, shown, name, "large", "") for name in ("one", "two")]


def object_lost(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    damaged.store.objects.delete_many([key.object_key()])
    return [(FindingKind.MISSING_CHUNK, key, name, "large", "") for name in ("one", "two")]


def object_of_an_index_lost(damaged: Damaged) -> list[Said]:
    key = damaged.root("one")
    said = _users(damaged, FindingKind.MISSING_CHUNK, key)
    damaged.store.objects.delete_many([key.object_key()])
    return said


def object_lost_but_another_generation_is_there(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    other = ChunkKey(key.hash, 777)
    damaged.store.objects.put(other.object_key(), [damaged.object(key)])
    leaked: list[Said] = [(FindingKind.LEAKED_OBJECT, other, "", "", "")]
    return object_lost(damaged) + leaked


def index_damaged_but_another_generation_is_there(damaged: Damaged) -> list[Said]:
    key = damaged.root("one")
    other = ChunkKey(key.hash, 777)
    data = damaged.object(key)
    damaged.store.objects.put(other.object_key(), [data])
    said = _users(damaged, FindingKind.DAMAGED_CHUNK, key)
    damaged.replace_object(key, data[:-1] + bytes([data[-1] ^ 1]))
    return [*said, (FindingKind.LEAKED_OBJECT, other, "", "", "")]


def index_damaged(damaged: Damaged) -> list[Said]:
    key = damaged.root("one")
    said = _users(damaged, FindingKind.DAMAGED_CHUNK, key)
    data = damaged.object(key)
    damaged.replace_object(key, data[:-1] + bytes([data[-1] ^ 1]))
    return said


def object_cut_off(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    damaged.replace_object(key, damaged.object(key)[:100])
    return [(FindingKind.DAMAGED_CHUNK, key, name, "large", "") for name in ("one", "two")]


def object_cut_off_but_another_generation_is_there(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    other = ChunkKey(key.hash, 777)
    damaged.store.objects.put(other.object_key(), [damaged.object(key)])
    return [*object_cut_off(damaged), (FindingKind.LEAKED_OBJECT, other, "", "", "")]


def object_with_more_behind_it(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    damaged.replace_object(key, damaged.object(key) + b"more")
    return [(FindingKind.DAMAGED_CHUNK, key, name, "large", "") for name in ("one", "two")]


def index_cut_off(damaged: Damaged) -> list[Said]:
    key = damaged.root("one")
    said = _users(damaged, FindingKind.DAMAGED_CHUNK, key)
    damaged.replace_object(key, damaged.object(key)[:-9])
    return said


def wrong_stored_size(damaged: Damaged) -> list[Said]:
    key = damaged.file_chunk("one", "large")
    _set(damaged, key, "stored_bytes = 5")
    return [(FindingKind.DAMAGED_CHUNK, key, name, "large", "") for name in ("one", "two")]


def commit_object_lost(damaged: Damaged) -> list[Said]:
    number = damaged.commits.get("one").id
    damaged.store.objects.delete_many([commit_object_key("one", number)])
    return [(FindingKind.COMMIT_OBJECT_MISSING, number, "one", "", "")]


def commit_object_differs(damaged: Damaged) -> list[Said]:
    number = damaged.commits.get("one").id
    name = commit_object_key("one", number)
    data = damaged.store.objects.get(name)
    damaged.store.objects.delete_many([name])
    damaged.store.objects.put(name, [data[:-3]])
    return [(FindingKind.COMMIT_DIFFERS, number, "one", "", "")]


def commit_row_differs(damaged: Damaged) -> list[Said]:
    number = damaged.commits.get("two").id
    _set_commit(damaged, number, "record", b"\xff\xff")
    return [(FindingKind.COMMIT_DIFFERS, number, "two", "", "")]


def commit_row_lost(damaged: Damaged) -> list[Said]:
    number = damaged.commits.get("two").id
    damaged.sql("DELETE FROM gc_commit WHERE id = :id", id=number)
    return [(FindingKind.COMMIT_ROW_MISSING, number, "two", "", "")]


def commit_damaged(damaged: Damaged) -> list[Said]:
    number = damaged.commits.get("two").id
    _set_commit(damaged, number, "record", b"\xff\xff")
    name = commit_object_key("two", number)
    damaged.store.objects.delete_many([name])
    damaged.store.objects.put(name, [b"\xff\xfe"])
    return [(FindingKind.COMMIT_DAMAGED, number, "two", "", "")]


def commit_half_made(damaged: Damaged) -> list[Said]:
    return _unfinished(damaged, CommitState.PUBLISHING)


def commit_half_deleted(damaged: Damaged) -> list[Said]:
    return _unfinished(damaged, CommitState.DELETING)


def _unfinished(damaged: Damaged, state: CommitState) -> list[Said]:
    number = damaged.commits.get("two").id
    _set_commit(damaged, number, "state", state.value)
    return [(FindingKind.COMMIT_UNFINISHED, number, "two", "", "")]


WAYS = [
    Way(damage.__name__, damage)
    for damage in (
        leaked_object,
        leaked_row,
        reference_from_no_commit,
        reference_from_no_job,
        reference_from_no_chunk,
        reference_that_a_chunk_does_not_make,
        reference_that_a_commit_does_not_make,
        reference_to_nothing,
        wrong_refcount,
        refcount_of_nothing,
        wrong_holds,
        missing_reference_of_a_commit,
        missing_reference_of_a_chunk,
        row_lost,
        row_of_an_index_lost,
        chunk_dying_in_use,
        object_lost_but_another_generation_is_there,
        index_damaged_but_another_generation_is_there,
        object_cut_off_but_another_generation_is_there,
        wrong_stored_size,
        commit_object_lost,
        commit_object_differs,
        commit_row_differs,
        commit_row_lost,
        commit_half_made,
        commit_half_deleted,
    )
] + [
    Way(damage.__name__, damage, repairs=False)
    for damage in (
        object_lost,
        object_of_an_index_lost,
        object_cut_off,
        object_with_more_behind_it,
        index_damaged,
        index_cut_off,
        commit_damaged,
    )
]
