"""Trees with everything that a disk can hold: stored and restored, they are the same trees.

The comparison is not Holdfast's: it walks both trees with `lstat`, and reads bytes, attributes and
the links between names by itself.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.filesets.memory import CHUNKING
from tests.support.examples import examples

from holdfast.errors import BadInput, StoreError
from holdfast.seam.folders import Folder
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileSet, FileSetWriter, StoredTree, extract, put_tree
from holdfast.store.filesets.folder_reader import metadata_of
from holdfast.store.filesets.restore import Restoring
from holdfast.store.gc.leases import Job
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.objects import ChunkHash
from holdfast.store.store import Store

IS_ROOT = os.geteuid() == 0
EXACTLY = Restoring(set_id=True, numeric_ids=True)
NAMES = [b"a", b"b", b"a-b", b"long" * 30, b"\xff", b"caf\xe9", "ü".encode(), b"new\nline", b" "]
OLD_NS = 1_500_000_000_123_456_789


def snapshot(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Return all that can be seen of a tree: an own walk, which shares no code with the store."""
    found: dict[bytes, tuple[object, ...]] = {}
    names: dict[tuple[int, int], list[bytes]] = {}
    top = os.fsencode(root)
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        for name in os.listdir(top + b"/" + folder if folder else top):
            path = folder + b"/" + name if folder else name
            full = top + b"/" + path
            info = os.lstat(full)
            common = (stat.S_IFMT(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns)
            if stat.S_ISLNK(info.st_mode):
                found[path] = (*common, os.readlink(full))
                continue
            xattrs = {one: os.getxattr(full, one) for one in os.listxattr(full)}
            look = (*common, stat.S_IMODE(info.st_mode), tuple(sorted(xattrs.items())))
            if stat.S_ISDIR(info.st_mode):
                waiting.append(path)
                found[path] = look
                continue
            with open(full, "rb") as file:
                data = file.read()
            is_sparse = info.st_blocks * 512 + 4096 < info.st_size
            found[path] = (*look, data, is_sparse)
            names.setdefault((info.st_dev, info.st_ino), []).append(path)
    for same in names.values():
        for path in same:
            found[path] = (*found[path], tuple(sorted(same)))
    return found


def has_xattrs(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(b"")
    try:
        os.setxattr(probe, "user.test", b"1")
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


class Tree:
    """A tree that is changed at random, by a seed: a failure can be repeated."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = os.fsencode(root)
        self.dice = random.Random(seed)
        self.xattrs = has_xattrs(root)

    def files(self) -> list[bytes]:
        return sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.root)
            for name in names
            if stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode)
        )

    def folders(self) -> list[bytes]:
        return sorted(folder for folder, _, _ in os.walk(self.root))

    def change(self) -> None:
        """Make, change or remove one thing."""
        place = self.dice.choice(self.folders()) + b"/" + self.dice.choice(NAMES)
        step = self.dice.choice(
            ["write", "write", "folder", "link", "hard", "sparse", "look", "look", "remove"]
        )
        if step == "remove":
            self._remove(place)
        elif step == "look":
            self._look(self.dice.choice([*self.folders()[1:], *self.files()] or [None]))
        elif os.path.lexists(place):
            if step == "write" and place in self.files():
                self._write(place)
        elif step == "folder":
            os.mkdir(place)
        elif step == "link":
            os.symlink(self.dice.choice([b"a", b"../b", b"/etc/passwd", b"\xff\xfe"]), place)
        elif step == "hard" and self.files():
            os.link(self.dice.choice(self.files()), place)
        elif step == "sparse":
            with open(place, "wb") as file:
                file.seek(self.dice.choice([20_000, 300_000]))
                file.write(self.dice.choice([b"", b"end"]))
                file.truncate(320_000)
        else:
            self._write(place)

    def _write(self, place: bytes) -> None:
        with open(place, "wb") as file:
            file.write(self.dice.randbytes(self.dice.choice([0, 1, 400, 513, 30_000])))

    def _remove(self, place: bytes) -> None:
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
        elif os.path.lexists(place):
            os.unlink(place)

    def _look(self, place: bytes | None) -> None:
        if place is None:
            return
        if IS_ROOT:
            os.chown(place, self.dice.choice([0, 1, 12345]), self.dice.choice([0, 2]))
        modes = [0o644, 0o600, 0o4755, 0o2755] if os.path.isfile(place) else [0o755, 0o700, 0o1777]
        os.chmod(place, self.dice.choice(modes))
        if self.xattrs:
            os.setxattr(place, "user.note", self.dice.randbytes(self.dice.choice([0, 5, 300])))
        os.utime(place, ns=(OLD_NS, self.dice.choice([OLD_NS, -1_500_000_001, 7])))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    chosen = StoreSettings(chunking=CHUNKING, gc=GcSettings(synchronous="off"))
    with Store.create(str(tmp_path / "store"), settings=chosen) as opened:
        yield opened


def stored(store: Store, job: Job, folder: Path, parent: StoredTree | None = None) -> StoredTree:
    if parent is None:
        return put_tree(store, job, folder)
    before = FileSet(store, [parent.layer])
    return put_tree(store, job, folder, parent=before, parent_seen=parent.seen)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 40))
def test_a_tree_is_restored_as_it_was_and_put_on_its_parent_is_a_whole_put(
    store: Store, job: Job, seed: int, steps: int
) -> None:
    with (
        tempfile.TemporaryDirectory(dir=Path(store.url).parent) as scratch,
        pytest.MonkeyPatch.context() as patched,
    ):
        # What was changed a moment ago counts as old: the clock of files is fine enough here.
        patched.setattr("holdfast.store.filesets.previous_tree.RACY_NS", -(10**18))
        root = Path(scratch) / "root"
        root.mkdir()
        tree = Tree(root, seed)
        for _ in range(steps):
            tree.change()
        first = stored(store, job, root)
        assert first.report.left_out == {}
        extract(FileSet(store, [first.layer]), Path(scratch) / "first", how=EXACTLY)
        assert snapshot(Path(scratch) / "first") == snapshot(root)
        for _ in range(steps // 4 + 1):
            tree.change()
        second = stored(store, job, root, first)
        again = Path(scratch) / "second"
        extract(FileSet(store, [second.layer]), again, how=EXACTLY, threads=1)
        assert snapshot(again) == snapshot(root)
        whole = FileSet(store, [stored(store, job, root).layer])
        seen = FileSet(store, [second.layer])
        assert [(f.path, f.metadata) for f in whole.files()] == [
            (f.path, f.metadata) for f in seen.files()
        ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    (made / "a").write_bytes(b"alpha")
    (made / "big").write_bytes(random.Random(3).randbytes(60_000))
    (made / "c").write_bytes(b"gamma")
    return made


def test_an_older_parent_is_given_what_it_did_not_keep_without_reading(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of versions that kept neither owners nor folders' times."""
    monkeypatch.setattr("holdfast.store.filesets.previous_tree.RACY_NS", -(10**18))
    with monkeypatch.context() as older:
        module = importlib.import_module("holdfast.store.filesets.folder_writer")
        nobody: Any = {"uid": None, "gid": None, "user": None, "group": None}
        older.setattr(
            module, "metadata_of", lambda entry, _: metadata_of(entry, ())._replace(**nobody)
        )
        first = stored(store, job, folder)
    assert FileSet(store, [first.layer]).stat("a").metadata.uid is None
    second = stored(store, job, folder, first)
    assert second.read_files == 0
    assert second.layer == stored(store, job, folder).layer
    assert FileSet(store, [second.layer]).stat("a").metadata.uid == os.geteuid()


def test_other_names_of_a_file_are_not_read_again(store: Store, job: Job, folder: Path) -> None:
    for name in ("z1", "z2"):
        os.link(folder / "big", folder / name)
    tree = stored(store, job, folder)
    assert (tree.files, tree.read_files) == (5, 3)
    files = FileSet(store, [tree.layer])
    assert {files.stat(name).hard_link for name in ("big", "z1", "z2")} == {"big"}
    assert files.stat("a").hard_link is None


def test_a_name_whose_first_was_overwritten_is_a_file_of_its_own(
    store: Store, job: Job, commits: Commits, folder: Path, tmp_path: Path
) -> None:
    os.link(folder / "big", folder / "z")
    base = stored(store, job, folder).layer
    with FileSetWriter(store, job) as writer:
        writer.put("big", b"another")
        upper = writer.close()
    extract(FileSet(store, [base, upper]), tmp_path / "restored")
    assert (tmp_path / "restored/big").read_bytes() == b"another"
    assert (tmp_path / "restored/z").read_bytes() == (folder / "big").read_bytes()


def test_set_id_bits_are_restored_only_if_asked(
    store: Store, job: Job, folder: Path, tmp_path: Path
) -> None:
    (folder / "a").chmod(0o6755)
    files = FileSet(store, [stored(store, job, folder).layer])
    plain = extract(files, tmp_path / "plain")
    assert plain.not_restored == {"set_id": 1}
    assert (tmp_path / "plain/a").stat().st_mode & 0o7777 == 0o755
    kept = extract(files, tmp_path / "kept", how=Restoring(set_id=True))
    assert not kept.not_restored
    assert (tmp_path / "kept/a").stat().st_mode & 0o7777 == 0o6755


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files to others")
def test_owners_are_restored_if_root_does_it_or_it_is_asked(
    store: Store, job: Job, folder: Path, tmp_path: Path
) -> None:
    os.chown(folder / "a", 12345, 54321)
    files = FileSet(store, [stored(store, job, folder).layer])
    for name, owner, expected in (("by-root", None, 12345), ("asked-not", False, 0)):
        extract(files, tmp_path / name, how=Restoring(owner=owner))
        assert (tmp_path / name / "a").stat().st_uid == expected


def lose(store: Store, files: FileSet, path: str) -> None:
    """Delete the object of a file's first chunk."""
    hash_ = ChunkHash(files.stat(path).refs[0].chunk.hash)
    key = store.references.resolve([hash_])[hash_]
    store.objects.delete_many([key.object_key()])


def test_the_rest_is_restored_if_a_file_is_lost(
    store: Store, job: Job, commits: Commits, folder: Path, tmp_path: Path
) -> None:
    (folder / "big").write_bytes(random.Random(4).randbytes(300_000))
    tree = stored(store, job, folder)
    commits.create(job, "tree", [tree.layer])
    lose(store, FileSet(store, [tree.layer]), "big")
    with Store.open(store.url) as fresh, Commits(fresh).open("tree") as files:
        with pytest.raises(StoreError, match="chunk"):
            extract(files, tmp_path / "stopped")
        assert not (tmp_path / "stopped/big").exists()
        restored = extract(files, tmp_path / "rest", how=Restoring(keep_going=True))
    assert (restored.files, restored.failed) == (2, 1)
    assert restored.failures[0].path == "big"
    assert sorted(os.listdir(tmp_path / "rest")) == ["a", "c"]


def test_the_rest_is_restored_if_some_of_the_index_is_lost(
    store: Store, job: Job, commits: Commits, folder: Path, tmp_path: Path
) -> None:
    for number in range(100):
        (folder / f"n{number:03}").write_bytes(b"%d" % number)
    tree = stored(store, job, folder)
    commits.create(job, "tree", [tree.layer])
    assert tree.layer.index is not None
    node = FileSet(store, [tree.layer]).nodes.get(tree.layer.index)
    assert not node.is_leaf
    hash_ = ChunkHash(node.indexes[1].data_op.data_ref[0].chunk.hash)
    key = store.references.resolve([hash_])[hash_]
    store.objects.delete_many([key.object_key()])
    with Store.open(store.url) as fresh, Commits(fresh).open("tree") as files:
        restored = extract(files, tmp_path / "rest", how=Restoring(keep_going=True))
    assert restored.failed == 1
    assert "the index is lost" in restored.failures[0].why
    found = os.listdir(tmp_path / "rest")
    assert 0 < len(found) == restored.files < tree.files


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_full_disk_ends_it_and_leaves_no_part_of_a_file(
    store: Store,
    job: Job,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep_going: bool,
) -> None:
    files = FileSet(store, [stored(store, job, folder).layer])
    real_write, written = os.write, 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal written
        if "target" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return real_write(descriptor, data)
        if written + len(data) > 20_000:
            raise OSError(28, "No space left on device")
        written += len(data)
        return real_write(descriptor, data)

    monkeypatch.setattr("holdfast.seam.folders.os.write", write)
    with pytest.raises(StoreError, match="No space left"):
        extract(files, tmp_path / "target", how=Restoring(keep_going=keep_going), threads=1)
    monkeypatch.undo()
    for name in os.listdir(tmp_path / "target"):
        assert (tmp_path / "target" / name).read_bytes() == (folder / name).read_bytes()


def test_a_file_in_the_way_fails_alone_if_the_rest_is_to_go_on(
    store: Store, job: Job, folder: Path, tmp_path: Path
) -> None:
    files = FileSet(store, [stored(store, job, folder).layer])
    (tmp_path / "target").mkdir()
    (tmp_path / "target/a").write_bytes(b"mine")
    with pytest.raises(BadInput, match="already"):
        extract(files, tmp_path / "target")
    shutil.rmtree(tmp_path / "target")
    (tmp_path / "target").mkdir()
    (tmp_path / "target/a").write_bytes(b"mine")
    restored = extract(files, tmp_path / "target", how=Restoring(keep_going=True))
    assert [failure.path for failure in restored.failures] == ["a"]
    assert (tmp_path / "target/a").read_bytes() == b"mine"
    assert restored.files == 2


def test_attributes_that_are_too_large_are_told(
    store: Store, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "holdfast.seam.folders.OpenedFile.xattrs", lambda self: ((b"user.x", bytes(100_000)),)
    )
    tree = stored(store, job, folder)
    assert tree.report.large_xattrs == 3
    assert FileSet(store, [tree.layer]).stat("a").metadata.xattrs == ()


def test_holes_are_not_read(
    store: Store, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sparse"
    root.mkdir()
    with open(root / "file", "wb") as file:
        file.truncate(4_000_000)
        file.seek(2_000_000)
        file.write(b"data")
    read = 0
    real = os.pread

    def pread(descriptor: int, size: int, at: int) -> bytes:
        nonlocal read
        read += size
        return real(descriptor, size, at)

    monkeypatch.setattr("holdfast.seam.folders.os.pread", pread)
    with Folder(root) as opened:
        assert opened.read("file") == (root / "file").read_bytes()
    assert 0 < read < 100_000
