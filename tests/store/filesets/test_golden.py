"""What was written once must be written so for ever: equal files have equal addresses."""

from __future__ import annotations

import io
from hashlib import sha256

from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, Operation, layer_of, put_all

from holdfast.store.chunks.settings import Chunking
from holdfast.store.filesets import FileSet, FileSetWriter, Metadata, bloom, export_tar
from holdfast.store.filesets.layer_builder import CUT_DIVISOR, INDEX_MAX_BYTES, INDEX_MIN_BYTES

MB = 1024 * 1024
# Spelled out: what a new store is made with may change, what it means may not.
USUAL = Chunking(
    min_bytes=MB // 4,
    average_bytes=MB,
    max_bytes=4 * MB,
    small_file_bytes=MB // 4,
    pack_min_bytes=MB // 4,
    pack_spread_bytes=MB // 2,
)
FILES = {f"folder-{n % 5}/file-{n:03}": b"%03d" % n * (n % 20) for n in range(200)}


def address(root: object) -> str:
    return root.hash.hex()  # type: ignore[attr-defined, no-any-return]


def test_a_base_of_small_chunks() -> None:
    store, _ = memory_store()
    layer = put_all(store, FILES)
    expected = "04248c9e1fad4a321bfb31239d302b17b8ffd17adff3773a5e55f961ace75d64"
    assert address(layer.root) == expected


def test_a_base_with_the_usual_chunks() -> None:
    store, _ = memory_store(USUAL)
    assert (
        address(put_all(store, FILES).root)
        == "1954781dd3ef341f9ffbb711e52c4bfb331b70ea0723ad3bc476c3ec35d7616d"
    )


def test_a_layer_with_everything() -> None:
    store, _ = memory_store(USUAL)
    operations = [
        Operation("append", "a", b"1", b"one"),
        Operation("append", "a", b"2", b"two"),
        Operation("delete_tag", "a", b"3"),
        Operation("put", "b", b"", b""),
        Operation("delete", "c"),
        Operation("delete_prefix", "d/"),
    ]
    layer = layer_of(store, operations)
    expected = "3119bdb5de4268df45ff865b7aa12347acecfddccf43c47511edc6ed1c2517d8"
    assert address(layer.root) == expected
    assert (
        address(layer.tombstones[0])
        == "1e0a18f267531b8a5c52807ac0cd1ae0c8bfcdb5216f2a8b1b1e74b7f37c5591"
    )


def test_an_export() -> None:
    store, _ = memory_store(USUAL)
    with FileSetWriter(store, NO_JOB) as writer:
        for path, data in FILES.items():
            writer.put(path, data, metadata=Metadata(mode=0o600, mtime_ns=1_700_000_000 * 10**9))
        writer.put("ü" * 150, b"long")
        writer.link("link", "folder-1/file-001")
        files = FileSet(store, [writer.close()])
    target = io.BytesIO()
    export_tar(files, target)
    assert (
        sha256(target.getvalue()).hexdigest()
        == "66fe66052418b413a49cd777494cdd9016da3e5a2dc455c772a8c23e0209f1ed"
    )


def test_where_indexes_are_cut() -> None:
    assert (INDEX_MIN_BYTES, INDEX_MAX_BYTES, CUT_DIVISOR) == (65536, 1048576, 128)
    assert bloom.path_hash("folder/file") == 0x123205DB25126E96
    assert bloom.build([bloom.path_hash(path) for path in ("a", "b", "c")]).hex() == "94324fba"
