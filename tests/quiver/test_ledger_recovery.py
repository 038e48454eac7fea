"""Reading the ledger back: damaged in the middle, at the end, or at its very beginning."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from tests.readers.ledgers import LEDGER, QUIVER_ID, begin, empty_disk, line, recover, subscriber

from holdfast.errors import StorageFailed, UnknownFormat
from holdfast.quiver.base.frame import Frame, Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger.log import read_ledger_file
from holdfast.quiver.ledger.recovery import recover_ledger
from holdfast.quiver.ledger.subscriber import Outcome
from holdfast.quiver.log.wal import BLOCK_BYTES, encode_block
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedDisk


def paths(disk: SimulatedDisk) -> list[PurePath]:
    return [LEDGER / entry.name for entry in disk.list(LEDGER)]


def starts(disk: SimulatedDisk, path: PurePath) -> list[int]:
    """Return where the checkpoint and each line begin."""
    items = read_ledger_file(disk, path).items
    assert all(isinstance(item, Frame) for item in items)
    return [BLOCK_BYTES, *(item.end for item in items[:-1])]


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a file of five lines (a registration, then seqs 0 to 3), and one of three more.

    Of those the first two are known to have been synced.
    """
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    for seq in range(4):
        ledger.resolve([line("archive", seq, seq + 1)])
    ledger._rotate()
    for seq in (4, 5):
        ledger.resolve([line("archive", seq, seq + 1)])
    ledger.sync()
    ledger.resolve([line("archive", 6, 7)])
    ledger.close()
    return disk.snapshot()


def resolved(disk: SimulatedDisk) -> list[tuple[int, int]]:
    return list(recover(disk).state.subscribers["archive"].resolved)


def test_only_lines_after_the_newest_checkpoint_are_replayed(disk: SimulatedDisk) -> None:
    recovered = recover(disk)
    assert resolved(disk) == [(0, 7)]
    assert recovered.replayed_lines == 3
    assert recovered.next_number == 3
    assert [path for path, _, _ in recovered.files] == paths(disk)


def test_a_damaged_line_in_the_middle_costs_that_line_alone(disk: SimulatedDisk) -> None:
    newest = paths(disk)[-1]
    disk.overwrite(newest, starts(disk, newest)[1] + 90, b"\xff\xff")
    recovered = recover(disk)
    assert resolved(disk) == [(0, 4), (5, 7)]
    assert recovered.damaged_bytes > 0
    assert recovered.torn_bytes == 0


def test_a_damaged_line_header_in_the_middle_costs_that_line_alone(disk: SimulatedDisk) -> None:
    newest = paths(disk)[-1]
    disk.overwrite(newest, starts(disk, newest)[1], bytes(16))
    assert resolved(disk) == [(0, 4), (5, 7)]


def test_a_torn_line_at_the_end_is_dropped(disk: SimulatedDisk) -> None:
    newest = paths(disk)[-1]
    disk.put(newest, disk.read(newest)[:-20])
    recovered = recover(disk)
    assert resolved(disk) == [(0, 6)]
    assert recovered.damaged_bytes == 0
    assert recovered.torn_bytes > 0


def test_nothing_is_taken_from_behind_a_hole_that_a_power_cut_left() -> None:
    """A commit counts what the one before it left over; taken alone it would count too little."""
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    ledger.resolve([line("archive", 0, 1)])
    ledger.resolve([line("archive", 0, 1, Outcome.ACKED)._replace(counts=Totals(0, 0))])
    newest = paths(disk)[-1]
    disk.overwrite(newest, starts(disk, newest)[2], bytes(16))
    recovered = recover(disk)
    assert resolved(disk) == []
    assert recovered.damaged_bytes == 0
    assert recovered.torn_bytes > 200


def test_a_damaged_checkpoint_is_made_up_from_the_file_before_and_all_lines_since(
    disk: SimulatedDisk,
) -> None:
    newest = paths(disk)[-1]
    disk.overwrite(newest, BLOCK_BYTES + 100, b"\xff" * 8)
    recovered = recover(disk)
    assert resolved(disk) == [(0, 7)]
    assert recovered.replayed_lines == 9, "with the one that names the newest file"


def test_the_newest_file_lost_with_both_copies_of_its_header_is_set_aside(
    disk: SimulatedDisk,
) -> None:
    newest = paths(disk)[-1]
    disk.overwrite(newest, 0, bytes(BLOCK_BYTES))
    recovered = recover(disk)
    assert resolved(disk) == [(0, 4)]
    assert recovered.unreadable == [(newest, "both copies of the header are damaged")]
    assert recovered.next_number == 3, "its number is not used again"


@pytest.mark.parametrize("size_bytes", [0, 100, BLOCK_BYTES])
def test_a_file_whose_beginning_was_interrupted_is_no_damage(
    disk: SimulatedDisk, size_bytes: int
) -> None:
    path = LEDGER / "0000000000000003.log"
    disk.put(path, bytes(size_bytes))
    recovered = recover(disk)
    assert (recovered.unreadable, recovered.interrupted) == ([], [path])
    assert recovered.next_number == 4
    assert resolved(disk) == [(0, 7)]


def test_one_damaged_copy_of_the_header_costs_nothing(disk: SimulatedDisk) -> None:
    disk.overwrite(paths(disk)[-1], 0, bytes(BLOCK_BYTES // 2))
    recovered = recover(disk)
    assert resolved(disk) == [(0, 7)]
    assert recovered.unreadable == []


def test_without_any_sound_checkpoint_the_sound_lines_are_still_applied(
    disk: SimulatedDisk,
) -> None:
    for path in paths(disk):
        disk.overwrite(path, BLOCK_BYTES + 100, b"\xff" * 8)
    assert resolved(disk) == [(0, 7)], "the registration was a line of the first file"


def test_an_empty_folder_is_an_empty_ledger() -> None:
    recovered = recover(empty_disk())
    assert recovered.state.subscribers == {}
    assert (recovered.next_number, recovered.files) == (1, [])


def test_files_that_are_not_this_quivers_ledger_are_set_aside(disk: SimulatedDisk) -> None:
    disk.put(LEDGER / "notes.txt", b"foreign")
    disk.put(LEDGER / "0000000000000009.log", bytes(BLOCK_BYTES + 1))
    recovered = recover_ledger(disk, LEDGER, {"00000000-0000-4000-8000-000000000000"})
    reasons = {path.name: reason for path, reason in recovered.unreadable}
    assert reasons == {
        "0000000000000001.log": f"a ledger of {QUIVER_ID}",
        "0000000000000002.log": f"a ledger of {QUIVER_ID}",
        "0000000000000009.log": "both copies of the header are damaged",
        "notes.txt": "not a ledger file's name",
    }
    assert recovered.state.subscribers == {}
    assert recovered.next_number == 10


def test_a_ledger_of_a_newer_version_is_refused(disk: SimulatedDisk) -> None:
    disk.put(LEDGER / "0000000000000003.log", encode_block(b"HFLDGR\r\n", 2, b""))
    with pytest.raises(UnknownFormat, match="ledger version 2"):
        recover(disk)


def test_lines_of_a_subscriber_that_is_gone_change_nothing(disk: SimulatedDisk) -> None:
    ledger = begin(disk)
    ledger.change("unregister", "archive")
    ledger.close()
    assert recover(disk).state.subscribers == {}


def test_a_file_whose_sync_failed_is_written_again_before_another_process_believes_it() -> None:
    """The kernel forgets a failed sync: the next one said yes, and the lines were nowhere."""
    disk = empty_disk()
    ledger = begin(disk, [Fault(QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=2)])
    ledger.register(subscriber("archive"))
    ledger.resolve([line("archive", 0, 1)])
    disk.fill()  # so that no other file can be begun
    with pytest.raises(StorageFailed):
        ledger.sync()
    disk = disk.kill()
    assert resolved(disk) == [(0, 1)]
    ledger = begin(disk)
    ledger.resolve([line("archive", 1, 2)])
    ledger.sync()
    assert resolved(disk.power_loss()) == [(0, 2)]


def test_a_file_that_cannot_be_written_again_is_not_gone_on_in() -> None:
    disk = empty_disk()
    ledger = begin(disk)
    ledger.register(subscriber("archive"))
    disk.fill()
    disk = disk.kill()
    ledger = begin(disk, [Fault(QuiverPoint.RECOVER_SYNC, FaultKind.FAILED_SYNC)])
    with pytest.raises(StorageFailed):
        ledger.resolve([line("archive", 0, 1)])
    assert resolved(disk.kill()) == []
