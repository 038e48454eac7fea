"""What every disk does: the same tests over the machine's own and over the simulated one."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import pytest
from tests.support.disk import AllocatingDisk

from holdfast.seam.disk import (
    VECTOR_BUFFERS_MAX,
    DirEntry,
    Disk,
    Handle,
    LockHeld,
    RealDisk,
    remove_tree,
    write_all,
    write_file,
)
from holdfast.seam.faulty import FaultyDisk
from holdfast.seam.simulated import SimulatedDisk
from holdfast.seam.simulated_files import BLOCK_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Place:
    """A disk and an empty directory on it."""

    def __init__(self, disk: Disk, root: PurePath) -> None:
        self.disk = disk
        self.root = root

    def write(self, name: str, content: bytes = b"content") -> PurePath:
        path = self.root / name
        write_file(self.disk, path, [content], "test")
        return path

    def names(self) -> list[str]:
        return [entry.name for entry in self.disk.list(self.root)]


@pytest.fixture(params=["real", "simulated", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "real":
        return Place(RealDisk(), tmp_path)
    simulated = AllocatingDisk() if request.param == "faulty" else SimulatedDisk()
    simulated.make_dir(PurePath("/data"), "test")
    if request.param == "faulty":
        return Place(FaultyDisk(simulated, (), simulated.die), PurePath("/data"))
    return Place(simulated, PurePath("/data"))


# Files.


def test_what_is_appended_is_read_back(place: Place) -> None:
    path = place.root / "file"
    handle = place.disk.create(path, "test")
    assert place.disk.read(path) == b""
    assert place.disk.write(handle, [b"one ", bytearray(b"two "), memoryview(b"three")], "t") == 13
    place.disk.sync(handle, "test")
    assert write_all(place.disk, handle, [b"!"], "test") == 1
    assert place.disk.read(path) == b"one two three!"
    place.disk.close(handle)
    assert place.disk.read(path) == b"one two three!"
    assert bytes(place.disk.map(path)) == b"one two three!"
    assert place.disk.read_range(path, 4, 3) == b"two"
    assert place.disk.read_range(path, 8, 100) == b"three!"
    assert place.disk.read_range(path, 100, 1) == b""


def test_blocks_may_be_taken_before_they_are_written(place: Place) -> None:
    path, size_bytes = place.root / "file", 3 * BLOCK_BYTES + 5
    handle = place.disk.create(path, "test")
    taken = place.disk.allocate(handle, size_bytes, "test")
    place.disk.sync(handle, "test")
    if taken:
        assert place.disk.read(path) == bytes(size_bytes)
        assert place.disk.used_bytes(path) >= size_bytes
        place.disk.rewrite(path, b"x" * 10, "test", size_bytes - 10)
        assert place.disk.read(path) == bytes(size_bytes - 10) + b"x" * 10
    else:
        assert place.disk.read(path) == b"", "nothing has changed"
    place.disk.close(handle)


def test_a_file_is_written_over_from_a_place_on_and_grows_behind_its_end(place: Place) -> None:
    path = place.write("file", b"0123456789")
    handle = place.disk.reuse(path, "test", 2)
    assert place.disk.written_through(handle) == 2
    write_all(place.disk, handle, [b"ab", b"c"], "test")
    assert place.disk.written_through(handle) == 5
    write_all(place.disk, handle, [b"d"], "test")
    assert place.disk.read(path) == b"01abcd6789"
    write_all(place.disk, handle, [b"efghijk"], "test")
    place.disk.truncate(handle, 8, "test")
    write_all(place.disk, handle, [b"!"], "test")
    place.disk.sync(handle, "test")
    place.disk.close(handle)
    assert place.disk.read(path) == b"01abcdef!"


def test_a_file_that_is_opened_again_is_written_at_its_end(place: Place) -> None:
    path = place.write("file", b"0123")
    handle = place.disk.reopen(path, "test")
    assert place.disk.written_through(handle) == 4
    write_all(place.disk, handle, [b"45"], "test")
    assert place.disk.written_through(handle) == 6
    place.disk.close(handle)
    assert place.disk.read(path) == b"012345"


def test_a_file_has_as_many_links_as_names(place: Place) -> None:
    path = place.write("file")
    assert place.disk.link_count(path) == 1
    place.disk.link(path, place.root / "other", "test")
    assert place.disk.link_count(path) == 2
    place.disk.unlink(path, "test")
    assert place.disk.link_count(place.root / "other") == 1
    with pytest.raises(FileNotFoundError):
        place.disk.link_count(path)


def test_creating_a_file_that_exists_fails_and_leaves_it_alone(place: Place) -> None:
    path = place.write("file")
    with pytest.raises(FileExistsError):
        place.disk.create(path, "test")
    assert place.disk.read(path) == b"content"


def test_creating_a_file_without_its_directory_fails(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.create(place.root / "missing" / "file", "test")


def test_what_is_written_after_a_cut_stands_at_the_new_end(place: Place) -> None:
    path = place.root / "file"
    handle = place.disk.create(path, "test")
    write_all(place.disk, handle, [b"0123456789"], "test")
    place.disk.truncate(handle, 4, "test")
    assert place.disk.read(path) == b"0123"
    write_all(place.disk, handle, [b"x"], "test")
    assert place.disk.read(path) == b"0123x"
    place.disk.close(handle)


def test_a_missing_file_cannot_be_read_mapped_synced_or_removed(place: Place) -> None:
    path = place.root / "missing"
    calls: list[Callable[[PurePath], object]] = [
        place.disk.read,
        place.disk.map,
        lambda p: place.disk.read_range(p, 0, 1),
        place.disk.file_bytes,
        lambda p: place.disk.files_bytes(place.root, [p.name]),
        place.disk.used_bytes,
        place.disk.list,
        lambda p: place.disk.sync_path(p, "test"),
        lambda p: place.disk.unlink(p, "test"),
        lambda p: place.disk.remove_dir(p, "test"),
        lambda p: place.disk.rename(p, place.root / "other", "test"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call(path)
    assert not place.disk.exists(path)


def test_an_empty_file_is_mapped_as_nothing(place: Place) -> None:
    assert len(place.disk.map(place.write("empty", b""))) == 0


def test_a_map_outlives_the_name_of_its_file(place: Place) -> None:
    path = place.write("file", b"still here")
    mapped = place.disk.map(path)
    place.disk.unlink(path, "test")
    assert not place.disk.exists(path)
    assert bytes(mapped) == b"still here"


def test_a_map_cannot_be_written_to(place: Place) -> None:
    assert place.disk.map(place.write("file")).readonly


def test_an_open_file_outlives_its_name(place: Place) -> None:
    path = place.root / "file"
    handle = place.disk.create(path, "test")
    place.disk.unlink(path, "test")
    write_all(place.disk, handle, [b"into the void"], "test")
    place.disk.close(handle)
    assert place.names() == []


def test_a_file_written_by_another_is_synced_by_its_path(place: Place) -> None:
    path = place.write("file")
    place.disk.sync_path(path, "test")
    assert place.disk.read(path) == b"content"


# Names.


def test_names_are_listed_in_order_with_kind_and_size(place: Place) -> None:
    place.write("b", b"12345")
    place.disk.make_dir(place.root / "c", "test")
    place.write("a", b"")
    place.write("c/inside", b"1")
    assert [entry._replace(modified_ns=0) for entry in place.disk.list(place.root)] == [
        DirEntry("a", False, 0), DirEntry("b", False, 5), DirEntry("c", True, 0),
    ]  # fmt: skip
    asked = ("b", "a", "c/inside", "b")
    assert place.disk.files_bytes(place.root, asked) == [5, 0, 1, 5]
    assert [place.disk.file_bytes(place.root / name) for name in asked] == [5, 0, 1, 5]


def test_a_file_is_listed_with_the_time_of_its_last_write(place: Place) -> None:
    before_ns = time.time_ns() - 10**9  # the kernel dates files by a coarser clock
    place.write("file")
    [entry] = place.disk.list(place.root)
    assert before_ns <= entry.modified_ns <= time.time_ns() + 10**9


def test_a_link_is_a_second_name_of_the_same_file(place: Place) -> None:
    source, target = place.write("source", b"12345"), place.root / "target"
    place.disk.link(source, target, "test")
    assert place.names() == ["source", "target"]
    place.disk.unlink(source, "test")
    assert place.disk.read(target) == b"12345"


def test_a_link_never_replaces_what_is_there(place: Place) -> None:
    source, target = place.write("source", b"new"), place.write("target", b"old")
    with pytest.raises(FileExistsError):
        place.disk.link(source, target, "test")
    assert place.disk.read(target) == b"old"
    with pytest.raises(FileNotFoundError):
        place.disk.link(place.root / "missing", place.root / "other", "test")
    with pytest.raises(FileNotFoundError):
        place.disk.link(source, place.root / "missing" / "other", "test")


def test_making_a_directory_twice_is_fine_and_without_its_parent_fails(place: Place) -> None:
    for _ in range(2):
        place.disk.make_dir(place.root / "dir", "test")
    assert place.names() == ["dir"]
    with pytest.raises(FileNotFoundError):
        place.disk.make_dir(place.root / "missing" / "dir", "test")


def test_renaming_replaces_the_target_file(place: Place) -> None:
    source, target = place.write("source", b"new"), place.write("target", b"old")
    place.disk.rename(source, target, "test")
    assert place.names() == ["target"]
    assert place.disk.read(target) == b"new"


def test_renaming_a_file_to_itself_changes_nothing(place: Place) -> None:
    path = place.write("file")
    place.disk.rename(path, path, "test")
    assert place.disk.read(path) == b"content"


def test_renaming_a_directory_takes_its_content_along(place: Place) -> None:
    place.disk.make_dir(place.root / "dir", "test")
    place.disk.make_dir(place.root / "parent", "test")
    place.write("dir/file")
    place.disk.rename(place.root / "dir", place.root / "parent" / "moved", "test")
    assert place.names() == ["parent"]
    assert place.disk.read(place.root / "parent" / "moved" / "file") == b"content"


def test_a_directory_replaces_an_empty_one_but_none_that_holds_something(place: Place) -> None:
    for name in ("source", "empty", "full"):
        place.disk.make_dir(place.root / name, "test")
    place.write("full/file")
    with pytest.raises(OSError, match="ot empty"):
        place.disk.rename(place.root / "source", place.root / "full", "test")
    place.disk.rename(place.root / "source", place.root / "empty", "test")
    assert place.names() == ["empty", "full"]


def test_a_file_does_not_replace_a_directory_nor_a_directory_a_file(place: Place) -> None:
    place.write("file")
    place.disk.make_dir(place.root / "dir", "test")
    with pytest.raises(IsADirectoryError):
        place.disk.rename(place.root / "file", place.root / "dir", "test")
    with pytest.raises(NotADirectoryError):
        place.disk.rename(place.root / "dir", place.root / "file", "test")
    assert place.names() == ["dir", "file"]


def test_unlink_is_for_files_and_remove_dir_for_empty_directories(place: Place) -> None:
    place.disk.make_dir(place.root / "dir", "test")
    place.write("dir/file")
    with pytest.raises(IsADirectoryError):
        place.disk.unlink(place.root / "dir", "test")
    with pytest.raises(OSError, match="ot empty"):
        place.disk.remove_dir(place.root / "dir", "test")
    with pytest.raises(NotADirectoryError):
        place.disk.remove_dir(place.root / "dir" / "file", "test")
    place.disk.unlink(place.root / "dir" / "file", "test")
    place.disk.remove_dir(place.root / "dir", "test")
    assert place.names() == []


def test_a_directory_is_not_read_and_a_file_is_not_listed(place: Place) -> None:
    path = place.write("file")
    with pytest.raises(IsADirectoryError):
        place.disk.read(place.root)
    with pytest.raises(IsADirectoryError):
        place.disk.map(place.root)
    with pytest.raises(NotADirectoryError):
        place.disk.list(path)


def test_a_directory_is_synced_and_a_missing_one_is_an_error(place: Place) -> None:
    place.disk.sync_dir(place.root, "test")
    with pytest.raises(FileNotFoundError):
        place.disk.sync_dir(place.root / "missing", "test")


def test_a_tree_is_removed_with_all_it_holds(place: Place) -> None:
    place.disk.make_dir(place.root / "tree", "test")
    place.disk.make_dir(place.root / "tree" / "branch", "test")
    place.write("tree/branch/leaf")
    place.write("tree/file")
    place.write("other")
    remove_tree(place.disk, place.root / "tree", "test")
    assert place.names() == ["other"]


# Space.


def test_used_bytes_counts_a_file_and_a_whole_tree(place: Place) -> None:
    place.disk.make_dir(place.root / "dir", "test")
    small, large = place.write("small", bytes(10)), place.write("dir/large", bytes(100_000))
    assert place.disk.used_bytes(large) >= 100_000
    assert place.disk.used_bytes(small) >= 10
    before = place.disk.used_bytes(place.root)
    assert before >= 100_010
    place.disk.unlink(large, "test")
    assert place.disk.used_bytes(place.root) <= before - 100_000


def test_free_bytes_is_a_number_of_bytes(place: Place) -> None:
    assert place.disk.free_bytes(place.root) > 1_000_000


# Locks.


def test_a_lock_is_held_once_and_tells_who_holds_it(place: Place) -> None:
    path = place.root / "LOCK"
    lock = place.disk.lock(path, "the first")
    with pytest.raises(LockHeld) as held:
        place.disk.lock(path, "the second")
    assert held.value.owner == "the first"
    place.disk.unlock(lock)
    again = place.disk.lock(path, "next")
    with pytest.raises(LockHeld) as held:
        place.disk.lock(path, "the second")
    assert held.value.owner == "next"
    place.disk.unlock(again)


def test_a_lock_in_a_missing_directory_is_an_error(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.lock(place.root / "missing" / "LOCK", "nobody")


@pytest.mark.skipif(sys.platform == "win32", reason="locks there belong to the handle")
def test_a_lock_is_released_also_when_a_child_inherited_it(tmp_path: Path) -> None:
    """A duplicate of the descriptor is what a forked child has."""
    disk = RealDisk()
    lock = disk.lock(tmp_path / "LOCK", "parent")
    inherited = os.dup(lock)
    disk.unlock(lock)
    disk.unlock(disk.lock(tmp_path / "LOCK", "next"))
    os.close(inherited)


# Writing everything, however short the writes are.


class StingyDisk(FaultyDisk):
    """Takes at most a few bytes at a time."""

    def __init__(self, inner: SimulatedDisk, most_bytes: int) -> None:
        super().__init__(inner, (), inner.die)
        self.most_bytes = most_bytes
        self.most_buffers = 0

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        self.most_buffers = max(self.most_buffers, len(buffers))
        whole = b"".join(bytes(buffer) for buffer in buffers)
        return super().write(handle, [whole[: self.most_bytes]], at)


@pytest.mark.parametrize("most_bytes", [1, 2, 3, 7, 1000])
def test_short_writes_are_continued_where_they_ended(most_bytes: int) -> None:
    disk = StingyDisk(SimulatedDisk(), most_bytes)
    buffers: list[Buffer] = [b"", b"abc", bytearray(b"d"), b"", memoryview(b"efgh"), b"i" * 20, b""]
    handle = disk.create(PurePath("/file"), "test")
    assert write_all(disk, handle, buffers, "test") == 28
    assert disk.read(PurePath("/file")) == b"abcdefgh" + b"i" * 20


def test_no_write_has_more_buffers_than_the_system_takes() -> None:
    disk = StingyDisk(SimulatedDisk(), 10**9)
    handle = disk.create(PurePath("/file"), "test")
    assert write_all(disk, handle, [b"x"] * 5000, "test") == 5000
    assert disk.most_buffers == VECTOR_BUFFERS_MAX


def test_buffers_of_wider_items_are_written_as_their_bytes(place: Place) -> None:
    wide = memoryview(b"01234567").cast("I")
    handle = place.disk.create(place.root / "file", "test")
    assert write_all(place.disk, handle, [wide], "test") == 8
    place.disk.close(handle)
    assert place.disk.read(place.root / "file") == b"01234567"


def test_a_disk_that_takes_nothing_is_an_error_and_no_endless_loop() -> None:
    disk = StingyDisk(SimulatedDisk(), 0)
    handle = disk.create(PurePath("/file"), "test")
    with pytest.raises(OSError, match="took no bytes at here") as failed:
        write_all(disk, handle, [b"x"], "here")
    assert failed.value.errno == errno.EIO


def test_writing_nothing_does_not_reach_the_disk() -> None:
    disk = StingyDisk(SimulatedDisk(), 0)
    handle = disk.create(PurePath("/file"), "test")
    assert write_all(disk, handle, [b"", b""], "test") == 0


def test_a_file_that_could_not_be_written_whole_is_closed() -> None:
    class CountingDisk(FaultyDisk):
        open_files = 0

        def create(self, path: PurePath, at: str) -> Handle:
            self.open_files += 1
            return super().create(path, at)

        def close(self, handle: Handle) -> None:
            self.open_files -= 1
            super().close(handle)

    simulated = SimulatedDisk(capacity_bytes=4 * BLOCK_BYTES)
    disk = CountingDisk(simulated, (), simulated.die)
    with pytest.raises(OSError, match="no space left"):
        write_file(disk, PurePath("/file"), [bytes(2 * BLOCK_BYTES)], "test")
    assert disk.open_files == 0
