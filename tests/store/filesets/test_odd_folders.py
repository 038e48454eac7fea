"""Nothing odd in a folder stops a put: it is stored, or left out with a count."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.filesets.operations import read_all

from holdfast.seam.folders import Folder, FolderEntry, OpenedFile
from holdfast.seam.names import disk_name, is_stored_name, name_bytes, stored_name, stored_name_of
from holdfast.store.filesets import (
    FileSet,
    FileSetWriter,
    Selection,
    export_tar,
    extract,
    import_tar,
    put_tree,
)
from holdfast.store.filesets.folder_walk import REPORTED_PATHS_MAX
from holdfast.store.filesets.paths import check_path, path_trouble
from holdfast.store.filesets.selection import CACHE_SIGNATURE, split_patterns
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "sub").mkdir(parents=True)
    (made / "a").write_bytes(b"alpha")
    (made / "sub/b").write_bytes(b"beta" * 1000)
    return made


# Names.


@given(st.binary(max_size=12))
def test_every_name_has_one_text(name: bytes) -> None:
    text = stored_name_of(name)
    text.encode()  # it is UTF-8
    assert is_stored_name(text)
    assert name_bytes(text) == name
    assert stored_name(os.fsdecode(name)) == text
    assert os.fsencode(disk_name(text)) == name


@given(st.text(alphabet=st.characters(max_codepoint=0x10FF7F, exclude_categories=["Cs"])))
def test_a_name_in_utf_8_is_its_own_text(name: str) -> None:
    assert stored_name(name) == name == disk_name(name)


@given(st.text("a\U0010ff80\U0010ffc3\U0010ffa4\U0010ffe9\ud800\udce9ü", max_size=4))
def test_a_text_that_stands_for_no_name_is_refused(text: str) -> None:
    if is_stored_name(text):
        assert stored_name_of(name_bytes(text)) == text
    elif text:
        assert path_trouble(text) is not None


def test_a_name_of_other_bytes_cannot_hide_a_slash_or_dots() -> None:
    # Only bytes from 0x80 on have such characters, so parts and dots are what they look like.
    assert name_bytes("\U0010ff80/\U0010ffff") == b"\x80/\xff"
    assert check_path("\U0010ffae\U0010ffae") == "\U0010ffae\U0010ffae"


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff" * 255, "\U0010ffe9".encode(), b"\xc3"])
def test_a_name_that_is_not_utf_8_is_stored_and_restored(
    store: Store, job: Job, folder: Path, tmp_path: Path, name: bytes
) -> None:
    inside = os.fsencode(folder)
    os.mkdir(inside + b"/dir-" + name[:200])
    for path in (b"/" + name, b"/dir-" + name[:200] + b"/" + name):
        with open(inside + path, "wb") as file:
            file.write(b"content")
    os.symlink(name, inside + b"/link")
    tree = put_tree(store, job, folder)
    assert tree.report.left_out == {}
    files = FileSet(store, [tree.layer])
    extract(files, tmp_path / "restored")
    restored = os.fsencode(tmp_path / "restored")
    assert sorted(os.listdir(restored)) == sorted(os.listdir(inside))
    with open(restored + b"/dir-" + name[:200] + b"/" + name, "rb") as file:
        assert file.read() == b"content"
    assert os.readlink(restored + b"/link") == name
    assert files.read(stored_name_of(name)) == b"content"
    archive = io.BytesIO()
    export_tar(files, archive)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as stock:
        assert name in {os.fsencode(member.name) for member in stock}
    archive.seek(0)
    with FileSetWriter(store, job) as writer:
        import_tar(writer, archive)
        again = FileSet(store, [writer.close()])
    assert read_all(again) == read_all(files)


# What cannot be stored.


def test_sockets_pipes_and_devices_are_left_out_with_a_count(
    store: Store, job: Job, folder: Path
) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        tree = put_tree(store, job, folder)
    assert tree.report.left_out == {"pipe": 1, "socket": 1}
    assert tree.report.missed == 0
    assert [told.path for told in tree.report.first] == ["pipe", "socket"]
    assert list(read_all(FileSet(store, [tree.layer]))) == ["a", "sub/", "sub/b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_devices_are_left_out_with_a_count(store: Store, job: Job, folder: Path) -> None:
    os.mknod(folder / "null", 0o600 | 0o020000, os.makedev(1, 3))
    assert put_tree(store, job, folder).report.left_out == {"device": 1}


class Failing:
    """Lets reading of one file fail with an error, from a call on."""

    def __init__(self, path: str, number: int, at_read: bool) -> None:
        self.path = path
        self.number = number
        self.at_read = at_read

    def open_file(self, real: object) -> object:
        def open_file(folder: Folder, path: str) -> OpenedFile:
            if path == self.path and not self.at_read:
                raise OSError(self.number, os.strerror(self.number))
            opened: OpenedFile = real(folder, path)  # type: ignore[operator]
            if path == self.path:
                opened.blocks = self._blocks(opened.blocks)  # type: ignore[assignment, method-assign]
            return opened

        return open_file

    def _blocks(self, real: object) -> object:
        def blocks() -> Iterator[bytes]:
            yield next(real())[:100]  # type: ignore[operator]
            raise OSError(self.number, os.strerror(self.number))

        return blocks


@pytest.mark.parametrize("path", ["a", "sub/b"])
@pytest.mark.parametrize("number", [5, 13])
@pytest.mark.parametrize("at_read", [False, True])
def test_a_file_that_cannot_be_read_is_left_out_with_its_reason(
    store: Store,
    job: Job,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    number: int,
    at_read: bool,
) -> None:
    failing = Failing(path, number, at_read)
    monkeypatch.setattr(Folder, "open_file", failing.open_file(Folder.open_file))
    tree = put_tree(store, job, folder)
    with FileSetWriter(store, job) as writer:
        beside = writer.put_tree(folder)
        layer = writer.close()
    for report, stored in ((tree.report, tree.layer), (beside, layer)):
        assert report.left_out == {"unreadable": 1}
        assert report.missed == 1
        assert report.first == [(path, "unreadable", os.strerror(number))]
        found = read_all(FileSet(store, [stored]))
        assert path not in found
        assert len([one for one in found if not one.endswith("/")]) == 1


def test_a_folder_that_cannot_be_read_is_left_out_with_its_reason(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(descriptor: int) -> object:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/sub"):
            raise PermissionError(13, "Permission denied")
        return real(descriptor)

    monkeypatch.setattr("holdfast.seam.folders.os.scandir", scandir)
    tree = put_tree(store, job, folder)
    assert tree.report.left_out == {"unreadable": 1}
    assert tree.report.first[0].path == "sub/"
    assert "a" in read_all(FileSet(store, [tree.layer]))


def test_a_path_that_is_too_long_is_left_out(folder: Path, tmp_path: Path) -> None:
    name = "d" * 250
    at = os.open(folder, os.O_RDONLY)
    for _ in range(18):
        os.mkdir(name, dir_fd=at)
        deeper = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    # Chunks as usual: two such paths must fit into one of the index.
    with Store.create(str(tmp_path / "usual")) as store, store.references.open_job("put") as job:
        tree = put_tree(store, job, folder)
        assert tree.report.left_out == {"name": 1}
        assert tree.report.missed == 1
        assert "a" in read_all(FileSet(store, [tree.layer]))


def test_files_that_went_are_counted(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing("a", 2, at_read=False)
    monkeypatch.setattr(Folder, "open_file", failing.open_file(Folder.open_file))
    report = put_tree(store, job, folder).report
    assert report.left_out == {"vanished": 1}
    assert report.missed == 0


@pytest.mark.parametrize("path", ["a", "sub/b"])
def test_a_file_that_changes_while_it_is_read_is_counted_and_read_again_next_time(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("holdfast.store.filesets.previous_tree.RACY_NS", -(10**18))
    real = OpenedFile.looks_like
    writes = iter([b"torn"])

    def looks_like(self: OpenedFile, entry: FolderEntry) -> bool:
        if entry.path == path:
            for data in writes:
                (folder / path).write_bytes(data)
        return real(self, entry)

    monkeypatch.setattr(OpenedFile, "looks_like", looks_like)
    tree = put_tree(store, job, folder)
    assert tree.report.changed_files == 1
    assert tree.report.first[0][:2] == (path, "changed")
    assert tree.report.missed == 0
    files = FileSet(store, [tree.layer])
    again = put_tree(store, job, folder, parent=files, parent_seen=tree.seen)
    assert (again.read_files, again.report.changed_files) == (1, 0)
    assert FileSet(store, [again.layer]).read(path) == b"torn"


def test_a_report_names_the_first_and_counts_all(store: Store, job: Job, folder: Path) -> None:
    for number in range(REPORTED_PATHS_MAX + 20):
        os.mkfifo(folder / f"pipe-{number:04}")
    report = put_tree(store, job, folder).report
    assert report.left_out == {"pipe": REPORTED_PATHS_MAX + 20}
    assert len(report.first) == REPORTED_PATHS_MAX


# What is wanted.


def stored(store: Store, job: Job, folder: Path, selection: Selection) -> list[str]:
    layer = put_tree(store, job, folder, selection=selection).layer
    files = [file.path for file in FileSet(store, [layer]).files() if not file.is_folder]
    with FileSetWriter(store, job) as writer:
        writer.put_tree(folder, selection=selection)
        beside = FileSet(store, [writer.close()])
    assert [file.path for file in beside.files() if not file.is_folder] == files
    return files


@pytest.mark.parametrize(
    ("exclude", "include", "expected"),
    [
        ([], [], ["a.tmp", "build/x", "keep", "sub/a.tmp", "sub/build/y", "sub/keep"]),
        (["*.tmp"], [], ["build/x", "keep", "sub/build/y", "sub/keep"]),
        (["build"], [], ["a.tmp", "keep", "sub/a.tmp", "sub/keep"]),
        (["build/"], [], ["a.tmp", "keep", "sub/a.tmp", "sub/keep"]),
        (["/build"], [], ["a.tmp", "keep", "sub/a.tmp", "sub/build/y", "sub/keep"]),
        (["keep/"], [], ["a.tmp", "build/x", "keep", "sub/a.tmp", "sub/build/y", "sub/keep"]),
        (["sub/*"], [], ["a.tmp", "build/x", "keep"]),
        (["sub/**"], ["sub/keep"], ["a.tmp", "build/x", "keep", "sub/keep"]),
        (["*"], ["keep"], ["keep", "sub/keep"]),
        (["*"], ["sub/build/"], ["sub/build/y"]),
        (["**/y", "[ak]*"], [], ["build/x"]),
    ],
)
def test_patterns_leave_out_and_include(
    store: Store,
    job: Job,
    tmp_path: Path,
    exclude: list[str],
    include: list[str],
    expected: list[str],
) -> None:
    folder = tmp_path / "chosen"
    for path in ("a.tmp", "build/x", "keep", "sub/a.tmp", "sub/build/y", "sub/keep"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x")
    assert stored(store, job, folder, Selection(exclude, include)) == expected


def test_a_file_of_patterns() -> None:
    lines = ["# comment", "", "*.tmp\n", "!keep.tmp\r\n", "\\#odd", "\\!odd"]
    assert split_patterns(lines) == (["*.tmp", "#odd", "!odd"], ["keep.tmp"])


def test_caches_are_left_out_if_asked(store: Store, job: Job, folder: Path) -> None:
    (folder / "sub/CACHEDIR.TAG").write_bytes(CACHE_SIGNATURE + b"\n# made by a test\n")
    (folder / "fake").mkdir()
    (folder / "fake/CACHEDIR.TAG").write_bytes(b"not one")
    everything = stored(store, job, folder, Selection())
    assert everything == ["a", "fake/CACHEDIR.TAG", "sub/CACHEDIR.TAG", "sub/b"]
    assert stored(store, job, folder, Selection(exclude_caches=True)) == ["a", "fake/CACHEDIR.TAG"]


def test_a_pattern_may_be_in_bytes_that_are_not_utf_8(store: Store, job: Job, folder: Path) -> None:
    os.close(os.open(os.fsencode(folder) + b"/caf\xe9", os.O_CREAT))
    assert stored(store, job, folder, Selection(["caf\udce9"])) == ["a", "sub/b"]
