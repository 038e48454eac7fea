"""Of two segments with the same seqs one is read, and the other is not deleted in doubt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import pytest
from tests.quiver.batches import column_of, data_paths, numbers, quiet_segments
from tests.quiver.machine import QUARANTINE, ROOT, SEGMENTS, Machine, contents

from holdfast.quiver import Quiver
from holdfast.quiver.base import names
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam.faulty import Fault, FaultKind

VALUES = list(range(10))


@pytest.fixture
def segments(machine: Machine) -> list[Segment]:
    """Two segments with the same bundles, as a seal leaves them that cannot be taken back."""
    faults = [
        Fault("seal.sync_parent", FaultKind.EIO),
        Fault("seal.rename", FaultKind.EIO, nth=2),
    ]
    quiver = machine.start(faults=faults)
    for value in VALUES:
        quiver.append(numbers(value))
    quiver.flush()
    (second,) = quiver.segments()
    machine.kill()
    first = SEGMENTS / names.segment_dir(second.summary.name._replace(segment_seq=1))
    assert [entry.name for entry in machine.disk.list(SEGMENTS)] == [first.name, second.path.name]
    return [Segment(machine.disk, first, second.summary), second]


def segment_names(machine: Machine) -> list[str]:
    return [entry.name for entry in machine.disk.list(SEGMENTS)]


def set_aside(quiver: Quiver) -> list[tuple[str, int | None]]:
    return [(damage.source, damage.bundles) for damage in quiver.recovery.damages]


def test_of_two_sound_ones_the_older_is_kept_and_the_other_removed(
    machine: Machine, segments: list[Segment]
) -> None:
    assert column_of_inventory(machine) == VALUES
    with machine.start() as quiver:
        assert column_of(quiver) == VALUES
        assert set_aside(quiver) == []
        assert segment_names(machine) == [segments[0].path.name]


def column_of_inventory(machine: Machine) -> list[int]:
    (segment,) = inspect(machine.disk, ROOT).segments
    return [bundle.slots["events"].column("n")[0].as_py() for bundle in segment.bundles()]


def cut(machine: Machine, path: PurePath) -> None:
    machine.cut(path, len(machine.disk.read(path)) - 1)


def flip(machine: Machine, path: PurePath) -> None:
    machine.flip(path, 8 * 100)


def remove(machine: Machine, path: PurePath) -> None:
    machine.disk.unlink(path, "test")


@pytest.mark.parametrize("harm", [cut, flip, remove])
@pytest.mark.parametrize("what", ["data", "bundle table"])
@pytest.mark.parametrize("which", [0, 1])
def test_the_sound_one_is_kept_whichever_it_is(
    machine: Machine,
    segments: list[Segment],
    harm: Callable[[Machine, PurePath], None],
    what: str,
    which: int,
) -> None:
    path = data_paths(segments[which])[0]
    harm(machine, path if what == "data" else path.with_name(names.BUNDLES))
    assert column_of_inventory(machine) == VALUES
    with machine.start() as quiver:
        assert column_of(quiver) == VALUES
        assert [bundle.seq for bundle in quiver.segments()[0].bundles()] == VALUES
        assert set_aside(quiver) == []
        assert segment_names(machine) == [segments[1 - which].path.name]


def test_when_neither_is_sound_the_other_is_set_aside_and_not_deleted(
    machine: Machine, segments: list[Segment]
) -> None:
    for segment in segments:
        flip(machine, data_paths(segment)[0])
    before = contents(machine.disk, segments[1].path)
    with machine.start() as quiver:
        assert segment_names(machine) == [segments[0].path.name]
        assert set_aside(quiver) == [(segments[1].path.name, None)]
    kept = contents(machine.disk, QUARANTINE / f"{segments[1].path.name}.1")
    assert list(kept.values()) == list(before.values())


def test_a_copy_without_a_manifest_is_set_aside_and_nothing_counts_as_lost(
    machine: Machine, segments: list[Segment]
) -> None:
    machine.disk.unlink(segments[0].path / names.MANIFEST, "test")
    with machine.start() as quiver:
        assert column_of(quiver) == VALUES
        assert set_aside(quiver) == [(segments[0].path.name, None)]


def test_the_one_with_more_events_is_kept_and_the_other_not_deleted(machine: Machine) -> None:
    """A segment was set aside, its bundles sealed again but for one, and it was moved back."""
    with machine.start(quiet_segments()) as quiver:
        quiver.append(numbers(1, 2, 3))
        quiver.flush()
        (larger,) = quiver.segments()
    files = contents(machine.disk, larger.path)
    other = Machine()
    other.disk.make_dir(ROOT, "test")
    other.disk.put(ROOT / names.FORMAT, machine.disk.read(ROOT / names.FORMAT))
    with other:
        with other.start(quiet_segments()) as quiver:
            quiver.append(numbers(1, 2))
            quiver.flush()
            (smaller,) = quiver.segments()
        other.disk.make_dir(larger.path, "test")
        for path, content in files.items():
            other.disk.put(path, content)
        with other.start(quiet_segments()) as quiver:
            assert column_of(quiver) == [1, 2, 3]
            assert set_aside(quiver) == [(smaller.path.name, None)]
