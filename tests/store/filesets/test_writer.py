"""Writing: any order in, sorted out, within a bound of memory."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, put_all, read_all

from holdfast.errors import BadInput, LeaseLost
from holdfast.store.filesets import Commits, FileSet, FileSetWriter
from holdfast.store.filesets import layer as layer_module
from holdfast.store.filesets import writer as writer_module
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store


def test_files_come_in_any_order_and_go_out_sorted() -> None:
    store, _ = memory_store()
    files = {f"{n * 7919 % 500:03}": b"%d" % n for n in range(500)}
    assert list(files) != sorted(files)
    assert list(read_all(FileSet(store, [put_all(store, files)]))) == sorted(files)


def test_the_buffer_keeps_to_its_bound_and_spills() -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB, max_buffer_bytes=20_000) as writer:
        highest = 0
        for number in range(300):
            writer.put(f"{number * 7 % 300:03}", b"x" * 300)
            highest = max(highest, writer.buffered_bytes)
        assert highest <= 20_000
        assert writer.runs > 3
        layer = writer.close()
    assert read_all(FileSet(store, [layer])) == {f"{n:03}": b"x" * 300 for n in range(300)}


def test_large_content_is_not_held_in_the_buffer() -> None:
    store, _ = memory_store()
    data = random.Random(5).randbytes(200_000)
    with FileSetWriter(store, NO_JOB) as writer:
        writer.put("large", (data[at : at + 777] for at in range(0, len(data), 777)))
        assert writer.buffered_bytes < 50_000
        layer = writer.close()
    assert FileSet(store, [layer]).read("large") == data


def test_many_appends_to_one_file() -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        for number in range(3000):
            writer.append("log", b"%04d" % number)
        layer = writer.close()
    files = FileSet(store, [layer])
    assert files.read("log") == b"".join(b"%04d" % number for number in range(3000))
    # They became one piece before they were stored.
    assert len(files.stat("log").refs) < 20


def test_a_tag_is_appended_to_within_and_across_layers() -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        writer.append("f", b"2a", tag=2)
        writer.append("f", b"1a", tag=1)
        writer.append("f", b"2b", tag=2)
        first = writer.close()
    with FileSetWriter(store, NO_JOB) as writer:
        writer.append("f", b"1b", tag=1)
        writer.replace_tag("f", b"0", tag=-1)
        second = writer.close()
    with FileSetWriter(store, NO_JOB) as writer:
        writer.delete_tag("f", tag=2)
        third = writer.close()
    assert FileSet(store, [first]).read("f") == b"1a2a2b"
    assert FileSet(store, [first, second]).read("f") == b"01a1b2a2b"
    assert FileSet(store, [first, second, third]).read("f") == b"01a1b"


@pytest.mark.parametrize("order", [("a", "a/x"), ("a/x", "a"), ("a/x/y", "a-b", "a")])
def test_a_file_that_is_a_folder_is_refused(order: tuple[str, ...]) -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        for path in order:
            writer.put(path, b"")
        with pytest.raises(BadInput, match="'a' is a file and a folder"):
            writer.close()


def test_a_collision_is_found_across_runs() -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB, max_buffer_bytes=1) as writer:
        writer.put("a/x", b"")
        writer.put("a", b"")
        assert writer.runs == 2
        with pytest.raises(BadInput, match="'a' is a file and a folder"):
            writer.close()


def test_a_file_may_become_a_folder_if_it_is_deleted() -> None:
    store, _ = memory_store()
    before = put_all(store, {"a": b"file"})
    with FileSetWriter(store, NO_JOB) as writer:
        writer.delete("a")
        writer.put("a/x", b"inner")
        layer = writer.close()
    assert read_all(FileSet(store, [before, layer])) == {"a/x": b"inner"}


@pytest.mark.parametrize("path", ["../x", "/x", "a\0", "a//b", "", "a/", "\udcff"])
def test_hostile_paths_are_refused_by_every_call(path: str) -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        calls: list[Callable[[], None]] = [
            lambda: writer.put(path, b""),
            lambda: writer.append(path, b""),
            lambda: writer.replace_tag(path, b"", tag=1),
            lambda: writer.delete(path),
            lambda: writer.link(path, "x"),
            lambda: writer.hard_link("x", path),
        ]
        for call in calls:
            with pytest.raises(BadInput):
                call()
        assert writer.close().entries == 0


def test_links_out_of_the_file_set_are_refused() -> None:
    store, _ = memory_store()
    with FileSetWriter(store, NO_JOB) as writer:
        for target in ("/etc/passwd", "../x", "a/../../x"):
            with pytest.raises(BadInput, match="outside"):
                writer.link("link", target)


def test_the_number_of_deleted_folders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = memory_store()
    monkeypatch.setattr(writer_module, "TOMBSTONES_MAX", 3)
    monkeypatch.setattr(layer_module, "TOMBSTONES_MAX", 3)
    with FileSetWriter(store, NO_JOB) as writer:
        for folder in ("a", "b", "c", "a"):
            writer.delete_prefix(folder)
        with pytest.raises(BadInput, match="more than 3 folders"):
            writer.delete_prefix("d")
        assert writer.close().num_tombstones == 3


def test_a_closed_writer_takes_no_more() -> None:
    store, _ = memory_store()
    writer = FileSetWriter(store, NO_JOB)
    writer.close()
    with pytest.raises(BadInput, match="closed"):
        writer.put("a", b"")
    with pytest.raises(BadInput, match="closed"):
        writer.close()


def test_a_copy_makes_no_new_chunk(store: Store, job: Job, commits: Commits) -> None:
    data = random.Random(6).randbytes(50_000)
    commits.create(job, "first", [put_all(store, {"f": data, "s": b"small"}, job)])
    before = {found.key for found in store.objects.list("chunks/")}
    with commits.open("first") as files:
        with FileSetWriter(store, job) as writer:
            writer.copy("copies/f", files.stat("f"))
            writer.copy("copies/s", files.stat("s"))
            layer = writer.close()
        commits.create(job, "second", [*files.layers, layer], parent="first")
    # The index of the new layer, and nothing else.
    assert len({found.key for found in store.objects.list("chunks/")} - before) == 1
    with commits.open("second") as files:
        assert files.read("copies/f") == data
        assert files.read("copies/s") == b"small"
        assert files.stat("copies/f").content_id == files.stat("f").content_id


def test_a_writer_whose_lease_is_lost_stops(store: Store) -> None:
    job = store.references.open_job("lost")
    with FileSetWriter(store, job) as writer:
        writer.put("a", b"x")
        job.release()
        with pytest.raises(LeaseLost):
            writer.close()
