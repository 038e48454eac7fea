"""Defects of an earlier design that this one must not have; each test is named after one."""

from __future__ import annotations

import random
import tarfile
from io import BytesIO

import pytest
from blake3 import blake3
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, Operation, layer_of, put_all, read_all

from holdfast.errors import BadInput, Damaged
from holdfast.store.filesets import FileSet, FileSetWriter, compact, export_tar
from holdfast.store.filesets.cursor import IndexNodes
from holdfast.store.filesets.merge import Merge


def test_an_integrity_check_reports_what_is_damaged() -> None:
    """1c.4: errors of hashes were swallowed. Here, whatever reads a damaged index says so."""
    store, chunks = memory_store()
    layer = put_all(store, {f"{n:03}": b"" for n in range(50)})
    assert layer.root is not None
    damaged = bytearray(chunks.data[layer.root.hash])
    damaged[3] ^= 1
    chunks.data[layer.root.hash] = bytes(damaged)
    files = FileSet(store, [layer])
    for read in (
        lambda: list(files.files()),
        lambda: list(files.ls()),
        lambda: files.stat("001"),
        lambda: files.shards(max_files=1),
        lambda: list(files.diff(FileSet(store, []))),
        lambda: compact(store, NO_JOB, [layer], whole=True),
    ):
        with pytest.raises(Damaged, match="checksum"):
            read()


def test_compaction_with_the_base_reclaims_what_was_deleted() -> None:
    """1c.5: tombstones were copied even when nothing older was left."""
    store, chunks = memory_store()
    layers = [
        put_all(store, {"d/a": b"a" * 600, "d/b": b"b", "e": b"e"}),
        layer_of(store, [Operation("delete_prefix", "d/"), Operation("delete", "e")]),
        layer_of(store, [Operation("put", "f", b"", b"f")]),
    ]
    [base] = compact(store, NO_JOB, layers, whole=True)
    assert (base.entries, base.num_tombstones, base.tombstones) == (1, 0, ())
    assert base.root is not None
    reachable, waiting = set(), [base.root.hash]
    while waiting:
        chunk = waiting.pop()
        reachable.add(chunk)
        waiting += chunks.children[chunk]
    assert sum(len(chunks.data[chunk]) for chunk in reachable) < 600 + 1024
    assert compact(store, NO_JOB, layers[:2], whole=True) == []


def test_deleting_a_folder_costs_one_entry_whoever_wrote_its_files() -> None:
    """1c.6: one deletion for each file, and only of the caller's own tag."""
    store, chunks = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        for number in range(300):
            writer.append(f"d/{number}", b"x", tag=number % 5)
        writer.put("other", b"o")
        base = writer.close()
    with FileSetWriter(store, NO_JOB) as writer:
        writer.delete_prefix("d")
        deletion = writer.close()
    assert (deletion.entries, deletion.num_tombstones) == (0, 1)
    chunks.reads.clear()
    assert read_all(FileSet(store, [base, deletion])) == {"other": b"o"}
    # What is below the folder is passed over unopened.
    assert len(chunks.reads) < 15


def test_deleting_folders_does_not_look_through_the_buffer() -> None:
    """1c.6: a deletion looked at every buffered file. Here it does not touch them."""

    class Untouchable(dict[str, object]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("the whole buffer was looked through")

        items = values = keys = __iter__  # type: ignore[assignment]

    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        writer.put("d/old", b"old")
        writer.put("e/old", b"old")
        kept, writer._buffer = writer._buffer, Untouchable(writer._buffer)  # type: ignore[assignment]
        writer.delete_prefix("d")
        writer.put("d/new", b"new")
        writer.append("d/old", b"again")
        kept.update((path, writer._buffer[path]) for path in ("d/old", "d/new"))
        writer._buffer = kept
        layer = writer.close()
    assert read_all(FileSet(store, [layer])) == {
        "d/new": b"new",
        "d/old": b"again",
        "e/old": b"old",
    }


def test_a_collision_hidden_by_a_neighbour_is_found() -> None:
    """1c.7: `a`, `a-b`, `a/x` hid the collision, because neighbours alone were compared."""
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        for path in ("a", "a-b", "a/x"):
            writer.put(path, b"")
        with pytest.raises(BadInput, match="'a' is a file and a folder"):
            writer.close()


def test_shards_count_all_layers() -> None:
    """1c.8: only the first layer was counted."""
    store, _ = memory_store()
    layers = [
        put_all(store, {"a": b""}),
        put_all(store, {f"b/{n:03}": b"x" * 10 for n in range(200)}, base=False),
    ]
    shards = FileSet(store, layers).shards(max_files=50)
    assert len(shards) >= 4
    assert sum(shard.files for shard in shards) == 201


def test_merging_changes_no_entry_that_others_hold() -> None:
    """1c.8: a merge changed the entries its callers held."""
    store, chunks = memory_store()
    layers = [
        layer_of(store, [Operation("append", "f", b"1", b"a")]),
        layer_of(store, [Operation("append", "f", b"1", b"b")]),
    ]
    files = FileSet(store, layers)
    nodes = IndexNodes(chunks.read_chunk)
    entries = [index for _, met in Merge(nodes, files.sources).entries() for index in met]
    before = [entry.SerializeToString() for entry in entries]
    roots = [layer.to_bytes() for layer in layers]
    for _ in range(2):
        for _, met in Merge(nodes, files.sources).entries():
            assert [entry.SerializeToString() for entry in met] == before
        assert files.read("f") == b"ab"
        compact(store, NO_JOB, layers, whole=True)
    assert [entry.SerializeToString() for entry in entries] == before
    assert [layer.to_bytes() for layer in layers] == roots


def test_the_bytes_that_are_read_are_compared() -> None:
    """1c.9: tests read files and never compared them. These bytes come from elsewhere."""
    store, _ = memory_store()
    dice = random.Random(9)
    given = {f"f{n}": dice.randbytes(dice.randrange(5000)) for n in range(30)}
    digests = {path: blake3(data).hexdigest() for path, data in given.items()}
    files = FileSet(store, [put_all(store, given)])
    assert {path: blake3(data).hexdigest() for path, data in read_all(files).items()} == digests
    damaged = {**given, "f7": b"other"}
    wrong = read_all(FileSet(store, [put_all(store, damaged)]))
    assert {path: blake3(data).hexdigest() for path, data in wrong.items()} != digests


def test_one_more_small_file_stores_little_anew() -> None:
    """1c.10: packs and indexes were cut by size, so that everything behind a new file moved."""
    store, chunks = memory_store()
    dice = random.Random(10)
    files = {f"{n:04}": dice.randbytes(300) for n in range(600)}
    put_all(store, files)
    before = sum(map(len, chunks.data.values()))
    put_all(store, {**files, "0100-new": b"new" * 50})
    added = sum(map(len, chunks.data.values())) - before
    assert added < before / 8


@pytest.mark.parametrize(
    "name", ["*", "?", "[x]", "ü", "日本語", "tab\t", "line\nbreak", " ", "\\"]
)
def test_names_are_any_text(name: str) -> None:
    """1c.11: names were printable ASCII without the characters of patterns."""
    store, _ = memory_store()
    files = FileSet(store, [put_all(store, {name: b"x", "d/" + name: b"y"})])
    assert read_all(files) == dict(sorted({name: b"x", f"d/{name}": b"y"}.items()))
    target = BytesIO()
    export_tar(files, target)
    target.seek(0)
    with tarfile.open(fileobj=target) as archive:
        assert set(archive.getnames()) == {name, f"d/{name}"}
