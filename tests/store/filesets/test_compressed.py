"""Archives that are compressed are opened, and what is none is called by its name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable

import pytest
import zstandard
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, read_all

from holdfast.errors import BadInput, Damaged
from holdfast.store.filesets import FileSet, FileSetWriter, import_tar, tar_reader

FILES = {"a": b"alpha", "b/c": bytes(range(256)) * 3000}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def archive() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        for path, data in FILES.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return target.getvalue()


def imported(data: bytes) -> dict[str, bytes]:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        import_tar(writer, io.BytesIO(data))
        return read_all(FileSet(store, [writer.close()]))


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_archive_is_opened(kind: str) -> None:
    assert imported(PACKERS[kind](archive())) == FILES


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_one_in_several_streams_is_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_reader, "READ_BYTES", 1000)
    data, pack = archive(), PACKERS[kind]
    assert imported(pack(data[:5000]) + pack(data[5000:])) == FILES


def test_zeros_between_streams_of_xz_may_fill_a_whole_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive()
    monkeypatch.setattr(tar_reader, "READ_BYTES", 4)
    first, second = lzma.compress(data[:600]), lzma.compress(data[600:])
    assert imported(first + bytes(64) + second) == imported(data)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_one_that_is_cut_off_is_damaged(kind: str) -> None:
    packed = PACKERS[kind](archive())
    for size in (20, len(packed) // 2, len(packed) - 1):
        with pytest.raises(Damaged, match=kind):
            imported(packed[:size])


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_one_that_was_changed_is_damaged(kind: str) -> None:
    packed = PACKERS[kind](archive())
    with pytest.raises(Damaged, match=kind):
        imported(packed[:40] + b"xxxxxxxxxxxx" + packed[52:])


def test_what_is_no_tar_is_called_by_its_name() -> None:
    with pytest.raises(BadInput, match="a zip archive"):
        imported(b"PK\x03\x04" + bytes(1000))


def test_an_archive_that_asks_for_too_much_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tar_reader, "XZ_MEMORY_BYTES", 1024 * 1024)
    with pytest.raises(Damaged, match="xz"):
        imported(lzma.compress(archive(), preset=9))
