"""Storing a folder on top of a commit that lost some of its chunks brings them back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.filesets.memory import CHUNKING
from tests.store.filesets.operations import read_all

from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileSet, StoredTree, put_tree
from holdfast.store.filesets.merge import direct
from holdfast.store.fsck.check import LocalEngine
from holdfast.store.fsck.repair import check_and_repair
from holdfast.store.fsck.tables import FsckSettings
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.objects import ChunkHash
from holdfast.store.store import Store

LONG_AGO_NS = 1_600_000_000 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = StoreSettings(chunking=CHUNKING, gc=GcSettings(synchronous="off", orphan_grace_s=0))
    with Store.create(str(tmp_path / "store"), settings=settings) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Many small files, which share chunks, a large one, and one of so many chunks that they are
    listed apart."""
    monkeypatch.setattr("holdfast.store.filesets.previous_tree.RACY_NS", -(10**18))
    made = tmp_path / "folder"
    made.mkdir()
    monkeypatch.setattr("holdfast.store.filesets.layer_builder.INLINE_REFS_MAX", 8)
    (made / "large").write_bytes(os.urandom(4_000))
    (made / "listed").write_bytes(os.urandom(60_000))
    for number in range(100):
        (made / f"small-{number:03}").write_bytes(b"%03d" % number * 40)
    return made


def put(store: Store, name: str, folder: Path, parent: str | None = None) -> StoredTree:
    commits = Commits(store)
    with store.references.open_job(name) as job:
        if parent is None:
            tree = put_tree(store, job, folder)
        else:
            with commits.open(parent) as files:
                seen = commits.get(parent).seen
                tree = put_tree(store, job, folder, parent=files, parent_seen=seen)
                commits.create(job, name, [tree.layer], parent=parent, seen=tree.seen)
                return tree
        commits.create(job, name, [tree.layer], seen=tree.seen)
    return tree


def lose(store: Store, hash_: bytes, tmp_path: Path) -> None:
    """Delete a chunk's object, and let the repair note that it is gone."""
    key = store.references.resolve([ChunkHash(hash_)])[ChunkHash(hash_)]
    store.objects.delete_many([key.object_key()])
    limits = FsckSettings(partitions=2, batch_rows=50)
    check_and_repair(store, LocalEngine(store, tmp_path / "scratch", limits), limits, [])
    assert not store.references.resolve([ChunkHash(hash_)])


def refs_of(store: Store, commit: str, path: str) -> list[bytes]:
    with Commits(store).open(commit) as files:
        return [ref.chunk.hash for ref in files.stat(path).refs]


def contents(store: Store, commit: str) -> dict[str, bytes]:
    # Another opening: nothing that was read before may answer.
    with Store.open(store.url) as fresh, Commits(fresh).open(commit) as files:
        return read_all(files)


def expected(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("path", ["large", "small-050"])
def test_files_whose_chunk_was_lost_are_read_again(
    store: Store, folder: Path, tmp_path: Path, path: str
) -> None:
    put(store, "first", folder)
    gone = refs_of(store, "first", path)[0]
    lose(store, gone, tmp_path)
    tree = put(store, "second", folder, parent="first")
    assert 0 < tree.lost_files < 100
    assert tree.read_files == tree.lost_files
    assert contents(store, "second") == expected(folder)
    # The very chunk is back, and with it what the older commit had lost.
    assert contents(store, "first") == expected(folder)
    assert put(store, "third", folder, parent="second").read_files == 0


def test_a_lost_pack_comes_back_though_a_file_beside_it_changed(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    put(store, "first", folder)
    gone = refs_of(store, "first", "small-050")[0]
    with Commits(store).open("first") as files:
        packed = [file.path for file in files.files() if gone in refs_in(file.refs)]
    neighbour = f"small-{int(packed[0][6:]) - 1:03}"
    (folder / neighbour).write_bytes(b"changed")
    lose(store, gone, tmp_path)
    put(store, "second", folder, parent="first")
    assert store.references.resolve([ChunkHash(gone)])
    assert contents(store, "second") == expected(folder)


def refs_in(refs: object) -> list[bytes]:
    return [ref.chunk.hash for ref in refs]  # type: ignore[attr-defined]


def test_a_file_is_read_again_whose_list_of_chunks_names_a_lost_one(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    put(store, "first", folder)
    with Commits(store).open("first") as files:
        info = files.stat("listed")
        assert info.refs[0].indirect
        inner = [ref.hash for _, ref in direct(files.reader, info.refs)]
    lose(store, inner[9], tmp_path)
    tree = put(store, "second", folder, parent="first")
    assert tree.lost_files == 1
    assert contents(store, "second") == expected(folder)


def test_a_lost_list_of_chunks_is_written_again(store: Store, folder: Path, tmp_path: Path) -> None:
    put(store, "first", folder)
    lose(store, refs_of(store, "first", "listed")[0], tmp_path)
    assert put(store, "second", folder, parent="first").lost_files == 1
    assert contents(store, "second") == expected(folder)


def test_files_below_a_lost_index_are_read_again(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    first = put(store, "first", folder)
    node = FileSet(store, [first.layer]).nodes.get(first.layer.index)  # type: ignore[arg-type]
    assert not node.is_leaf
    lose(store, node.indexes[1].data_op.data_ref[0].chunk.hash, tmp_path)
    tree = put(Store.open(store.url), "second", folder, parent="first")
    assert 0 < tree.read_files < tree.files
    assert contents(store, "second") == expected(folder)


def test_a_lost_table_of_looks_costs_reading_and_no_more(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    put(store, "first", folder)
    lose(store, Commits(store).get("first").seen[0].hash, tmp_path)
    tree = put(Store.open(store.url), "second", folder, parent="first")
    assert tree.read_files == tree.files
    assert contents(store, "second") == expected(folder)
