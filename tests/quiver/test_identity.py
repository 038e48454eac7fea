"""Who a data directory is: FORMAT, claims of its files, strangers, and a lost sequence floor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import (
    NO_SEAL,
    QUARANTINE,
    ROOT,
    SEGMENTS,
    WAL,
    Machine,
    contents,
    disk_with,
    payloads,
    quiet,
)

from holdfast.errors import CannotOpen, DirectoryLocked, WrongQuiver
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.identity import read_identity
from holdfast.quiver.base.names import wal_file
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.wal import SEQ_BLOCK
from holdfast.seam.faulty import Fault, FaultKind

FORMAT = ROOT / "FORMAT"


def with_sealed_and_unsealed(machine: Machine) -> str:
    """Leave a killed quiver with the bundles 0 and 1 in a segment and 2 in the WAL."""
    quiver = machine.start()
    quiver.append_raw(b"0")
    quiver.append_raw(b"1")
    quiver.flush()
    quiver.append_raw(b"2")
    machine.kill()
    return quiver.quiver_id


EVERYTHING = {n: [b"%d" % n] for n in range(3)}


def former_ids(machine: Machine) -> tuple[str, ...]:
    identity = read_identity(machine.disk, ROOT)
    assert identity is not None
    return identity.former_ids


# The id stays.


def test_a_new_directory_gets_an_id_and_keeps_it(machine: Machine) -> None:
    first = machine.start()
    assert first.recovery.new_identity
    machine.stop()
    second = machine.start()
    assert second.quiver_id == first.quiver_id
    assert not second.recovery.new_identity
    machine.kill()
    assert machine.start().quiver_id == first.quiver_id


@pytest.mark.parametrize("content", [b"", b"{}", b"garbage\ngarbage\n", b"\xff" * 300, None])
def test_a_damaged_or_missing_format_file_is_written_again_from_what_the_files_say(
    machine: Machine, content: bytes | None
) -> None:
    quiver_id = with_sealed_and_unsealed(machine)
    if content is None:
        machine.disk.unlink(FORMAT, "test")
    else:
        machine.disk.put(FORMAT, content)
    quiver = machine.start()
    assert quiver.quiver_id == quiver_id
    assert not quiver.recovery.new_identity
    assert payloads(quiver) == EVERYTHING
    assert len(quiver.recovery.damages) == (content is not None)
    machine.kill()
    assert machine.start(expected_id=quiver_id).recovery.damages == []


# The id that was asked for.


def test_the_expected_quiver_is_opened(machine: Machine) -> None:
    quiver_id = with_sealed_and_unsealed(machine)
    assert machine.start(expected_id=quiver_id).quiver_id == quiver_id


def test_another_quiver_than_the_expected_one_is_refused_and_left_alone(machine: Machine) -> None:
    with_sealed_and_unsealed(machine)
    before = contents(machine.disk)
    with pytest.raises(WrongQuiver, match="not 00000000") as refused:
        machine.start(expected_id="00000000-0000-4000-8000-000000000000")
    assert refused.value.path == str(ROOT)
    assert contents(machine.disk) == before
    assert payloads(machine.start()) == EVERYTHING


def test_an_empty_directory_is_refused_when_a_quiver_is_expected_there(machine: Machine) -> None:
    """The disk is not mounted: nothing must be begun in its place."""
    with pytest.raises(WrongQuiver):
        machine.start(expected_id="00000000-0000-4000-8000-000000000000")
    assert not machine.disk.exists(FORMAT)


def test_a_quiver_that_must_take_a_new_id_is_refused_under_the_old_one_and_left_alone(
    machine: Machine,
) -> None:
    quiver_id = with_sealed_and_unsealed(machine)
    for path in machine.wal_paths():
        machine.disk.unlink(path, "test")
    before = contents(machine.disk)
    with pytest.raises(WrongQuiver, match="sequence floor"):
        machine.start(expected_id=quiver_id)
    assert contents(machine.disk) == before


# Strangers.


def other_quiver() -> tuple[str, dict[PurePath, bytes]]:
    with Machine() as other:
        other.start().append_raw(b"elsewhere")  # draws what the first machine drew
        other.kill()
        quiver = other.start()
        for path in other.wal_paths():
            other.disk.unlink(path, "test")
        other.kill()
        quiver = other.start()  # has lost its floor: an id of its own
        quiver.append_raw(b"foreign sealed")
        quiver.flush()
        quiver.append_raw(b"foreign")
        other.kill()
        return quiver.quiver_id, contents(other.disk)


def test_a_wal_file_of_another_quiver_is_quarantined_and_not_read(machine: Machine) -> None:
    quiver_id = with_sealed_and_unsealed(machine)
    foreign_id, files = other_quiver()
    foreign = max(path for path in files if path.parent == WAL)
    machine.disk.put(WAL / wal_file(77), files[foreign])
    quiver = machine.start()
    assert quiver.quiver_id == quiver_id
    assert foreign_id != quiver_id
    assert payloads(quiver) == EVERYTHING
    (damage,) = quiver.recovery.damages
    assert (damage.source, damage.reason) == (wal_file(77), f"a WAL file of quiver {foreign_id}")
    assert machine.disk.read(QUARANTINE / f"{wal_file(77)}.1") == files[foreign]


def test_a_segment_of_another_quiver_is_quarantined_and_not_read(machine: Machine) -> None:
    with_sealed_and_unsealed(machine)
    foreign_id, files = other_quiver()
    (folder,) = {path.parent for path in files if path.name == "manifest"}
    machine.disk.make_dir(folder, "test")
    for path, content in files.items():
        if path.parent == folder:
            machine.disk.put(path, content)
    quiver = machine.start()
    assert payloads(quiver) == EVERYTHING
    (damage,) = quiver.recovery.damages
    assert damage.source == folder.name
    assert damage.reason == f"a segment of quiver {foreign_id}"
    assert machine.disk.exists(QUARANTINE / f"{folder.name}.1" / "manifest")


@pytest.mark.parametrize("name", ["notes.txt", "0000000000000001.wal.bak", "1.wal", ".DS_Store"])
@pytest.mark.parametrize("folder", [WAL, SEGMENTS])
def test_a_file_with_a_strange_name_is_set_aside(
    machine: Machine, folder: PurePath, name: str
) -> None:
    with_sealed_and_unsealed(machine)
    machine.disk.put(folder / name, b"anything")
    quiver = machine.start()
    assert payloads(quiver) == EVERYTHING
    assert [damage.source for damage in quiver.recovery.damages] == [name]
    assert machine.disk.read(QUARANTINE / f"{name}.1") == b"anything"


def test_a_directory_with_the_name_of_a_wal_file_is_set_aside(machine: Machine) -> None:
    with_sealed_and_unsealed(machine)
    machine.disk.make_dir(WAL / wal_file(50), "test")
    quiver = machine.start()
    assert payloads(quiver) == EVERYTHING
    assert [damage.source for damage in quiver.recovery.damages] == [wal_file(50)]


def test_a_file_with_the_name_of_a_segment_is_set_aside(machine: Machine) -> None:
    with_sealed_and_unsealed(machine)
    name = "0000000000000009-10-20-1-1"
    machine.disk.put(SEGMENTS / name, b"anything")
    quiver = machine.start()
    assert payloads(quiver) == EVERYTHING
    assert [damage.source for damage in quiver.recovery.damages] == [name]


# The sequence floor.


def test_a_quiver_without_its_wal_gets_a_new_id_and_its_segments_stay_readable(
    machine: Machine,
) -> None:
    quiver_id = with_sealed_and_unsealed(machine)
    for path in machine.wal_paths():
        machine.disk.unlink(path, "test")
    quiver = machine.start()
    assert quiver.quiver_id != quiver_id
    assert quiver.recovery.new_identity
    assert payloads(quiver) == {0: [b"0"], 1: [b"1"]}
    assert quiver.append_raw(b"new").seq > 1
    assert former_ids(machine) == (quiver_id,)
    machine.kill()
    again = machine.start()
    assert again.quiver_id == quiver.quiver_id
    assert not again.recovery.new_identity
    assert [events for _, events in sorted(payloads(again).items())] == [[b"0"], [b"1"], [b"new"]]


def test_an_emptied_store_gets_a_new_id(machine: Machine) -> None:
    quiver_id = with_sealed_and_unsealed(machine)
    machine.disk = disk_with({FORMAT: machine.disk.read(FORMAT)})
    quiver = machine.start()
    assert quiver.quiver_id != quiver_id
    assert payloads(quiver) == {}


def test_starts_that_fail_again_and_again_do_not_grow_the_format_file(machine: Machine) -> None:
    """Only ids that stored data still carries are remembered."""
    quiver_id = with_sealed_and_unsealed(machine)
    for path in machine.wal_paths():
        machine.disk.unlink(path, "test")
    for _ in range(5):
        with pytest.raises(CannotOpen):
            machine.start(faults=[Fault(QuiverPoint.WAL_CREATE, FaultKind.EIO)])
        machine.kill()
    assert former_ids(machine) == (quiver_id,)
    quiver = machine.start()
    assert payloads(quiver) == {0: [b"0"], 1: [b"1"]}


def test_numbering_goes_on_after_everything_was_drained_and_the_quiver_restarted(
    machine: Machine,
) -> None:
    """Upstream gave the same numbers again, and new data counted as acknowledged."""
    quiver = machine.start()
    for n in range(5):
        quiver.append_raw(b"%d" % n)
    machine.stop()
    machine.start()  # the first file goes once there is a second
    machine.stop()
    machine.disk = disk_with(
        {path: c for path, c in contents(machine.disk).items() if SEGMENTS not in path.parents}
    )
    quiver = machine.start()
    assert payloads(quiver) == {}
    assert quiver.append_raw(b"new").seq == 5


def test_numbering_after_an_unclean_end_skips_what_may_have_been_given_out(
    machine: Machine,
) -> None:
    quiver = machine.start(quiet(AckLevel.WRITTEN))
    given = [quiver.append_raw(b"x").seq for _ in range(3)]
    machine.cut_power()
    quiver = machine.start()
    assert payloads(quiver) == {}
    assert quiver.append_raw(b"y").seq == SEQ_BLOCK > max(given)


def test_a_closed_file_does_not_set_the_number_when_a_newer_file_has_lost_its_header(
    machine: Machine,
) -> None:
    """The clean end of one process says nothing about the numbers of the next."""
    machine.start(faults=[NO_SEAL]).append_raw(b"0")
    machine.stop()
    quiver = machine.start(faults=[NO_SEAL])
    assert quiver.recovery.clean_shutdown
    given = quiver.append_raw(b"1").seq
    machine.kill()
    newest = machine.wal_paths()[-1]
    machine.scribble(newest, 0, 8192)
    quiver = machine.start()
    assert not quiver.recovery.clean_shutdown
    assert [damage.source for damage in quiver.recovery.damages] == [newest.name]
    assert quiver.append_raw(b"2").seq > given


def test_an_older_file_copied_under_a_newer_number_does_not_set_the_number(
    machine: Machine,
) -> None:
    machine.start(faults=[NO_SEAL]).append_raw(b"0")
    machine.stop()
    quiver = machine.start(quiet(AckLevel.WRITTEN), faults=[NO_SEAL])
    lost = quiver.append_raw(b"1").seq
    machine.cut_power()
    first, *_ = machine.wal_paths()
    machine.disk.put(WAL / wal_file(60), machine.disk.read(first))
    quiver = machine.start()
    assert payloads(quiver) == {0: [b"0"]}
    assert not quiver.recovery.clean_shutdown
    assert quiver.append_raw(b"2").seq > lost


def test_a_stray_file_with_the_highest_number_does_not_end_the_numbering_of_files(
    machine: Machine,
) -> None:
    with_sealed_and_unsealed(machine)
    machine.disk.put(WAL / wal_file(10**16 - 1), b"anything")
    quiver = machine.start()
    quiver.append_raw(b"3")
    machine.kill()
    quiver = machine.start()
    assert [events for _, events in sorted(payloads(quiver).items())] == [
        [b"0"],
        [b"1"],
        [b"2"],
        [b"3"],
    ]


# One owner.


def test_a_second_quiver_on_the_same_directory_is_refused(machine: Machine) -> None:
    quiver = machine.start()
    with pytest.raises(DirectoryLocked, match="in use by process"):
        machine.start()
    quiver.append_raw(b"still working")
    quiver.close()
    assert payloads(machine.start()) == {0: [b"still working"]}


def test_a_second_process_on_the_same_directory_is_refused_until_the_first_ends(
    tmp_path: Path,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner:
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(DirectoryLocked, match=f"process {owner.pid}"):
            Quiver.open(tmp_path / "data")
        owner.kill()
        owner.wait(PATIENCE_S)
    with Quiver.open(tmp_path / "data") as quiver:
        assert payloads(quiver) == {0: [b"by the owner"]}


OWNER = """
import sys
from holdfast.quiver import Quiver
quiver = Quiver.open(sys.argv[1])
quiver.append_raw(b"by the owner")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_failed_open_lets_go_of_the_directory(machine: Machine) -> None:
    for fault in (
        Fault(QuiverPoint.FORMAT_CREATE, FaultKind.EIO),
        Fault(QuiverPoint.WAL_HEADER_SYNC, FaultKind.FAILED_SYNC),
    ):
        with pytest.raises(CannotOpen):
            machine.start(faults=[fault])
    machine.start()


def test_an_open_that_fails_by_a_bug_lets_go_of_the_directory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.quiver.log.recovery.Recovery.run", broken)
        with pytest.raises(ZeroDivisionError):
            machine.start()
    machine.start()
