"""A block that cannot be read is EIO to whoever reads, and death to whoever mapped it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from holdfast.seam.disk import PAGE_BYTES, RealDisk, read_pages, write_file
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedBusError, SimulatedCrash, SimulatedDisk

FILE = PurePath("/file")
OTHER = PurePath("/other")
CONTENT = bytes(range(256)) * 64  # four pages


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    write_file(disk, FILE, [CONTENT], "test")
    disk.sync_dir(PurePath("/"), "test")
    return disk


def assert_unreadable(call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="input/output error") as caught:
        call()
    assert caught.value.errno == errno.EIO


def test_whatever_touches_the_block_fails_and_the_rest_is_read(disk: SimulatedDisk) -> None:
    disk.spoil(FILE, PAGE_BYTES, 2 * PAGE_BYTES)
    assert_unreadable(lambda: disk.read(FILE))
    assert_unreadable(lambda: disk.read_range(FILE, PAGE_BYTES - 1, 2))
    assert disk.read_range(FILE, 0, PAGE_BYTES) == CONTENT[:PAGE_BYTES]
    assert disk.read_range(FILE, 2 * PAGE_BYTES, 10**9) == CONTENT[2 * PAGE_BYTES :]


def test_the_block_stays_unreadable_under_another_name_and_in_another_life(
    disk: SimulatedDisk,
) -> None:
    disk.rename(FILE, OTHER, "test")
    disk.sync_dir(PurePath("/"), "test")
    disk.spoil(OTHER, 0, 1)
    for survivor in (disk.snapshot(), disk.power_loss()):
        assert_unreadable(lambda survivor=survivor: survivor.read(OTHER))  # type: ignore[misc]


def test_pages_that_cannot_be_read_are_zeros_and_named(disk: SimulatedDisk) -> None:
    disk.spoil(FILE, PAGE_BYTES + 7, 2 * PAGE_BYTES + 1)
    pages = read_pages(disk, FILE)
    assert pages.unreadable == ((PAGE_BYTES, 3 * PAGE_BYTES),)
    lost = bytes(2 * PAGE_BYTES)
    assert bytes(pages.view) == CONTENT[:PAGE_BYTES] + lost + CONTENT[3 * PAGE_BYTES :]
    assert pages.lacks(0, PAGE_BYTES + 1)
    assert not pages.lacks(0, PAGE_BYTES)
    assert not pages.lacks(3 * PAGE_BYTES, 4 * PAGE_BYTES)


def test_a_sound_file_has_no_such_pages(disk: SimulatedDisk) -> None:
    pages = read_pages(disk, FILE)
    assert (bytes(pages.view), pages.unreadable) == (CONTENT, ())


def test_another_failure_is_no_hole(disk: SimulatedDisk) -> None:
    with pytest.raises(FileNotFoundError):
        read_pages(disk, OTHER)


def test_mapping_a_bad_block_is_the_end_of_the_process(disk: SimulatedDisk) -> None:
    disk.spoil(FILE, 0, 1)
    with pytest.raises(SimulatedBusError):
        disk.map(FILE)
    with pytest.raises(SimulatedBusError):
        disk.exists(FILE)


def test_so_is_a_block_that_goes_bad_under_a_map(disk: SimulatedDisk) -> None:
    """A page is forced out of memory, and cannot be read again when it is touched."""
    part = disk.map(FILE)[10:20]
    disk.spoil(FILE, 3 * PAGE_BYTES, 4 * PAGE_BYTES)
    with pytest.raises(SimulatedBusError):
        disk.exists(FILE)
    assert len(part) == 10


def test_and_a_file_that_is_cut_under_a_map(disk: SimulatedDisk) -> None:
    view = disk.map(FILE)
    disk.cut(FILE, PAGE_BYTES)
    with pytest.raises(SimulatedBusError):
        disk.exists(FILE)
    del view


def test_a_map_that_nobody_holds_any_more_harms_nobody(disk: SimulatedDisk) -> None:
    assert bytes(disk.map(FILE)) == CONTENT
    disk.spoil(FILE, 0, 1)
    disk.cut(FILE, 1)
    assert disk.file_bytes(FILE) == 1


def test_a_cut_file_is_read_as_far_as_it_goes(disk: SimulatedDisk) -> None:
    disk.cut(FILE, 5000)
    assert disk.read_range(FILE, PAGE_BYTES, PAGE_BYTES) == CONTENT[PAGE_BYTES:5000]
    assert disk.file_bytes(FILE) == 5000


def test_a_fault_spoils_the_page_that_was_written_last(disk: SimulatedDisk) -> None:
    faulty = FaultyDisk(disk, [Fault("x.sync", FaultKind.BAD_BLOCK)], disk.die)
    write_file(faulty, OTHER, [CONTENT], "x")
    assert disk.unreadable(OTHER) == ((0, PAGE_BYTES),)
    assert disk.unreadable(FILE) == ()


def test_a_disk_that_loses_no_blocks_says_so(tmp_path: Path) -> None:
    def die() -> None:
        raise SimulatedCrash

    faulty = FaultyDisk(RealDisk(), [Fault("x", FaultKind.BAD_BLOCK)], die)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot lose a block"):
        faulty.make_dir(tmp_path / "dir", "x")


def test_a_real_file_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    disk = RealDisk()
    os.truncate(path, 5000)
    assert disk.read_range(path, PAGE_BYTES, PAGE_BYTES) == CONTENT[PAGE_BYTES:5000]
    assert disk.file_bytes(path) == 5000


def test_a_disk_that_gives_less_than_was_asked_for_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Stingy(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size, 700) if size is not None and size > 0 else size)

    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    monkeypatch.setattr("builtins.open", lambda path, mode, buffering: Stingy(path, mode))
    assert RealDisk().read_range(path, 100, 9000) == CONTENT[100:9100]


# Windows.


@pytest.fixture
def windows(disk: SimulatedDisk) -> SimulatedDisk:
    disk.windows = True
    return disk


def test_an_open_file_keeps_its_name_on_windows(windows: SimulatedDisk) -> None:
    folder = PurePath("/folder")
    windows.make_dir(folder, "test")
    handle = windows.create(folder / "open", "test")
    with pytest.raises(PermissionError):
        windows.unlink(folder / "open", "test")
    renames = ((folder / "open", OTHER), (FILE, folder / "open"), (folder, OTHER))
    for source, target in renames:
        with pytest.raises(PermissionError):
            windows.rename(source, target, "test")
    windows.close(handle)
    windows.rename(FILE, folder / "open", "test")
    windows.rename(folder, OTHER, "test")
    windows.unlink(OTHER / "open", "test")


def test_a_mapped_file_too_and_in_the_next_life_as_well(windows: SimulatedDisk) -> None:
    view = windows.map(FILE)
    with pytest.raises(PermissionError):
        windows.unlink(FILE, "test")
    del view
    windows.unlink(FILE, "test")
    assert windows.kill().windows
