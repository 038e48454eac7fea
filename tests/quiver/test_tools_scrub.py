"""scrub: every flipped bit is found and told with its seqs; nothing else is."""

from __future__ import annotations

from pathlib import PurePath

import pyarrow as pa
import pytest
from tests.quiver.batches import quiet_segments
from tests.quiver.machine import ROOT, SEGMENTS, Machine, contents

from holdfast.quiver import Quiver
from holdfast.quiver.base import names
from holdfast.quiver.ledger.log import read_ledger_file
from holdfast.quiver.segments import manifest
from holdfast.quiver.tools.inspect import Report, Severity
from holdfast.quiver.tools.scrub import scrub, total_bytes

LEDGER = ROOT / "ledger"


def fill(quiver: Quiver) -> None:
    """One segment of ten bundles in twenty record batches, and a tail."""
    quiver.register("archive")
    quiver.register("metrics")
    for number in range(10):
        quiver.append_raw([b"%d-%d" % (number, row) + bytes(55_000) for row in range(8)])
    quiver.flush()
    quiver.append_raw(b"tail")
    quiver.append_raw(b"end")


@pytest.fixture
def filled(machine: Machine) -> Machine:
    fill(machine.start(quiet_segments(target_size_bytes=16 << 20)))
    machine.kill()
    return machine


def segment(machine: Machine) -> PurePath:
    return SEGMENTS / machine.disk.list(SEGMENTS)[0].name


def check(machine: Machine) -> Report:
    return scrub(machine.disk, ROOT, lambda _: None)


def test_a_sound_directory_has_no_findings_and_is_read_to_the_last_byte(filled: Machine) -> None:
    read: list[int] = []
    report = scrub(filled.disk, ROOT, read.append)
    assert report.findings == []
    assert sum(read) == report.size_bytes == total_bytes(filled.disk, ROOT)
    # What is in the reserve means nothing.
    places = (ROOT, ROOT / names.RESERVE_DIR)
    files = [path for path in contents(filled.disk) if path.parent not in places]
    assert report.files == len(files)


def test_nothing_is_changed(filled: Machine) -> None:
    filled.flip(segment(filled) / "000-events.arrow", 8 * 5000)
    before = contents(filled.disk)
    check(filled)
    assert contents(filled.disk) == before


@pytest.mark.parametrize(
    ("batch", "seqs"), [(0, ((0, 0),)), (1, ((0, 0),)), (2, ((1, 1),)), (19, ((9, 9),))]
)
def test_a_damaged_batch_is_told_with_its_bundles(
    filled: Machine, batch: int, seqs: tuple[tuple[int, int], ...]
) -> None:
    """Four rows of 55 kB fit into 256 kB: half a bundle."""
    summary = manifest.decode(filled.disk.read(segment(filled) / "manifest"))
    place = summary.files[0].batches[batch]
    filled.flip(segment(filled) / "000-events.arrow", 8 * (place.offset + place.length // 2))
    (finding,) = check(filled).findings
    assert finding.severity is Severity.ERROR
    assert finding.where.endswith("/000-events.arrow")
    assert f"record batch {batch}" in finding.what
    assert finding.seqs == seqs
    assert "backup" in finding.next


def test_a_damaged_footer_is_a_warning(filled: Machine) -> None:
    path = segment(filled) / "000-events.arrow"
    filled.flip(path, 8 * (len(filled.disk.read(path)) - 20))
    (finding,) = check(filled).findings
    assert finding.severity is Severity.WARNING
    assert "schema or footer" in finding.what
    assert "nothing is lost" in finding.next


def test_damaged_dictionaries_cost_all_batches(machine: Machine) -> None:
    quiver = machine.start(quiet_segments(target_size_bytes=16 << 20))
    for number in range(4):
        words = pa.array([f"{number}-{row}" + "x" * 100_000 for row in range(10)])
        quiver.append(pa.record_batch({"word": words.dictionary_encode()}))
    machine.stop()
    summary = manifest.decode(machine.disk.read(segment(machine) / "manifest"))
    batches = summary.files[0].batches
    assert len(batches) > 1
    machine.flip(segment(machine) / "000-events.arrow", 8 * (batches[0].offset - 5000))
    found = [finding.severity for finding in check(machine).findings]
    assert found == [Severity.ERROR] * len(batches) + [Severity.WARNING]


def test_one_damaged_copy_of_two_is_a_warning(filled: Machine) -> None:
    filled.flip(segment(filled) / "manifest", 8 * 100)
    filled.flip(filled.wal_paths()[-1], 8 * 100)
    filled.flip(LEDGER / filled.disk.list(LEDGER)[-1].name, 8 * 5000)
    report = check(filled)
    assert [finding.severity for finding in report.findings] == [Severity.WARNING] * 3
    assert all("of its two copies" in f.what or "of the two" in f.what for f in report.findings)
    assert report.ok


def test_a_damaged_bundle_table_is_a_warning(filled: Machine) -> None:
    filled.flip(segment(filled) / "bundles.arrow", 8 * 100)
    (finding,) = check(filled).findings
    assert finding.severity is Severity.WARNING
    assert "served from the rows" in finding.what


def test_damage_behind_a_damaged_bundle_table_is_told_too(filled: Machine) -> None:
    filled.flip(segment(filled) / "bundles.arrow", 8 * 100)
    filled.flip(segment(filled) / "000-events.arrow", 8 * 500_000)
    findings = check(filled).findings
    assert [f.severity for f in findings] == [Severity.WARNING, Severity.ERROR]
    # Nobody can tell that bundle 0 ends with the batch before.
    assert findings[1].seqs == ((0, 1),)


def test_a_damaged_frame_is_told_with_its_seq(filled: Machine) -> None:
    filled.flip(filled.wal_paths()[-1], 8 * (8192 + 90))
    (finding,) = check(filled).findings
    assert finding.seqs == ((10, 10),)


def test_a_damaged_line_of_the_ledger_is_told(filled: Machine) -> None:
    path = LEDGER / filled.disk.list(LEDGER)[-1].name
    checkpoint, *lines = read_ledger_file(filled.disk, path).items
    assert len(lines) > 1
    filled.flip(path, 8 * (checkpoint.end + 90))
    (finding,) = check(filled).findings
    assert finding.where.startswith("ledger/")
    assert "readers may get" in finding.next


def test_a_lost_manifest_is_told(filled: Machine) -> None:
    filled.scribble(segment(filled) / "manifest", 0, 1 << 20)
    (finding,) = check(filled).findings
    assert "nothing in it can be checked" in finding.what


@pytest.mark.parametrize("suffix", ["events.arrow", ".wal", ".log", "manifest"])
def test_a_file_that_cannot_be_read_is_a_finding_not_the_end(filled: Machine, suffix: str) -> None:
    for path in contents(filled.disk):
        if path.name.endswith(suffix):
            filled.disk.spoil(path, 0, 1 << 30)
    report = scrub(filled.disk, ROOT, lambda _: None)
    assert not report.ok
    assert all("cannot be read" in finding.what for finding in report.findings)


def test_a_segment_removed_while_it_is_scrubbed_is_no_damage(filled: Machine) -> None:
    path = segment(filled)

    def remove(_: int) -> None:
        if filled.disk.exists(path):
            for entry in filled.disk.list(path):
                filled.disk.unlink(path / entry.name, "test")
            filled.disk.remove_dir(path, "test")

    assert scrub(filled.disk, ROOT, remove).findings == []
