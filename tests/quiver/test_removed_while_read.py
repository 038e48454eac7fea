"""A segment that retention removes while somebody reads is gone, not damaged."""

from __future__ import annotations

import pytest
from tests.quiver.machine import ROOT, Machine

from holdfast.errors import Damaged
from holdfast.quiver import Quiver
from holdfast.quiver.segments.segment import Segment


def fill(quiver: Quiver) -> list[Segment]:
    """Make two segments of two bundles each."""
    for number in range(4):
        quiver.append_raw(b"%d" % number)
        if number % 2:
            quiver.flush()
    return list(quiver.segments())


def remove(machine: Machine, quiver: Quiver, segment: Segment) -> None:
    """Do what retention does, once everybody has an outcome for everything in a segment."""
    quiver._engine.catalog.remove(segment)
    machine.disk.rename(segment.path, ROOT / "trash" / segment.path.name, "test")


def test_references_go_on_behind_a_segment_that_went(machine: Machine) -> None:
    quiver = machine.start()
    segments = fill(quiver)
    quiver.append_raw(b"tail")
    found = quiver._engine.readable.refs(0)
    assert [next(found).seq, next(found).seq] == [0, 1]
    remove(machine, quiver, segments[1])
    assert [ref.seq for ref in found] == [4]


def test_references_backwards_too(machine: Machine) -> None:
    quiver = machine.start()
    segments = fill(quiver)
    quiver.append_raw(b"tail")
    found = quiver._engine.readable.refs_back(5)
    first = next(found)
    remove(machine, quiver, segments[0])
    assert [first.seq, *(ref.seq for ref in found)] == [4, 3, 2]


def test_a_bundle_that_goes_while_it_is_looked_up_is_not_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = machine.start()
    segments = fill(quiver)
    catalog = quiver._engine.catalog
    find = catalog.find

    def find_and_remove(seq: int) -> Segment | None:
        segment = find(seq)
        if segment is segments[0]:
            remove(machine, quiver, segment)
        return segment

    monkeypatch.setattr(catalog, "find", find_and_remove)
    assert quiver.bundle(0) is None


def test_nobody_looks_into_a_segment_before_the_place_he_reads_from(machine: Machine) -> None:
    """It may be on its way to the trash: everyone has it."""
    quiver = machine.start()
    first, second = fill(quiver)
    quiver.append_raw(b"tail")
    readable = quiver._engine.readable
    assert [part for part in readable._parts(4) if isinstance(part, Segment)] == []
    assert [part for part in readable._parts(3) if isinstance(part, Segment)] == [second]
    assert [part for part in readable._parts(1) if isinstance(part, Segment)] == [first, second]


def test_damage_is_still_damage(machine: Machine) -> None:
    """A segment whose files are all gone, and that nobody removed, is not passed over."""
    quiver = machine.start()
    (first, _) = fill(quiver)
    for entry in machine.disk.list(first.path):
        machine.disk.unlink(first.path / entry.name, "test")
    machine.disk.remove_dir(first.path, "test")
    with pytest.raises(Damaged):
        list(quiver._engine.readable.refs(0))
