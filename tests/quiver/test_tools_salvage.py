"""Salvage: whatever is sound comes out, nothing false does, and the rest is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pytest
from tests.quiver.batches import quiet_segments
from tests.quiver.machine import (
    QUARANTINE,
    ROOT,
    SEGMENTS,
    WAL,
    Machine,
    contents,
    disk_with,
    quiet,
    remove_wal,
    segment,
)
from tests.quiver.reading import acknowledge

from holdfast.errors import BadInput, CannotOpen, Fenced, WrongQuiver
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.base.frame import Frame
from holdfast.quiver.log.wal import decode_header, walk
from holdfast.quiver.segments import manifest
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import Severity
from holdfast.quiver.tools.salvage import Salvaged, salvage
from holdfast.seam import Seam
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

NEW = PurePath("/new")
LEDGER = ROOT / "ledger"


def seam(disk: SimulatedDisk, machine: Machine) -> Seam:
    return Seam(disk, machine.clock, seeded_randomness(77))


def fill(quiver: Quiver) -> None:
    """Two segments, the first with several slots and a control bundle, and a tail of three."""
    quiver.register("archive")
    quiver.register("metrics")
    quiver.append_raw([b"0", b"zero"], headers=[{"a": "b"}, None], producer="p", epoch=1)
    quiver.heartbeat("p", 7)
    quiver.append({"events": pa.record_batch({"n": [1, 2]}), "b": pa.record_batch({"s": ["x"]})})
    quiver.append_raw(b"3", slot="b")
    quiver.flush()
    quiver.append_raw(b"4")
    quiver.append(pa.record_batch({"word": pa.array(["w", "v"]).dictionary_encode()}))
    quiver.flush()
    acknowledge(quiver, "archive", 5)
    for number in (6, 7, 8):
        quiver.append_raw(b"%d" % number, producer="q", epoch=number)


def everything(quiver: Quiver, count: int = 9) -> dict[int, Any]:
    """Return what can be read of every bundle, without what only a bundle table knows."""
    found: dict[int, Any] = {}
    for seq in range(count):
        bundle = quiver.bundle(seq)
        if bundle is not None:
            slots = {name: batch.to_pylist() for name, batch in bundle.sound_slots.items()}
            found[seq] = (bundle.kind, slots, bundle.ingestion_ns // 1000)
    return found


@pytest.fixture
def left(machine: Machine) -> Machine:
    fill(machine.start())
    machine.kill()
    return machine


def expected_of(machine: Machine) -> dict[int, Any]:
    with Quiver.open(ROOT, quiet(), seam=seam(machine.disk.snapshot(), machine)) as quiver:
        return everything(quiver)


def save(machine: Machine) -> Salvaged:
    return salvage(seam(machine.disk, machine), ROOT, NEW, lambda _: None)


def reopened(machine: Machine) -> Quiver:
    machine.stop()
    machine.quiver = Quiver.open(NEW, quiet(), seam=seam(machine.disk, machine))
    return machine.quiver


def check_accounts(quiver: Quiver, *, lost: tuple[int, int] = (0, 0)) -> None:
    """`metrics` had read nothing, so all that is lost is lost to it."""
    for name in ("archive", "metrics"):
        assert quiver.balance(name).holds
    assert quiver.balance("metrics").accepted == (9, 12)
    assert quiver.balance("metrics").outcomes[Outcome.DAMAGED] == lost


def test_a_sound_directory_comes_out_whole(left: Machine) -> None:
    expected = expected_of(left)
    assert len(expected) == 9
    result = save(left)
    assert (result.segments_copied, result.saved, result.lost) == (2, (9, 12), (0, 0))
    assert (result.from_log, result.from_damaged_segments) == ((3, 3), (0, 0))
    assert result.subscribers == ["archive", "metrics"]
    assert result.findings == []
    quiver = reopened(left)
    assert everything(quiver) == expected
    check_accounts(quiver)
    assert quiver.balance("archive").pending == (4, 5)


def test_the_wreck_is_untouched(left: Machine) -> None:
    left.scribble(segment(left) / "manifest", 0, 8192)
    before = contents(left.disk)
    save(left)
    assert contents(left.disk) == before


def test_what_comes_out_is_another_quiver(left: Machine) -> None:
    original = left.start().quiver_id
    left.kill()
    result = save(left)
    assert result.quiver_id != original
    with pytest.raises(WrongQuiver):
        Quiver.open(NEW, quiet(), seam=seam(left.disk, left), expected_id=original)
    quiver = reopened(left)
    with pytest.raises(Fenced):
        quiver._engine.ledger.check_generation("archive", 1)
    assert quiver.append_raw(b"6", producer="q", epoch=8).duplicate
    assert quiver.append_raw(b"new").seq > 8
    assert fsck(seam(left.disk, left), NEW).ok


# One thing is lost.


def damage_footer(machine: Machine) -> None:
    path = segment(machine) / "000-events.arrow"
    machine.flip(path, 8 * (len(machine.disk.read(path)) - 20))


def lose_wal_headers(machine: Machine) -> None:
    for path in machine.wal_paths():
        machine.scribble(path, 0, 8192)


def set_aside_by_a_start(machine: Machine) -> None:
    """The next owner moves what it cannot read to quarantine."""
    machine.scribble(segment(machine) / "manifest", 0, 8192)
    machine.start()
    machine.kill()
    assert machine.disk.exists(QUARANTINE)


def lose_manifests(machine: Machine) -> None:
    for place in (0, 1):
        machine.scribble(segment(machine, place) / "manifest", 0, 8192)


HARMLESS: dict[str, Callable[[Machine], None]] = {
    "FORMAT": lambda m: m.disk.unlink(ROOT / "FORMAT", "test"),
    "a bundle table": lambda m: m.disk.unlink(segment(m) / "bundles.arrow", "test"),
    "a manifest": lambda m: m.scribble(segment(m) / "manifest", 0, 8192),
    "all manifests": lose_manifests,
    "a footer": damage_footer,
    "the headers of the log": lose_wal_headers,
    "a segment's name": lambda m: m.disk.rename(
        segment(m), SEGMENTS / "0000000000000044-0-3-4-6", "test"
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_nothing_is_lost_with(left: Machine, what: str) -> None:
    expected = expected_of(left)
    HARMLESS[what](left)
    result = save(left)
    quiver = reopened(left)
    assert everything(quiver) == expected
    assert result.saved == (9, 12)
    assert result.lost == (0, 0)
    check_accounts(quiver)


def test_a_manifest_and_a_bundle_table_together_cost_no_events(left: Machine) -> None:
    expected = expected_of(left)
    left.scribble(segment(left) / "manifest", 0, 8192)
    left.scribble(segment(left) / "bundles.arrow", 0, 500)
    result = save(left)
    assert result.unverified == (4, 6)
    assert result.lost == (0, 0)
    assert everything(reopened(left)) == expected


def test_what_a_start_set_aside_is_found_in_quarantine(left: Machine) -> None:
    expected = expected_of(left)
    set_aside_by_a_start(left)
    result = save(left)
    assert result.saved.events == 12
    quiver = reopened(left)
    assert everything(quiver) == expected
    assert all(quiver.balance(name).holds for name in ("archive", "metrics"))


def test_a_log_without_its_header_in_quarantine_is_read(left: Machine) -> None:
    expected = expected_of(left)
    lose_wal_headers(left)
    left.start()
    left.kill()
    assert any(".wal" in entry.name for entry in left.disk.list(QUARANTINE))
    save(left)
    assert everything(reopened(left)) == expected


def test_a_header_and_the_first_frame_cost_one_bundle(left: Machine) -> None:
    expected = expected_of(left)
    path = left.wal_paths()[-1]
    left.scribble(path, 0, 8192 + 90)
    save(left)
    found = everything(reopened(left))
    assert found == {seq: expected[seq] for seq in expected if seq != 6}


def test_without_the_log_what_is_sealed_comes_out(left: Machine) -> None:
    expected = expected_of(left)
    remove_wal(left)
    result = save(left)
    assert result.saved == (6, 9)
    quiver = reopened(left)
    assert everything(quiver) == {seq: expected[seq] for seq in range(6)}
    assert all(quiver.balance(name).holds for name in ("archive", "metrics"))
    assert quiver.append_raw(b"new").seq > 8


def test_without_the_ledger_everything_is_there_and_nobody_is_registered(left: Machine) -> None:
    expected = expected_of(left)
    for entry in left.disk.list(LEDGER):
        left.disk.unlink(LEDGER / entry.name, "test")
    result = save(left)
    assert result.subscribers == []
    assert everything(reopened(left)) == expected


def test_a_damaged_batch_costs_its_bundles_and_they_are_counted(left: Machine) -> None:
    """The second slot of bundle 2, and bundle 3, share a file."""
    expected = expected_of(left)
    summary = manifest.decode(left.disk.read(segment(left) / "manifest"))
    (file,) = [file for file in summary.files if file.slot == "b" and file.kind == "raw"]
    left.flip(segment(left) / file.name, 8 * (file.batches[0].offset + 500))
    result = save(left)
    assert result.lost == (1, 1)
    (finding,) = result.findings
    assert finding.severity is Severity.ERROR
    assert finding.seqs == ((0, 3),)
    assert "3 of 4 bundles saved" in finding.what
    quiver = reopened(left)
    assert everything(quiver) == {seq: expected[seq] for seq in expected if seq != 3}
    check_accounts(quiver, lost=(1, 1))


def test_a_damaged_footer_renames_no_column(left: Machine) -> None:
    """The footer repeats the schema; only the first one is under a checksum of a batch."""
    expected = expected_of(left)
    (path,) = [
        segment(left, 1) / entry.name
        for entry in left.disk.list(segment(left, 1))
        if b"word" in left.disk.read(segment(left, 1) / entry.name)
    ]
    left.flip(path, 8 * left.disk.read(path).rindex(b"word"))
    assert save(left).unverified == (0, 0)
    assert everything(reopened(left)) == expected


def test_a_damaged_frame_costs_its_bundle_and_is_counted(left: Machine) -> None:
    expected = expected_of(left)
    path = left.wal_paths()[-1]
    left.flip(path, 8 * (8192 + 90))
    result = save(left)
    assert result.lost == (1, 1)
    quiver = reopened(left)
    assert everything(quiver) == {seq: expected[seq] for seq in expected if seq != 6}
    check_accounts(quiver, lost=(1, 1))


def test_a_missing_file_is_not_passed_off_as_whole_bundles(left: Machine) -> None:
    """The bundle table, where it can be read, knows what is missing also without a manifest."""
    expected = expected_of(left)
    left.scribble(segment(left) / "manifest", 0, 8192)
    for entry in left.disk.list(segment(left)):
        if entry.name.endswith("-b.arrow"):
            left.disk.unlink(segment(left) / entry.name, "test")
    result = save(left)
    found = everything(reopened(left))
    assert set(found) == set(expected) - {2, 3}
    assert all(found[seq] == expected[seq] for seq in found)
    assert result.lost == (2, 4)


def test_a_file_cut_short_gives_what_comes_before_the_cut(machine: Machine) -> None:
    quiver = machine.start(quiet_segments(target_size_bytes=16 << 20))
    for number in range(6):
        quiver.append_raw([b"%d-%d" % (number, row) + bytes(100_000) for row in range(10)])
    quiver.flush()
    machine.stop()
    path = segment(machine) / "000-events.arrow"
    machine.cut(path, len(machine.disk.read(path)) // 2)
    result = save(machine)
    assert result.saved == (3, 30)
    assert result.lost == (3, 30)
    assert set(everything(reopened(machine))) == {0, 1, 2}


def test_what_belongs_to_another_quiver_is_left_out(left: Machine) -> None:
    with Machine() as other:
        other._starts = 50  # another id
        quiver = other.start()
        quiver.append_raw(b"foreign")
        quiver.flush()
        other.stop()
        foreign = segment(other)
        for path, content in contents(other.disk, foreign).items():
            left.disk.make_dir(foreign, "test")
            left.disk.put(path, content)
        left.disk.put(WAL / "0000000000000088.wal", other.disk.read(other.wal_paths()[0]))
    expected = expected_of(left)
    result = save(left)
    assert ["another quiver" in finding.what for finding in result.findings] == [True, True]
    assert everything(reopened(left)) == expected


def test_deleted_segments_that_came_back_stay_deleted(machine: Machine) -> None:
    quiver = machine.start()
    quiver.register("archive")
    quiver.append_raw(b"event")
    quiver.flush()
    path, before = segment(machine), contents(machine.disk, SEGMENTS)
    acknowledge(quiver, "archive")
    quiver._engine.retention.tick()
    machine.stop()
    machine.disk.make_dir(path, "test")
    for name, content in before.items():
        machine.disk.put(name, content)
    result = save(machine)
    assert result.segments_copied == 0
    assert reopened(machine).balance("archive").holds


def test_a_salvaged_quiver_survives_kills_while_it_seals(left: Machine) -> None:
    """The counts in the headers stay right whichever file is the oldest."""
    left.scribble(segment(left) / "manifest", 0, 8192)
    expected = expected_of(left)
    save(left)
    for _ in range(3):
        quiver = reopened(left)
        check_accounts(quiver)
        left.kill()
    quiver = reopened(left)
    quiver.flush()
    left.kill()
    quiver = reopened(left)
    check_accounts(quiver)
    assert len(everything(quiver)) >= len(expected)


def test_bad_targets_are_refused(left: Machine) -> None:
    with pytest.raises(BadInput, match="inside the other"):
        salvage(seam(left.disk, left), ROOT, ROOT / "new", lambda _: None)
    left.disk.make_dir(NEW, "test")
    left.disk.put(NEW / "precious", b"")
    with pytest.raises(BadInput, match="not empty"):
        save(left)
    with pytest.raises(CannotOpen, match="no quiver"):
        salvage(seam(left.disk, left), PurePath("/nothing"), NEW, lambda _: None)


# Anything may be damaged, anywhere.


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(40))
def test_after_random_damage_nothing_false_comes_out(left: Machine, seed: int) -> None:
    """Every bundle is as it was, or says what it lacks, or is missing and counted."""
    dice = random.Random(seed)
    expected = expected_of(left)
    paths = sorted(path for path in contents(left.disk) if path.name != "LOCK")
    for _ in range(dice.randint(1, 4)):
        path = dice.choice(paths)
        size = len(left.disk.read(path))
        start = dice.randrange(size)
        kind = dice.random()
        if kind < 0.2:
            left.cut(path, start)
        elif kind < 0.4:
            left.scribble(path, start, min(size, start + 5000))
        else:
            left.flip(path, 8 * start + dice.randrange(8))
    result = save(left)
    quiver = reopened(left)
    found = everything(quiver)
    for seq in found if result.unverified == (0, 0) else ():
        bundle = quiver.bundle(seq)
        assert bundle is not None
        kind, slots, ingestion_us = expected[seq]
        sound = {slot: rows for slot, rows in slots.items() if slot not in bundle.damaged_slots}
        assert found[seq] == (kind, sound, ingestion_us)
    assert len(found) == result.saved.bundles
    for name in quiver.subscribers():
        assert quiver.balance(name).holds


def test_a_header_is_found_by_any_frame(left: Machine) -> None:
    """The salt that every frame gives away is the one that the header had."""
    path = left.wal_paths()[-1]
    content = left.disk.read(path)
    header = decode_header(memoryview(content))
    frames = [f for f in walk(memoryview(content), header.salt) if isinstance(f, Frame)]
    assert len(frames) == 3
    for frame in frames[:-1]:
        wreck = Machine(disk_with({**contents(left.disk)}))
        wreck.disk.overwrite(path, 0, bytes(frame.end))
        result = salvage(seam(wreck.disk, left), ROOT, NEW, lambda _: None)
        assert result.from_log.bundles == frames.index(frames[-1]) - frames.index(frame)
