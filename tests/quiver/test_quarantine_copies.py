"""What quarantine keeps survives interrupted copies, equal names, and notes of other programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import PurePath

import pytest

from holdfast.quiver.base import names
from holdfast.quiver.log.quarantine import Damage, Quarantine
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data")
FOLDER = ROOT / names.QUARANTINE_DIR
DAMAGE = Damage("0000000000000002.wal", "no frame begins here", 8192, 7, 3, 4, 2, 5)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(ROOT, "test")
    disk.sync_dir(PurePath("/"), "test")
    return disk


def copies(disk: SimulatedDisk) -> list[bytes]:
    found = [e.name for e in disk.list(FOLDER) if not e.name.endswith(".json")]
    return [disk.read(FOLDER / name) for name in found]


def test_a_copy_is_made_once_however_often_it_is_found(disk: SimulatedDisk) -> None:
    for _ in range(3):
        Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
    assert copies(disk) == [b"damaged"]
    assert Quarantine(disk, ROOT).damages() == [DAMAGE]


def test_an_interrupted_copy_is_not_taken_for_a_whole_one(disk: SimulatedDisk) -> None:
    Quarantine(disk, ROOT).copy(memoryview(b"dam"), DAMAGE)  # as a crash leaves it
    Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
    assert b"damaged" in copies(disk)


def test_a_copy_found_again_is_durable_afterwards(disk: SimulatedDisk) -> None:
    """A process died between writing the copy and syncing it; its WAL file may go now."""
    disk.make_dir(FOLDER, "test")
    disk.sync_dir(ROOT, "test")
    handle = disk.create(FOLDER / f"{DAMAGE.source}@{DAMAGE.offset}.1", "test")
    disk.write(handle, [b"damaged"], "test")
    Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
    assert copies(disk.power_loss()) == [b"damaged"]


def test_other_bytes_from_a_file_of_the_same_name_are_kept_beside(disk: SimulatedDisk) -> None:
    """WAL files are numbered from 1 again where `wal/` was emptied."""
    Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
    Quarantine(disk, ROOT).copy(memoryview(b"another"), DAMAGE)
    assert sorted(copies(disk)) == [b"another", b"damaged"]


def test_notes_of_a_newer_program_and_unreadable_ones_do_not_hide_the_others(
    disk: SimulatedDisk,
) -> None:
    Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
    newer = {**asdict(DAMAGE), "added_later": True}
    disk.put(FOLDER / "newer.1.json", json.dumps(newer).encode())
    disk.put(FOLDER / "torn.1.json", b'{"source": "x", "rea')
    damages = Quarantine(disk, ROOT).damages()
    assert [damage for damage in damages if damage == DAMAGE] == [DAMAGE, DAMAGE]
    assert [damage.source for damage in damages if damage != DAMAGE] == ["torn.1"]


@pytest.mark.parametrize("lost", ["", ".json"])
def test_a_copy_or_a_note_that_cannot_be_read_is_made_again(disk: SimulatedDisk, lost: str) -> None:
    """It held the log's file for ever, which was told as new damage at every start."""
    Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
    disk.spoil(FOLDER / f"{DAMAGE.source}@{DAMAGE.offset}.1{lost}", 0, 1)
    for _ in range(2):
        Quarantine(disk, ROOT).copy(memoryview(b"damaged"), DAMAGE)
        assert len(disk.list(FOLDER)) == 4
    assert disk.read(FOLDER / f"{DAMAGE.source}@{DAMAGE.offset}.2") == b"damaged"
    assert DAMAGE in Quarantine(disk, ROOT).damages()
