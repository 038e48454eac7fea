"""Folders: stored and restored as they are, read only where they changed, never left."""

from __future__ import annotations

import filecmp
import os
import random
from pathlib import Path

import pytest
from tests.store.filesets.operations import put_all, read_all

from holdfast.errors import BadInput, Damaged, StoreError
from holdfast.seam.folders import Folder, OpenedFile
from holdfast.store.filesets import (
    Commits,
    FileSet,
    FileSetWriter,
    Metadata,
    Selection,
    StoredTree,
    algebra,
    extract,
    put_tree,
)
from holdfast.store.filesets.entry import IndexEntry
from holdfast.store.filesets.layer_builder import IndexWriter, LayerBuilder
from holdfast.store.filesets.restore import Restoring
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store

LONG_AGO_NS = 1_600_000_000_123_456_789


def make_tree(folder: Path) -> None:
    """Make a folder with everything that a folder may hold."""
    dice = random.Random(1)
    contents = {
        "a": b"",
        "a-b": b"between",
        "sub/small": b"small",
        "sub/large": dice.randbytes(100_000),
        "sub/deeper/file": dice.randbytes(3000),
        "ü/日本": b"names",
        "odd * [name]": b"odd",
        ".hidden": b"hidden",
    }
    for number in range(150):
        contents[f"many/{number:03}"] = dice.randbytes(number)
    for path, data in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        os.utime(folder / path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    (folder / "sub/small").chmod(0o751)
    (folder / "empty/inner").mkdir(parents=True)
    (folder / "private").mkdir(mode=0o700)
    (folder / "private/key").write_bytes(b"key")
    (folder / "sub/link").symlink_to("../a-b")
    (folder / "dangling").symlink_to("nothing")


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return what everything in a folder looks like."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode)
        else:
            info = path.stat()
            found[name] = ("file", info.st_mode, info.st_mtime_ns, path.read_bytes())
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    make_tree(made)
    return made


def committed(commits: Commits, job: Job, name: str, tree: StoredTree) -> FileSet:
    commits.create(job, name, [tree.layer], seen=tree.seen)
    return commits.open(name)


def test_a_folder_is_restored_as_it_was(
    store: Store, job: Job, commits: Commits, folder: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    tree = put_tree(store, job, folder, progress=lambda *now: told.append(now))
    assert tree.files == tree.read_files + 2 == 161
    assert told == sorted(told)
    assert told[-1] == (tree.files, tree.read_bytes)
    with committed(commits, job, "tree", tree) as files:
        restored = extract(files, tmp_path / "restored", progress=lambda *now: told.append(now))
    assert restored.files == 161
    assert told[-1] == (159, restored.size_bytes)
    assert look(tmp_path / "restored") == look(folder)


def test_a_part_is_restored_by_itself(
    store: Store, job: Job, commits: Commits, folder: Path, tmp_path: Path
) -> None:
    with committed(commits, job, "tree", put_tree(store, job, folder)) as files:
        extract(files, tmp_path / "part", folder="sub/deeper", threads=1)
    assert filecmp.cmp(tmp_path / "part/file", folder / "sub/deeper/file", shallow=False)
    assert len(list((tmp_path / "part").iterdir())) == 1


def age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files that were changed just now count as old enough to be trusted."""
    monkeypatch.setattr("holdfast.store.filesets.previous_tree.RACY_NS", -(10**18))


def test_each_folder_is_made_once(
    store: Store, job: Job, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by each thread that writes into it, and once more at the end."""
    files = FileSet(store, [put_tree(store, job, folder).layer])
    made: list[str] = []
    mkdir = os.mkdir

    def counted(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        made.append(str(path))
        mkdir(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", counted)
    extract(files, tmp_path / "restored")
    monkeypatch.undo()
    folders = [path.name for path in folder.rglob("*") if path.is_dir()]
    assert sorted(made) == sorted([str(tmp_path / "restored"), *folders])
    assert look(tmp_path / "restored") == look(folder)


def test_what_stands_where_a_folder_is_to_be_is_said_after_the_rest_was_restored(
    store: Store, job: Job, folder: Path, tmp_path: Path
) -> None:
    files = FileSet(store, [put_tree(store, job, folder).layer])
    target = tmp_path / "restored"
    target.mkdir()
    (target / "empty").write_bytes(b"mine")
    with pytest.raises(BadInput, match="something is there already"):
        extract(files, target)
    assert (target / "empty").read_bytes() == b"mine"
    assert (target / "ü/日本").read_bytes() == b"names"


def test_only_what_changed_is_read_again(
    store: Store, job: Job, commits: Commits, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(monkeypatch)
    first = put_tree(store, job, folder)
    with committed(commits, job, "first", first) as parent:
        seen = commits.get("first").seen
        same = put_tree(store, job, folder, parent=parent, parent_seen=seen)
        assert (same.read_files, same.read_bytes) == (0, 0)
        assert same.layer.root == first.layer.root
        (folder / "sub/small").write_bytes(b"SMALL")  # the same size
        (folder / "many/007").unlink()
        (folder / "many/new").write_bytes(b"new")
        second = put_tree(store, job, folder, parent=parent, parent_seen=seen)
        assert second.read_files == 2
        assert second.read_bytes == 8
        with committed(commits, job, "second", second) as files:
            found = {one.path: one.kind for one in parent.diff(files)}
            assert found == {
                "many/": "metadata",
                "many/007": "removed",
                "many/new": "added",
                "sub/small": "content",
            }
            assert files.read("sub/small") == b"SMALL"


def test_chunks_of_the_index_in_which_nothing_changed_are_taken_over_as_they_are(
    store: Store,
    job: Job,
    commits: Commits,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    age(monkeypatch)
    for number in range(600):
        (folder / "many" / f"{number:05}").write_bytes(b"%d" % number)
    added: list[str] = []
    add = IndexWriter.add

    def count(self: IndexWriter, entry: IndexEntry) -> None:
        added.append(entry.path)
        add(self, entry)

    monkeypatch.setattr(IndexWriter, "add", count)
    first = put_tree(store, job, folder)
    every = len(added)
    with committed(commits, job, "first", first) as parent:
        seen = commits.get("first").seen
        for change in ("nothing", "one file", "many files", "a removed one"):
            if change == "one file":
                (folder / "many/00300").write_bytes(b"another")
            elif change == "many files":
                for number in range(0, 600, 7):
                    (folder / "many" / f"{number:05}").write_bytes(b"others")
            elif change == "a removed one":
                (folder / "many/00301").unlink()
            added.clear()
            tree = put_tree(store, job, folder, parent=parent, parent_seen=seen)
            if change in ("nothing", "one file"):
                # Those that are full before their paths end them are made anew.
                assert len(added) < every * 3 // 4
                assert "many/00300" in added or change == "nothing"
            with monkeypatch.context() as plain:
                plain.setattr(LayerBuilder, "would_take_over", lambda self, index: False)
                one_by_one = put_tree(store, job, folder, parent=parent, parent_seen=seen)
            assert tree.layer == one_by_one.layer, change


def test_a_file_that_was_just_changed_is_not_trusted(
    store: Store, job: Job, commits: Commits, folder: Path
) -> None:
    with committed(commits, job, "first", put_tree(store, job, folder)) as parent:
        again = put_tree(store, job, folder, parent=parent, parent_seen=commits.get("first").seen)
    # All were made in the last second; another change might have the same time.
    assert again.read_files == again.files - 2


def test_a_disk_that_reads_little_at_a_time_cuts_no_file_off(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems may give less than was asked for, before the end of a file."""
    real_read = os.read
    monkeypatch.setattr(
        "holdfast.seam.folders.os.read", lambda fd, size: real_read(fd, min(size, 1000))
    )
    files = FileSet(store, [put_tree(store, job, folder).layer])
    for path in ("sub/small", "sub/large", "sub/deeper/file", "many/149"):
        assert files.read(path) == (folder / path).read_bytes()


@pytest.mark.parametrize("path", ["sub/small", "sub/large"])
def test_a_file_that_goes_meanwhile_is_left_out(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    real_open = Folder.open_file

    def open_file(self: Folder, asked: str) -> OpenedFile:
        if asked == path:
            (folder / path).unlink(missing_ok=True)
        return real_open(self, asked)

    before = len(list(FileSet(store, [put_tree(store, job, folder).layer]).files()))
    monkeypatch.setattr(Folder, "open_file", open_file)
    whole = put_tree(store, job, folder)
    (folder / path).write_bytes(b"again" * 20_000)
    with FileSetWriter(store, job) as writer:
        writer.put_tree(folder)
        beside = writer.close()
    for layer in (whole.layer, beside):
        left = [file.path for file in FileSet(store, [layer]).files()]
        assert path not in left
        assert "sub/deeper/file" in left
    assert len(list(FileSet(store, [whole.layer]).files())) == before - 1


def test_equal_folders_have_equal_indexes(
    store: Store, job: Job, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_tree(other)
    for top in (folder, other):
        for path in (top, *top.rglob("*")):
            os.utime(path, ns=(1, 1), follow_symlinks=False)
    first, second = put_tree(store, job, folder), put_tree(store, job, other, threads=1)
    assert first.layer.root == second.layer.root
    assert [(ref.hash, ref.size_bytes) for ref in first.layer.tombstones] == [
        (ref.hash, ref.size_bytes) for ref in second.layer.tombstones
    ]


def test_a_tree_goes_beside_other_files(store: Store, job: Job, folder: Path) -> None:
    with FileSetWriter(store, job) as writer:
        writer.put("top", b"x")
        writer.put_tree(folder, into="below/here")
        files = FileSet(store, [writer.close()])
    assert files.read("below/here/sub/large") == (folder / "sub/large").read_bytes()
    assert files.stat("below/here/sub/link").link_target == "../a-b"
    assert files.read("top") == b"x"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_links_out_of_a_folder_are_kept_left_out_or_refused(
    store: Store, job: Job, folder: Path, tmp_path: Path, target: str
) -> None:
    (folder / "evil").symlink_to(target)
    with pytest.raises(BadInput, match="outside of the folder"):
        put_tree(store, job, folder, selection=Selection(outside_links="refuse"))
    tree = put_tree(store, job, folder, selection=Selection(outside_links="skip"))
    assert tree.report.left_out == {"outside_link": 1}
    assert not FileSet(store, [tree.layer]).exists("evil")
    kept = FileSet(store, [put_tree(store, job, folder).layer])
    assert kept.stat("evil").link_target == target
    with pytest.raises(BadInput, match="leads out of the file set"):
        extract(kept, tmp_path / "refused", how=Restoring(outside_links="refuse"))
    without = extract(kept, tmp_path / "without", how=Restoring(outside_links="skip"))
    assert without.not_restored == {"outside_link": 1}
    assert not (tmp_path / "without/evil").is_symlink()
    extract(kept, tmp_path / "with")
    assert os.readlink(tmp_path / "with/evil") == target


def test_a_missing_folder_is_said_to_be_missing(store: Store, job: Job, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        put_tree(store, job, tmp_path / "nothing")


def test_what_is_there_is_not_overwritten_unless_asked(
    store: Store, job: Job, tmp_path: Path
) -> None:
    files = FileSet(store, [put_all(store, {"a": b"new", "b": b"b"}, job)])
    target = tmp_path / "target"
    target.mkdir()
    (target / "a").write_bytes(b"old")
    (target / "other").write_bytes(b"mine")
    with pytest.raises(BadInput, match="already"):
        extract(files, target)
    assert (target / "a").read_bytes() == b"old"
    extract(files, target, how=Restoring(overwrite=True))
    assert (target / "a").read_bytes() == b"new"
    assert (target / "other").read_bytes() == b"mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_extraction_follows_no_link_that_stands_in_its_way(
    store: Store, job: Job, tmp_path: Path, overwrite: bool
) -> None:
    files = FileSet(store, [put_all(store, {"d/victim": b"evil", "e": b"evil"}, job)])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_bytes(b"precious")
    target = tmp_path / "target"
    target.mkdir()
    (target / "d").symlink_to(outside)
    (target / "e").symlink_to(outside / "victim")
    with pytest.raises(BadInput, match="already"):
        extract(files, target, how=Restoring(overwrite=overwrite))
    assert (outside / "victim").read_bytes() == b"precious"
    assert len(list(outside.iterdir())) == 1


@pytest.mark.parametrize("path", ["../escaped", "a/../../escaped"])
def test_a_forged_index_does_not_lead_out(
    store: Store, job: Job, tmp_path: Path, path: str
) -> None:
    with store.chunks.writer(job) as writer:
        builder = LayerBuilder(store.chunks, writer)
        builder.add(path, algebra.append(b"", (builder.store_small(path, b"evil"),)))
        layer = builder.close()
    with pytest.raises(BadInput, match="leads out"):
        extract(FileSet(store, [layer]), tmp_path / "target")
    assert not (tmp_path / "escaped").exists()


def test_a_forged_link_is_not_made(store: Store, job: Job, tmp_path: Path) -> None:
    with store.chunks.writer(job) as writer:
        builder = LayerBuilder(store.chunks, writer)
        metadata = Metadata(link_target="a\0b").to_message()
        builder.add("link", algebra.append(b"", (), metadata))
        layer = builder.close()
    with pytest.raises(Damaged, match="is no path"):
        extract(FileSet(store, [layer]), tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_a_tree_of_many_folders_needs_few_descriptors(
    store: Store, job: Job, tmp_path: Path
) -> None:
    files = {f"{n:03}/{n % 7}/{n % 3}/file": b"%d" % n for n in range(300)}
    layer = put_all(store, files, job)
    before = len(os.listdir("/proc/self/fd"))
    extract(FileSet(store, [layer]), tmp_path / "target")
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    tree = put_tree(store, job, tmp_path / "target")
    found = read_all(FileSet(store, [tree.layer]))
    assert {path: data for path, data in found.items() if not path.endswith("/")} == files
