"""The simulated disk keeps what a real one must keep, and forgets what a real one may forget."""

from __future__ import annotations

import errno
import random
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.seam.disk import Handle, LockHeld, write_all, write_file
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk
from holdfast.seam.simulated_files import BLOCK_BYTES, SECTOR_BYTES

ROOT = PurePath("/")
DIR = PurePath("/dir")
FILE = DIR / "file"
OTHER = DIR / "other"


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with one durable, empty directory."""
    disk = SimulatedDisk()
    disk.make_dir(DIR, "test")
    disk.sync_dir(ROOT, "test")
    return disk


def begin(disk: SimulatedDisk, content: bytes = b"", path: PurePath = FILE) -> Handle:
    """Create a file with a durable name and unsynced content."""
    handle = disk.create(path, "test")
    disk.sync_dir(DIR, "test")
    write_all(disk, handle, [content], "test")
    return handle


def durable(disk: SimulatedDisk, content: bytes, path: PurePath = FILE) -> None:
    write_file(disk, path, [content], "test")
    disk.sync_dir(DIR, "test")


def names(disk: SimulatedDisk, path: PurePath = DIR) -> list[str]:
    return [entry.name for entry in disk.list(path)]


# Kill.


def test_after_kill_everything_written_is_there_and_the_old_process_is_dead(
    disk: SimulatedDisk,
) -> None:
    begin(disk, b"unsynced")
    disk.create(OTHER, "test")
    survivor = disk.kill()
    assert names(survivor) == ["file", "other"]
    assert survivor.read(FILE) == b"unsynced"
    for call in (lambda: disk.read(FILE), lambda: disk.exists(FILE), lambda: disk.list(DIR)):
        with pytest.raises(SimulatedCrash):
            call()
    with pytest.raises(SimulatedCrash):
        disk.make_dir(DIR / "new", "test")


def test_after_kill_unsynced_bytes_are_still_unsynced(disk: SimulatedDisk) -> None:
    begin(disk, b"unsynced")
    assert disk.kill().power_loss().read(FILE) == b""


def test_after_kill_unsynced_names_are_still_unsynced_until_the_next_process_syncs(
    disk: SimulatedDisk,
) -> None:
    write_file(disk, FILE, [b"x"], "test")
    killed = disk.kill()
    assert names(killed.snapshot().power_loss()) == []
    killed.sync_dir(DIR, "test")
    assert names(killed.power_loss()) == ["file"]


def test_after_kill_locks_are_free(disk: SimulatedDisk) -> None:
    disk.lock(DIR / "LOCK", "first")
    with pytest.raises(LockHeld):
        disk.lock(DIR / "LOCK", "second")
    disk.kill().lock(DIR / "LOCK", "second")


def test_dying_ends_the_process_at_once(disk: SimulatedDisk) -> None:
    with pytest.raises(SimulatedCrash):
        disk.die()
    with pytest.raises(SimulatedCrash):
        disk.create(FILE, "test")
    assert names(disk.kill()) == []


def test_a_snapshot_leaves_the_process_alive(disk: SimulatedDisk) -> None:
    begin(disk, b"x")
    copy = disk.snapshot()
    copy.unlink(FILE, "test")
    assert disk.read(FILE) == b"x"


# Power loss: bytes.


def test_a_power_cut_keeps_synced_bytes_and_forgets_the_others(disk: SimulatedDisk) -> None:
    handle = begin(disk, b"synced")
    disk.sync(handle, "test")
    write_all(disk, handle, [b" and not"], "test")
    assert disk.read(FILE) == b"synced and not"
    assert disk.power_loss().read(FILE) == b"synced"


def test_a_power_cut_may_undo_a_cut_that_was_not_synced(disk: SimulatedDisk) -> None:
    handle = begin(disk, b"synced")
    disk.sync(handle, "test")
    disk.truncate(handle, 3, "test")
    assert disk.snapshot().power_loss().read(FILE) == b"synced"
    disk.sync(handle, "test")
    assert disk.power_loss().read(FILE) == b"syn"


def test_bytes_written_over_a_cut_replace_the_old_ones_with_the_sync(disk: SimulatedDisk) -> None:
    handle = begin(disk, b"abcdef")
    disk.sync(handle, "test")
    disk.truncate(handle, 2, "test")
    write_all(disk, handle, [b"XY"], "test")
    disk.sync(handle, "test")
    assert disk.power_loss().read(FILE) == b"abXY"


def test_a_file_is_synced_by_its_path_too(disk: SimulatedDisk) -> None:
    begin(disk, b"x")
    disk.sync_path(FILE, "test")
    assert disk.power_loss().read(FILE) == b"x"


def test_bytes_lost_by_a_failed_sync_are_not_brought_back_by_the_next_one(
    disk: SimulatedDisk,
) -> None:
    """Linux marks the pages clean; whoever syncs again is told that all is well."""
    handle = begin(disk, b"lost")
    disk.lose_dirty(handle)
    write_all(disk, handle, [b"kept"], "test")
    disk.sync(handle, "test")
    assert disk.read(FILE) == b"lostkept", "the page cache still has it"
    assert disk.power_loss().read(FILE) == b"\0\0\0\0kept"


def test_a_random_power_cut_keeps_some_sectors_in_no_order(disk: SimulatedDisk) -> None:
    handle = begin(disk, b"s" * SECTOR_BYTES)
    disk.sync(handle, "test")
    write_all(disk, handle, [b"d" * (20 * SECTOR_BYTES)], "test")
    images = {disk.snapshot().power_loss(random.Random(n)).read(FILE) for n in range(20)}
    assert len(images) > 5
    for image in images:
        assert image.startswith(b"s" * SECTOR_BYTES)
        kinds = [
            image[start : start + SECTOR_BYTES] for start in range(0, len(image), SECTOR_BYTES)
        ]
        assert set(kinds[1:]) <= {b"d" * SECTOR_BYTES, bytes(SECTOR_BYTES)}
    assert any(bytes(SECTOR_BYTES) in image for image in images), "holes are zeros"


def test_a_random_power_cut_leaves_a_mix_of_what_was_written_over_and_what_was_there(
    disk: SimulatedDisk,
) -> None:
    durable(disk, b"o" * 4 * SECTOR_BYTES)
    handle = disk.reuse(FILE, "test", SECTOR_BYTES)
    write_all(disk, handle, [b"n" * 2 * SECTOR_BYTES], "test")
    images = {disk.snapshot().power_loss(random.Random(n)).read(FILE) for n in range(20)}
    sectors = {tuple(image[::SECTOR_BYTES].decode()) for image in images}
    assert sectors == {tuple("oooo"), tuple("onoo"), tuple("oono"), tuple("onno")}
    disk.sync(handle, "test")
    assert disk.power_loss().read(FILE)[::SECTOR_BYTES] == b"onno"


def test_a_random_power_cut_is_repeated_by_its_seed(disk: SimulatedDisk) -> None:
    begin(disk, b"d" * (20 * SECTOR_BYTES))
    images = {disk.snapshot().power_loss(random.Random(4)).read(FILE) for _ in range(5)}
    assert len(images) == 1


@given(
    pieces=st.lists(st.tuples(st.integers(1, 1200), st.booleans()), max_size=6),
    seed=st.none() | st.integers(0, 2**32),
)
def test_whatever_was_synced_survives_every_power_cut(
    pieces: list[tuple[int, bool]], seed: int | None
) -> None:
    disk = SimulatedDisk()
    disk.make_dir(DIR, "test")
    disk.sync_dir(ROOT, "test")
    handle = begin(disk)
    written = synced = b""
    for number, (size_bytes, and_sync) in enumerate(pieces, start=1):
        write_all(disk, handle, [bytes([number]) * size_bytes], "test")
        written += bytes([number]) * size_bytes
        if and_sync:
            disk.sync(handle, "test")
            synced = written
    image = disk.power_loss(None if seed is None else random.Random(seed)).read(FILE)
    assert image.startswith(synced)
    assert len(image) <= len(written)
    assert all(byte in (0, right) for byte, right in zip(image, written, strict=False))


# Power loss: names.


def test_a_power_cut_forgets_a_name_whose_directory_was_not_synced(disk: SimulatedDisk) -> None:
    write_file(disk, FILE, [b"synced bytes, unsynced name"], "test")
    assert names(disk.power_loss()) == []


def test_a_power_cut_keeps_a_name_whose_directory_was_synced(disk: SimulatedDisk) -> None:
    durable(disk, b"x")
    assert disk.power_loss().read(FILE) == b"x"


def test_a_power_cut_brings_back_what_was_removed_without_a_sync(disk: SimulatedDisk) -> None:
    durable(disk, b"x")
    disk.unlink(FILE, "test")
    assert disk.snapshot().power_loss().read(FILE) == b"x"
    disk.sync_dir(DIR, "test")
    assert names(disk.power_loss()) == []


def test_a_power_cut_undoes_a_rename_without_a_sync(disk: SimulatedDisk) -> None:
    durable(disk, b"new")
    durable(disk, b"old", OTHER)
    disk.rename(FILE, OTHER, "test")
    lost = disk.snapshot().power_loss()
    assert (lost.read(FILE), lost.read(OTHER)) == (b"new", b"old")
    disk.sync_dir(DIR, "test")
    kept = disk.power_loss()
    assert names(kept) == ["other"]
    assert kept.read(OTHER) == b"new"


def test_a_power_cut_forgets_a_link_whose_directory_was_not_synced(disk: SimulatedDisk) -> None:
    handle = begin(disk, b"x")
    disk.sync(handle, "test")
    disk.sync_dir(FILE.parent, "test")
    disk.link(FILE, OTHER, "test")
    assert not disk.snapshot().power_loss().exists(OTHER)
    disk.sync_dir(OTHER.parent, "test")
    assert disk.snapshot().power_loss().read(OTHER) == b"x"


def test_two_names_of_a_file_survive_with_the_same_bytes(disk: SimulatedDisk) -> None:
    begin(disk, b"d" * (20 * SECTOR_BYTES))
    used_bytes = disk.used_bytes(FILE.parent)
    disk.link(FILE, OTHER, "test")
    disk.sync_dir(FILE.parent, "test")
    assert disk.used_bytes(FILE.parent) == used_bytes
    for seed in range(5):
        after = disk.snapshot().power_loss(random.Random(seed))
        assert after.read(FILE) == after.read(OTHER)


def test_a_rename_between_directories_needs_both_to_be_synced(disk: SimulatedDisk) -> None:
    target = PurePath("/target")
    disk.make_dir(target, "test")
    disk.sync_dir(ROOT, "test")
    durable(disk, b"x")
    disk.rename(FILE, target / "file", "test")
    disk.sync_dir(target, "test")
    half = disk.snapshot().power_loss()
    assert (names(half), names(half, target)) == (["file"], [])
    disk.sync_dir(DIR, "test")
    whole = disk.power_loss()
    assert (names(whole), names(whole, target)) == ([], ["file"])


def test_a_directory_comes_back_with_what_was_durable_in_it(disk: SimulatedDisk) -> None:
    durable(disk, b"x")
    disk.rename(DIR, PurePath("/moved"), "test")
    write_file(disk, PurePath("/moved/later"), [b"y"], "test")
    assert names(disk.snapshot().power_loss()) == ["file"]
    disk.sync_dir(ROOT, "test")
    assert names(disk.power_loss(), PurePath("/moved")) == ["file"]


def test_a_random_power_cut_keeps_a_prefix_of_the_unsynced_names(disk: SimulatedDisk) -> None:
    for number in range(5):
        write_file(disk, DIR / f"{number}", [b"x"], "test")
    kept = {tuple(names(disk.snapshot().power_loss(random.Random(n)))) for n in range(50)}
    assert kept == {tuple("01234"[:count]) for count in range(6)}


# Space, and a disk that cannot be written.


def small(blocks: int) -> SimulatedDisk:
    """Return a disk with so many free blocks beside its root."""
    disk = SimulatedDisk()
    disk.fill()
    assert disk.capacity_bytes is not None
    disk.capacity_bytes += blocks * BLOCK_BYTES
    return disk


def free_blocks(disk: SimulatedDisk) -> float:
    return disk.free_bytes(ROOT) / BLOCK_BYTES


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    disk = small(4)
    handle = disk.create(PurePath("/file"), "test")  # an inode, and the root's first block of names
    assert disk.write(handle, [bytes(BLOCK_BYTES + 1)], "test") == BLOCK_BYTES + 1
    assert disk.free_bytes(ROOT) == 0
    assert disk.write(handle, [bytes(BLOCK_BYTES)], "test") == BLOCK_BYTES - 1
    with pytest.raises(OSError, match="no space left") as full:
        disk.write(handle, [b"e"], "test")
    assert full.value.errno == errno.ENOSPC
    assert disk.write(handle, [b""], "test") == 0
    disk.truncate(handle, 4, "test")
    assert disk.write(handle, [b"fgh"], "test") == 3
    assert disk.read(PurePath("/file")) == bytes(4) + b"fgh"


def test_a_quota_that_is_used_up_says_so(disk: SimulatedDisk) -> None:
    disk.fill()
    disk.full_errno = errno.EDQUOT
    for used_up in (disk, disk.snapshot(), disk.snapshot().power_loss()):
        with pytest.raises(OSError, match="quota") as full:
            used_up.create(FILE, "test")
        assert full.value.errno == errno.EDQUOT


def test_a_full_disk_takes_no_new_name_until_something_is_unlinked(disk: SimulatedDisk) -> None:
    durable(disk, b"x")
    disk.fill()
    for call in (
        lambda: disk.create(DIR / "new", "test"),
        lambda: disk.make_dir(DIR / "new", "test"),
        lambda: disk.rename(FILE, OTHER, "test"),
        lambda: disk.link(FILE, OTHER, "test"),
    ):
        with pytest.raises(OSError, match="no space left"):
            call()
    disk.make_dir(DIR, "test")  # it is there
    disk.unlink(FILE, "test")
    assert free_blocks(disk) == 2
    disk.make_dir(DIR / "new", "test")


def test_what_is_full_stays_full_for_the_next_process(disk: SimulatedDisk) -> None:
    durable(disk, b"x")
    disk.fill()
    for survivor in (disk.snapshot(), disk.snapshot().power_loss()):
        assert survivor.free_bytes(ROOT) == 0
        survivor.unlink(FILE, "test")
        assert free_blocks(survivor) == 2


def test_a_file_removed_while_it_is_open_costs_its_blocks_until_it_is_closed() -> None:
    disk = small(10)
    handle = disk.create(PurePath("/file"), "test")
    disk.write(handle, [bytes(3 * BLOCK_BYTES)], "test")
    disk.unlink(PurePath("/file"), "test")
    assert free_blocks(disk) == 5
    assert disk.used_bytes(ROOT) == 2 * BLOCK_BYTES  # nothing that has a name
    disk.close(handle)
    assert free_blocks(disk) == 9
    assert free_blocks(disk.kill()) == 9


def test_files_and_folders_cost_whole_blocks_and_names_cost_too() -> None:
    disk = SimulatedDisk()
    disk.make_dir(DIR, "test")
    empty_bytes = disk.used_bytes(DIR)
    for number in range(65):
        write_file(disk, DIR / f"{number}", [b"x"], "test")
    assert disk.used_bytes(DIR / "0") == 2 * BLOCK_BYTES
    assert disk.used_bytes(DIR) - empty_bytes == (65 * 2 + 2) * BLOCK_BYTES
    for number in range(65):
        disk.unlink(DIR / f"{number}", "test")
    assert disk.used_bytes(DIR) - empty_bytes == 2 * BLOCK_BYTES  # a folder gives nothing back


def test_a_read_only_disk_is_read_and_changed_by_nothing(disk: SimulatedDisk) -> None:
    durable(disk, b"x")
    handle = begin(disk, b"y", OTHER)
    disk.read_only = True
    assert disk.read(FILE) == b"x"
    for call in (
        lambda: disk.create(DIR / "new", "test"),
        lambda: disk.write(handle, [b"z"], "test"),
        lambda: disk.sync(handle, "test"),
        lambda: disk.unlink(FILE, "test"),
        lambda: disk.rename(FILE, OTHER, "test"),
        lambda: disk.link(FILE, OTHER, "test"),
        lambda: disk.make_dir(DIR / "new", "test"),
        lambda: disk.lock(DIR / "LOCK", "nobody"),
    ):
        with pytest.raises(OSError, match="read-only") as refused:
            call()
        assert refused.value.errno == errno.EROFS
    assert names(disk) == ["file", "other"]


# For the tests.


def test_damage_is_durable_at_once(disk: SimulatedDisk) -> None:
    durable(disk, b"content")
    disk.overwrite(FILE, 2, b"XX")
    disk.put(OTHER, b"placed")
    lost = disk.power_loss()
    assert (lost.read(FILE), lost.read(OTHER)) == (b"coXXent", b"placed")
