"""fsck: every kind of trouble is found, named, and comes with what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import pytest
from tests.quiver.machine import (
    QUARANTINE,
    ROOT,
    SEGMENTS,
    WAL,
    Machine,
    contents,
    quiet,
    remove_wal,
    segment,
)
from tests.quiver.reading import acknowledge
from xxhash import xxh3_64_hexdigest

from holdfast.errors import CannotOpen, UnknownFormat
from holdfast.quiver import Quiver
from holdfast.quiver.base import names
from holdfast.quiver.base.identity import BackupMarker, write_marker
from holdfast.quiver.segments import manifest
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import QuiverFinding, Report, Severity, as_ranges
from holdfast.seam import Seam
from holdfast.seam.disk import DirEntry

LEDGER = ROOT / "ledger"


def seam(machine: Machine) -> Seam:
    return Seam(machine.disk, machine.clock)


def fill(quiver: Quiver) -> None:
    """Two segments and a tail; one subscriber that has read the first segment."""
    quiver.register("archive")
    for number in range(3):
        quiver.append_raw([b"%d" % number, b"more"])
    quiver.flush()
    acknowledge(quiver, "archive", 2)
    quiver.append_raw(b"3")
    quiver.flush()
    quiver.append_raw(b"4")
    quiver.append_raw(b"5")


@pytest.fixture
def filled(machine: Machine) -> Machine:
    """A machine whose quiver was killed after some work."""
    fill(machine.start())
    machine.kill()
    return machine


def newest_ledger(machine: Machine) -> PurePath:
    return LEDGER / machine.disk.list(LEDGER)[-1].name


def worst(report: Report) -> QuiverFinding:
    return report.findings[0]


def test_a_quiver_that_was_closed_has_nothing_to_report(machine: Machine) -> None:
    fill(machine.start())
    machine.stop()
    report = fsck(seam(machine), ROOT)
    assert report.findings == []
    assert report.files > 4


def test_a_quiver_that_was_killed_is_sound(filled: Machine) -> None:
    assert fsck(seam(filled), ROOT).ok


def test_nothing_is_changed(filled: Machine) -> None:
    filled.scribble(segment(filled) / "manifest", 0, 8192)
    before = contents(filled.disk)
    fsck(seam(filled), ROOT)
    assert contents(filled.disk) == before


def test_a_directory_without_a_quiver_is_refused(machine: Machine) -> None:
    machine.disk.make_dir(ROOT, "test")
    with pytest.raises(CannotOpen):
        fsck(seam(machine), ROOT)


def test_what_a_newer_program_wrote_is_not_judged(filled: Machine) -> None:
    line = b'{"version":99}'
    filled.disk.put(ROOT / "FORMAT", line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n")
    with pytest.raises(UnknownFormat):
        fsck(seam(filled), ROOT)


Trouble = Callable[[Machine], None]


def mix_up_names(machine: Machine) -> None:
    path = segment(machine)
    machine.disk.rename(path, path.with_name(path.name.replace("-0-2-3-6", "-0-2-3-7")), "test")


def leave_building(machine: Machine) -> None:
    machine.disk.make_dir(SEGMENTS / "tmp-0000000000000009-1", "test")


def copy_segment(machine: Machine, name: str) -> None:
    machine.disk.make_dir(SEGMENTS / name, "test")
    for entry in machine.disk.list(segment(machine)):
        content = machine.disk.read(segment(machine) / entry.name)
        machine.disk.put(SEGMENTS / name / entry.name, content)


def overlap(machine: Machine, segment_seq: int = 9, last_seq: int = 1) -> None:
    """A second segment with other bounds, whose manifest agrees with its name."""
    summary = manifest.decode(machine.disk.read(segment(machine) / "manifest"))
    other = summary._replace(segment_seq=segment_seq, last_seq=last_seq, bundles=last_seq + 1)
    name = names.segment_dir(other.name)
    copy_segment(machine, name)
    machine.disk.put(SEGMENTS / name / "manifest", manifest.encode(other))


def leave_trash(machine: Machine) -> None:
    machine.disk.make_dir(ROOT / "trash" / "0000000000000001-0-2-3-6", "test")


def quarantine_a_segment(machine: Machine) -> None:
    machine.scribble(segment(machine) / "manifest", 0, 8192)
    machine.start()
    machine.stop()


TROUBLES: dict[str, tuple[Trouble, Severity, str, str, tuple[tuple[int, int], ...]]] = {
    "FORMAT is gone": (
        lambda m: m.disk.unlink(ROOT / "FORMAT", "test"),
        Severity.ERROR, "FORMAT", "missing or damaged", (),
    ),
    "FORMAT is damaged": (
        lambda m: m.flip(ROOT / "FORMAT", 100),
        Severity.ERROR, "FORMAT", "missing or damaged", (),
    ),
    "a strange name in the root": (
        lambda m: m.disk.put(ROOT / "notes.txt", b"hello"),
        Severity.NOTE, "notes.txt", "no name of a quiver's", (),
    ),
    "a WAL header is lost": (
        lambda m: m.scribble(m.wal_paths()[-1], 0, 8192),
        Severity.ERROR, "wal/0000000000000003.wal", "both copies of the header", (),
    ),
    "a WAL file that was never finished": (
        lambda m: m.disk.put(WAL / "0000000000000099.wal", b"abc"),
        Severity.NOTE, "wal/0000000000000099.wal", "being made", (),
    ),
    "a strange name in the WAL": (
        lambda m: m.disk.put(WAL / "7.wal", b"abc"),
        Severity.WARNING, "wal/7.wal", "not a WAL file's name", (),
    ),
    "a damaged frame": (
        lambda m: m.flip(m.wal_paths()[-1], (8192 + 90) * 8),
        Severity.ERROR, "wal/0000000000000003.wal at byte 8192", "1 bundles, 1 events are lost",
        ((4, 4),),
    ),
    "no WAL": (remove_wal, Severity.ERROR, "wal", "which numbers were given out", ()),
    "a torn end": (
        lambda m: m.cut(m.wal_paths()[-1], len(m.disk.read(m.wal_paths()[-1])) - 8),
        Severity.NOTE, "wal", "never acknowledged", (),
    ),
    "a segment being built": (
        leave_building, Severity.NOTE, "segments/tmp-0000000000000009-1", "being built", (),
    ),
    "a strange name among segments": (
        lambda m: m.disk.put(SEGMENTS / "x", b""),
        Severity.WARNING, "segments/x", "not a segment's name", (),
    ),
    "a lost manifest": (
        lambda m: m.scribble(segment(m) / "manifest", 0, 8192),
        Severity.ERROR, "segments/0000000000000001-0-2-3-6", "3 bundles, 6 events", ((0, 2),),
    ),
    "a name that disagrees with the manifest": (
        mix_up_names, Severity.ERROR, "segments/0000000000000001-0-2-3-7", "disagree", ((0, 2),),
    ),
    "a missing data file": (
        lambda m: m.disk.unlink(segment(m) / "000-events.arrow", "test"),
        Severity.ERROR, "segments/0000000000000001-0-2-3-6/000-events.arrow", "missing", ((0, 2),),
    ),
    "a data file cut short": (
        lambda m: m.cut(segment(m) / "000-events.arrow", 100),
        Severity.ERROR, "segments/0000000000000001-0-2-3-6/000-events.arrow", "it has 100 bytes",
        ((0, 2),),
    ),
    "a missing bundle table": (
        lambda m: m.disk.unlink(segment(m) / "bundles.arrow", "test"),
        Severity.WARNING, "segments/0000000000000001-0-2-3-6/bundles.arrow", "missing", ((0, 2),),
    ),
    "a file too many in a segment": (
        lambda m: m.disk.put(segment(m) / "x", b""),
        Severity.NOTE, "segments/0000000000000001-0-2-3-6/x", "no file of this segment", (),
    ),
    "overlapping segments": (
        overlap, Severity.ERROR, "segments/0000000000000009-0-1-2-6", "has too", ((0, 1),),
    ),
    "two segments with the same seqs": (
        lambda m: copy_segment(m, "0000000000000008-0-2-3-6"),
        Severity.WARNING, "segments/0000000000000008-0-2-3-6", "same seqs", ((0, 2),),
    ),
    "a lost ledger header": (
        lambda m: m.scribble(newest_ledger(m), 0, 8192),
        Severity.ERROR, "ledger/0000000000000001.log", "both copies of the header", (),
    ),
    "a damaged line in the ledger": (
        lambda m: m.flip(newest_ledger(m), (8192 + 300) * 8),
        Severity.ERROR, "ledger/0000000000000001.log", "do not match their checksum", (),
    ),
    "trash": (leave_trash, Severity.NOTE, "trash/0000000000000001-0-2-3-6", "being removed", ()),
    "something in quarantine": (
        quarantine_a_segment, Severity.WARNING, "quarantine/ 0000000000000001-0-2-3-6",
        "3 bundles, 6 events", ((0, 2),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_is_found(filled: Machine, name: str) -> None:
    make, severity, where, what, seqs = TROUBLES[name]
    make(filled)
    report = fsck(seam(filled), ROOT)
    found = [finding for finding in report.findings if finding.where == where]
    assert found, report.findings
    assert found[0].severity is severity
    assert what in found[0].what
    assert found[0].seqs == seqs
    assert found[0].next
    assert report.ok is (severity is not Severity.ERROR)


def test_what_is_lost_to_a_subscriber_shows_in_its_account(filled: Machine) -> None:
    filled.scribble(segment(filled, 1) / "manifest", 0, 8192)
    (account,) = [f for f in fsck(seam(filled), ROOT).findings if f.where == "subscriber archive"]
    assert "1 bundles, 1 events are unaccounted for" in account.what
    filled.start()
    filled.stop()
    assert [f.where for f in fsck(seam(filled), ROOT).findings if "subscriber" in f.where] == []


def test_a_segment_that_a_power_cut_brought_back_is_only_noted(machine: Machine) -> None:
    quiver = machine.start(quiet())
    quiver.register("archive")
    quiver.append_raw(b"event")
    quiver.flush()
    name = machine.disk.list(SEGMENTS)[0].name
    before = contents(machine.disk, SEGMENTS)
    acknowledge(quiver, "archive")
    quiver._engine.retention.tick()
    assert machine.disk.list(SEGMENTS) == []
    machine.stop()
    machine.disk.make_dir(SEGMENTS / name, "test")
    for path, content in before.items():
        machine.disk.put(path, content)
    (finding,) = fsck(seam(machine), ROOT).findings
    assert finding.severity is Severity.NOTE
    assert "brought it back" in finding.what


def test_an_unfinished_copy_is_an_error(filled: Machine) -> None:
    write_marker(filled.disk, ROOT, BackupMarker(1, False, "", 0))
    assert worst(fsck(seam(filled), ROOT)).what == "the copy was interrupted"
    filled.flip(ROOT / "BACKUP", 50)
    assert "does not match its checksum" in worst(fsck(seam(filled), ROOT)).what


def test_errors_come_first(filled: Machine) -> None:
    filled.disk.put(ROOT / "notes.txt", b"")
    filled.disk.unlink(ROOT / "FORMAT", "test")
    severities = [finding.severity for finding in fsck(seam(filled), ROOT).findings]
    assert severities == sorted(severities, key=list(Severity).index)
    assert severities[0] is Severity.ERROR
    assert not filled.disk.exists(QUARANTINE)


def test_a_segment_that_covers_several_is_named_with_each(filled: Machine) -> None:
    """Also with one that does not follow it: 0-3, then 0-2, then 3."""
    overlap(filled, segment_seq=0, last_seq=3)
    found = [f for f in fsck(seam(filled), ROOT).findings if "has too" in f.what]
    assert [(f.where, f.seqs) for f in found] == [
        ("segments/0000000000000001-0-2-3-6", ((0, 2),)),
        ("segments/0000000000000002-3-3-1-1", ((3, 3),)),
    ]
    assert all("0000000000000000-0-3-4-6" in f.what for f in found)


def test_numbers_become_ranges() -> None:
    assert as_ranges([5, 1, 2, 9, 3]) == ((1, 3), (5, 5), (9, 9))
    assert as_ranges([]) == ()


def test_a_segment_that_goes_while_it_is_looked_at_is_no_trouble(
    filled: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = segment(filled), filled.disk
    real_list = disk.list

    def list_and_remove(folder: PurePath) -> list[DirEntry]:
        if folder == path and disk.exists(path):
            disk.rename(path, ROOT / "gone", "test")
        return real_list(folder)

    monkeypatch.setattr(disk, "list", list_and_remove)
    assert [f for f in fsck(seam(filled), ROOT).findings if path.name in f.where] == []
