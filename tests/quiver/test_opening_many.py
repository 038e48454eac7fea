"""What a start with many segments asks of the disk, and what it makes: as little as it needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import PurePath
from typing import Any, cast

import pytest
from tests.quiver.batches import column_of, numbers
from tests.quiver.machine import ROOT, SEGMENTS, Machine, quiet

from holdfast.handoff.sender import Handoff
from holdfast.quiver import RetentionConfig
from holdfast.quiver.engine import engine as engine_module
from holdfast.quiver.segments import segment as segment_module
from holdfast.quiver.segments.data_file import DataFile
from holdfast.seam import Seam
from holdfast.seam.disk import Disk
from holdfast.seam.simulated import SimulatedDisk

SEALED = 25
LARGE_BYTES = 64 << 20
# By these a disk is asked about one path.
_ASKING = ("read", "read_range", "open_read", "map", "file_bytes", "list", "exists")


class CountingDisk:
    """Counts what is asked about segments, by call and name."""

    def __init__(self, inner: SimulatedDisk) -> None:
        self._inner = inner
        self.asked: Counter[tuple[str, str]] = Counter()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in _ASKING:
            return call

        def counted(path: PurePath, *given: Any) -> Any:
            if SEGMENTS in path.parents:
                self.asked[name, path.name] += 1
            return call(path, *given)

        return counted


def test_a_start_reads_one_manifest_of_each_segment_once_and_nothing_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = machine.start()
    quiver.register("node.a")
    for value in range(SEALED):
        quiver.append(numbers(value))
        quiver.flush()
    machine.stop()
    disks, files = [], []

    def counting(disk: SimulatedDisk) -> Disk:
        disks.append(CountingDisk(disk))
        return cast("Disk", disks[0])

    class CountedFile(DataFile):
        def __init__(self, *given: Any) -> None:
            files.append(given)
            super().__init__(*given)

    monkeypatch.setattr(segment_module, "DataFile", CountedFile)
    quiver = machine.start(through=counting)
    handoff = Handoff(quiver, Seam(machine.disk, machine.clock))
    handoff.configure(["a"])
    waiting = list(handoff.workers["a"].reader.waiting())
    assert len(waiting) == SEALED
    (disk,) = disks
    assert disk.asked == {("read_range", "manifest"): SEALED}
    assert not files
    # Not because they would not be counted:
    assert column_of(quiver) == list(range(SEALED))
    assert len(files) == SEALED
    assert disk.asked["read_range", "000-events.arrow"] >= SEALED


@pytest.mark.parametrize("most", [1, 2])
def test_with_very_many_segments_the_disk_is_looked_at_by_the_keeper(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    quiver = machine.start()
    for value in range(2):
        quiver.append(numbers(value))
        quiver.flush()
    machine.stop()
    machine.disk.put(ROOT / "something else", bytes(LARGE_BYTES))
    monkeypatch.setattr(engine_module, "LOOK_AT_START_MAX", most)
    # Nothing is due by time before the clock is moved.
    slow = replace(quiet(), retention=RetentionConfig(tick_s=3600.0))
    engine = machine.start(slow)._engine
    assert (engine.retention.used_bytes() >= LARGE_BYTES) is (most == 2)
    engine.keeper._tick()
    assert engine.retention.used_bytes() >= LARGE_BYTES


def test_a_snapshot_is_made_once_for_each_change(machine: Machine) -> None:
    quiver = machine.start()
    catalog = quiver._engine.catalog
    quiver.append(numbers(1))
    quiver.flush()
    one = catalog.snapshot()
    assert one is catalog.snapshot()
    quiver.append(numbers(2))
    quiver.flush()
    two = catalog.snapshot()
    assert (len(one), len(two)) == (1, 2)
    assert two is catalog.snapshot()
    catalog.remove(two[0])
    assert (catalog.snapshot(), len(two)) == (two[1:], 2)
