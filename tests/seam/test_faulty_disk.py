"""Every fault strikes at the step and the call it names, and nowhere else."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from holdfast.seam.disk import Disk, Handle, RealDisk, write_all
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk
from holdfast.seam.simulated_files import BLOCK_BYTES

FILE = PurePath("/file")
KILLS = [FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER]


def faulty(*faults: Fault) -> tuple[FaultyDisk, SimulatedDisk]:
    simulated = SimulatedDisk()
    return FaultyDisk(simulated, faults, simulated.die), simulated


def opened(*faults: Fault) -> tuple[FaultyDisk, SimulatedDisk, Handle]:
    disk, simulated = faulty(*faults)
    return disk, simulated, disk.create(FILE, "create")


# Which call.


@pytest.mark.parametrize(("nth", "times"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_a_fault_strikes_the_nth_call_and_as_many_after_it_as_told(nth: int, times: int) -> None:
    disk, _, handle = opened(Fault("here", FaultKind.EIO, nth=nth, times=times))
    struck = []
    for call in range(1, 7):
        disk.write(handle, [b"x"], "elsewhere")
        try:
            disk.write(handle, [b"x"], "here")
        except OSError:
            struck.append(call)
    assert struck == list(range(nth, nth + times))
    assert disk.calls() == {"create": 1, "elsewhere": 6, "here": 6}


def test_faults_of_different_steps_do_not_disturb_each_other() -> None:
    disk, _, handle = opened(
        Fault("a", FaultKind.EIO), Fault("b", FaultKind.ENOSPC, nth=2), Fault("b", FaultKind.EIO)
    )
    errors = []
    for at in ("a", "b", "a", "b", "b"):
        try:
            disk.write(handle, [b"x"], at)
        except OSError as error:
            errors.append((at, error.errno))
    assert errors == [("a", errno.EIO), ("b", errno.EIO), ("b", errno.ENOSPC)]


def test_a_healed_disk_has_no_faults_left() -> None:
    disk, _, handle = opened(Fault("here", FaultKind.EIO, times=1000))
    with pytest.raises(OSError, match="here"):
        disk.write(handle, [b"x"], "here")
    disk.heal()
    assert disk.write(handle, [b"x"], "here") == 1


# Errors.


@pytest.mark.parametrize(
    ("kind", "code"), [(FaultKind.ENOSPC, errno.ENOSPC), (FaultKind.EIO, errno.EIO)]
)
def test_a_call_that_fails_changes_nothing(kind: FaultKind, code: int) -> None:
    disk, simulated = faulty(Fault("here", kind, times=1000))
    simulated.make_dir(PurePath("/dir"), "test")
    simulated.put(PurePath("/other"), b"kept")
    handle = disk.create(FILE, "fine")
    disk.write(handle, [b"12345"], "fine")
    calls: list[Callable[[], object]] = [
        lambda: disk.create(PurePath("/new"), "here"),
        lambda: disk.write(handle, [b"x"], "here"),
        lambda: disk.sync(handle, "here"),
        lambda: disk.sync_path(FILE, "here"),
        lambda: disk.truncate(handle, 0, "here"),
        lambda: disk.make_dir(PurePath("/made"), "here"),
        lambda: disk.rename(FILE, PurePath("/other"), "here"),
        lambda: disk.link(FILE, PurePath("/other"), "here"),
        lambda: disk.unlink(FILE, "here"),
        lambda: disk.remove_dir(PurePath("/dir"), "here"),
        lambda: disk.sync_dir(PurePath("/"), "here"),
    ]
    for call in calls:
        with pytest.raises(OSError, match="injected") as failed:
            call()
        assert failed.value.errno == code
    assert [entry.name for entry in simulated.list(PurePath("/"))] == ["dir", "file", "other"]
    assert simulated.read(FILE) == b"12345"
    assert simulated.read(PurePath("/other")) == b"kept"


def test_a_short_write_puts_half_down_and_the_next_write_finds_the_disk_full() -> None:
    disk, simulated, handle = opened(Fault("here", FaultKind.SHORT_WRITE))
    with pytest.raises(OSError, match="no space left"):
        write_all(disk, handle, [b"123", b"456", b"78"], "here")
    assert simulated.read(FILE) == b"1234"
    assert write_all(disk, handle, [b"9"], "here") == 1
    assert simulated.read(FILE) == b"12349"


def test_a_failed_sync_loses_the_unsynced_bytes_for_good() -> None:
    disk, simulated, handle = opened(Fault("here", FaultKind.FAILED_SYNC))
    disk.sync_dir(PurePath("/"), "test")
    disk.write(handle, [b"lost"], "test")
    with pytest.raises(OSError, match="sync failed"):
        disk.sync(handle, "here")
    disk.sync(handle, "here")
    assert simulated.read(FILE) == b"lost"
    assert simulated.power_loss().read(FILE) == b""


def test_a_failed_sync_of_a_directory_leaves_its_names_unsynced() -> None:
    disk, simulated, _ = opened(Fault("here", FaultKind.FAILED_SYNC))
    with pytest.raises(OSError, match="sync failed"):
        disk.sync_dir(PurePath("/"), "here")
    assert not simulated.snapshot().power_loss().exists(FILE)
    disk.sync_dir(PurePath("/"), "here")
    assert simulated.power_loss().exists(FILE)


def test_a_failed_sync_by_path_fails() -> None:
    disk, _, _ = opened(Fault("here", FaultKind.FAILED_SYNC))
    with pytest.raises(OSError, match="sync failed"):
        disk.sync_path(FILE, "here")


# Death.


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (FaultKind.KILL_BEFORE, b""),
        (FaultKind.KILL_MIDWAY, b"1234"),
        (FaultKind.KILL_AFTER, b"12345678"),
    ],
)
def test_a_kill_strikes_before_amid_or_after_a_write(kind: FaultKind, content: bytes) -> None:
    disk, simulated, handle = opened(Fault("here", kind))
    with pytest.raises(SimulatedCrash):
        disk.write(handle, [b"1234", b"5678"], "here")
    with pytest.raises(SimulatedCrash):
        disk.read(FILE)
    assert simulated.kill().read(FILE) == content


@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize("step", ["create", "make_dir", "rename", "link", "unlink", "remove_dir"])
def test_a_kill_strikes_before_or_after_a_change_of_names(kind: FaultKind, step: str) -> None:
    disk, simulated = faulty(Fault("here", kind))
    simulated.put(FILE, b"x")
    simulated.make_dir(PurePath("/dir"), "test")
    changes: dict[str, Callable[[], object]] = {
        "create": lambda: disk.create(PurePath("/new"), "here"),
        "make_dir": lambda: disk.make_dir(PurePath("/new"), "here"),
        "rename": lambda: disk.rename(FILE, PurePath("/new"), "here"),
        "link": lambda: disk.link(FILE, PurePath("/new"), "here"),
        "unlink": lambda: disk.unlink(FILE, "here"),
        "remove_dir": lambda: disk.remove_dir(PurePath("/dir"), "here"),
    }
    with pytest.raises(SimulatedCrash):
        changes[step]()
    after = {
        "create": ["dir", "file", "new"],
        "make_dir": ["dir", "file", "new"],
        "rename": ["dir", "new"],
        "link": ["dir", "file", "new"],
        "unlink": ["dir"],
        "remove_dir": ["file"],
    }
    names = [entry.name for entry in simulated.kill().list(PurePath("/"))]
    assert names == (["dir", "file"] if kind is FaultKind.KILL_BEFORE else after[step])


@pytest.mark.parametrize("kind", KILLS)
def test_a_kill_strikes_before_or_after_a_sync(kind: FaultKind) -> None:
    disk, simulated, handle = opened(Fault("here", kind))
    disk.sync_dir(PurePath("/"), "test")
    disk.write(handle, [b"x"], "test")
    with pytest.raises(SimulatedCrash):
        disk.sync(handle, "here")
    assert simulated.power_loss().read(FILE) == (b"" if kind is FaultKind.KILL_BEFORE else b"x")


def test_a_real_kill_ends_the_process_without_a_word(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import PurePath
from holdfast.seam.disk import RealDisk, write_file
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real
disk = FaultyDisk(RealDisk(), [Fault("test.sync", FaultKind.KILL_BEFORE)], die_for_real)
try:
    write_file(disk, PurePath(sys.argv[1]), [b"written"], "test")
finally:
    print("never said")
"""
    path = tmp_path / "file"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")
    assert path.read_bytes() == b"written"


def test_a_failed_sync_of_the_real_disk_fails_too(tmp_path: Path) -> None:
    """It cannot lose bytes there; whoever relies on the failure still sees it."""
    inner: Disk = RealDisk()
    disk = FaultyDisk(inner, [Fault("here", FaultKind.FAILED_SYNC)], SimulatedDisk().die)
    handle = disk.create(tmp_path / "file", "test")
    with pytest.raises(OSError, match="sync failed"):
        disk.sync(handle, "here")
    disk.close(handle)


# A disk that is full, and stays so.


def test_a_disk_that_stays_full_takes_nothing_until_something_is_unlinked() -> None:
    disk, simulated, handle = opened(Fault("here", FaultKind.STAYS_FULL, nth=2))
    disk.write(handle, [b"x"], "here")
    disk.write(handle, [b"y"], "here")  # into a block that the file has
    for _ in range(3):
        with pytest.raises(OSError, match="no space left"):
            write_all(disk, handle, [bytes(BLOCK_BYTES)], "elsewhere")
        with pytest.raises(OSError, match="no space left"):
            disk.create(PurePath("/other"), "create")
    disk.truncate(handle, 2, "undo")
    disk.close(handle)
    disk.unlink(FILE, "unlink")
    disk.create(PurePath("/other"), "create")
    assert simulated.read(PurePath("/other")) == b""


def test_only_a_disk_that_can_be_filled_stays_full(tmp_path: Path) -> None:
    disk = FaultyDisk(RealDisk(), [Fault("here", FaultKind.STAYS_FULL)], SimulatedDisk().die)
    with pytest.raises(TypeError, match="RealDisk cannot be filled"):
        disk.make_dir(tmp_path / "new", "here")
