"""Commits on a real store: names, parents, pins, order of steps, damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.store.filesets.operations import put_all, read_all

from holdfast.errors import BadInput, CommitExists, Damaged, UnknownCommit, UnknownFormat
from holdfast.store.filesets import Commits, FileSet, FileSetWriter
from holdfast.store.filesets import commits as commits_module
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.commits import parse_record
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store


def test_a_commit_is_made_found_and_deleted(store: Store, job: Job, commits: Commits) -> None:
    layer = put_all(store, {"a": b"1", "b/c": b"2"}, job)
    made = commits.create(job, "lineage/2026-11-15T10", [layer], message="first")
    assert commits.get("lineage/2026-11-15T10") == made
    assert [found.name for found in commits.list("lineage/")] == ["lineage/2026-11-15T10"]
    assert commits.list("other/") == []
    assert len(list(store.objects.list("commits/"))) == 1
    commits.delete("lineage/2026-11-15T10")
    assert list(store.objects.list("commits/")) == []
    with pytest.raises(UnknownCommit):
        commits.get("lineage/2026-11-15T10")
    with pytest.raises(UnknownCommit):
        commits.delete("lineage/2026-11-15T10")


def test_a_name_is_given_once(store: Store, job: Job, commits: Commits) -> None:
    layer = put_all(store, {"a": b"1"}, job)
    commits.create(job, "name", [layer])
    with pytest.raises(CommitExists):
        commits.create(job, "name", [put_all(store, {"a": b"2"}, job)])
    with pytest.raises(BadInput):
        commits.create(job, "", [layer])


def test_log_latest_and_parents(store: Store, job: Job, commits: Commits) -> None:
    assert commits.latest() is None
    layers = []
    for number in range(3):
        layers.append(put_all(store, {f"{number}": b"x"}, job, base=False))
        parent = f"c{number - 1}" if number else None
        layers = list(commits.create(job, f"c{number}", layers, parent=parent).layers)
    assert [commit.name for commit in commits.log("c2")] == ["c2", "c1", "c0"]
    assert [layer.seq for layer in commits.get("c2").layers] == [1, 2, 3]
    latest = commits.latest("c")
    assert latest is not None
    assert latest.name == "c2"
    commits.delete("c1")
    assert [commit.name for commit in commits.log("c2")] == ["c2"]
    # A name that was given anew is not the parent.
    commits.create(job, "c1", [put_all(store, {"other": b""}, job)])
    assert [commit.name for commit in commits.log("c2")] == ["c2"]
    with pytest.raises(UnknownCommit):
        commits.create(job, "c4", layers, parent="nobody")


def test_batch_records_are_carried_on(store: Store, job: Job, commits: Commits) -> None:
    layer = put_all(store, {"a": b"1"}, job)
    commits.create(job, "one", [layer], batch_records={"sink-b": b"7", "sink-a": b"1"})
    second = commits.create(job, "two", [layer], parent="one", batch_records={"sink-b": b"8"})
    assert second.batch_records == {"sink-a": b"1", "sink-b": b"8"}
    third = commits.compact(job, "two", "three", whole=True)
    assert third.batch_records == second.batch_records
    assert third.parent is not None
    assert third.parent.name == "two"


def test_layers_must_be_in_order_of_age(store: Store, job: Job, commits: Commits) -> None:
    first, second = (put_all(store, {path: b""}, job, base=False) for path in "ab")
    with pytest.raises(BadInput, match="order of their age"):
        commits.create(job, "wrong", [first.at(2), second.at(1)])


def test_the_number_of_layers_is_bounded(
    store: Store, job: Job, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits_module, "LAYERS_MAX", 2)
    layer = put_all(store, {"a": b""}, job)
    with pytest.raises(BadInput, match="3 layers"):
        commits.create(job, "many", [layer] * 3)


@pytest.mark.parametrize("size", [1, 50])
def test_collisions_with_older_layers_are_refused(
    store: Store, job: Job, commits: Commits, size: int
) -> None:
    base = put_all(store, {f"d/{n}": b"" for n in range(size)} | {"a": b"", "f/x": b""}, job)
    commits.create(job, "base", [base])
    for files, culprit in (({"a/b": b""}, "'a'"), ({"f": b""}, "'f'"), ({"d/0/x/y": b""}, "'d/0'")):
        layer = put_all(store, files, job, base=False)
        with pytest.raises(BadInput, match=f"{culprit} is a file and a folder"):
            commits.create(job, "upper", [base.at(1), layer], parent="base")
    with FileSetWriter(store, job) as writer:
        writer.delete("a")
        writer.put("a/b", b"")
        writer.put("g/h", b"")
        layer = writer.close()
    commits.create(job, "upper", [base.at(1), layer], parent="base")


class Steps:
    """Notes the order of what is done to objects and references, and fails where it is told."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, fail: str = "") -> None:
        self.done: list[str] = []
        for owner, name in (
            (store.references, "publish_commit"),
            (store.objects, "put"),
            (store.references, "confirm_commit"),
            (store.references, "begin_delete_commit"),
            (store.objects, "delete_many"),
            (store.references, "end_delete_commit"),
        ):
            original = getattr(owner, name)

            def step(*args: object, _name: str = name, _original: object = original) -> object:
                self.done.append(_name)
                if _name == fail:
                    raise OSError("the process died here")
                return _original(*args)  # type: ignore[operator]

            monkeypatch.setattr(owner, name, step)


def test_row_then_object_then_confirmed_and_back(
    store: Store, job: Job, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = put_all(store, {"a": b"1"}, job)
    steps = Steps(store, monkeypatch)
    commits.create(job, "name", [layer])
    assert steps.done == ["publish_commit", "put", "confirm_commit"]
    steps.done.clear()
    commits.delete("name")
    assert steps.done == ["begin_delete_commit", "delete_many", "end_delete_commit"]


@pytest.mark.parametrize("fail", ["put", "confirm_commit"])
def test_a_commit_that_was_not_finished_is_not_found(
    store: Store, job: Job, commits: Commits, monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    layer = put_all(store, {"a": b"1"}, job)
    with monkeypatch.context() as patched:
        Steps(store, patched, fail)
        with pytest.raises(OSError, match="died"):
            commits.create(job, "name", [layer])
    assert commits.list() == []
    with pytest.raises(UnknownCommit):
        commits.open("name")


def test_a_deletion_that_was_not_finished_can_be_repeated(
    store: Store, job: Job, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits.create(job, "name", [put_all(store, {"a": b"1"}, job)])
    with monkeypatch.context() as patched:
        Steps(store, patched, "delete_many")
        with pytest.raises(OSError, match="died"):
            commits.delete("name")
    with pytest.raises(UnknownCommit):
        commits.open("name")
    commits.delete("name")
    assert list(store.objects.list("commits/")) == []


def test_a_pinned_commit_is_read_though_it_is_deleted(
    store: Store, job: Job, commits: Commits
) -> None:
    commits.create(job, "name", [put_all(store, {"a": b"1"}, job)])
    with commits.open("name") as files:
        commits.delete("name")
        assert read_all(files) == {"a": b"1"}


def test_the_object_of_a_commit_is_its_record(store: Store, job: Job, commits: Commits) -> None:
    made = commits.create(job, "name/with ü", [put_all(store, {"a": b"1"}, job)])
    [found] = store.objects.list("commits/")
    assert parse_record(store.objects.get(found.key), made.id) == made


def test_records_of_other_versions_are_refused() -> None:
    with pytest.raises(UnknownFormat, match="version 9"):
        parse_record(pb.CommitRecord(version=9, name="x").SerializeToString(), 1)
    with pytest.raises(Damaged, match="number 1"):
        parse_record(b"\xff\xff\xff", 1)


def flip(paths: Sequence[Path], at: int) -> None:
    for path in paths:
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= 0x10
        path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_index_chunk_is_reported_not_read(
    store: Store, job: Job, commits: Commits, tmp_path: Path, damage: str
) -> None:
    layer = put_all(store, {f"{n:03}": b"" for n in range(40)}, job)
    commits.create(job, "name", [layer])
    assert layer.root is not None
    [path] = (tmp_path / "store").rglob(f"{layer.root.hash.hex()}.*")
    if damage == "flip":
        flip([path], 40)
    else:
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-5])
    with commits.open("name") as files, pytest.raises(Damaged, match=layer.root.hash.hex()):
        read_all(files)


def test_other_stores_threads_and_processes_see_the_same(
    store: Store, job: Job, commits: Commits, tmp_path: Path
) -> None:
    made = commits.create(job, "name", [put_all(store, {"a": b"1"}, job)])
    with Store.open(str(tmp_path / "store")) as other:
        assert Commits(other).get("name") == made
        keys = other.references.resolve(made.layers[0].chunks)
        assert read_all(FileSet(other, made.layers, keys=keys)) == {"a": b"1"}
