"""Parts: their identity, their names, and their bytes as slices."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from tests.replica.parts import CONFIG, seal_parts, sealed_parts

from holdfast.errors import BadInput
from holdfast.quiver import Quiver
from holdfast.quiver.tools.backup import backup, restore
from holdfast.replica.part import SLICE_BYTES, Part, PartFile, PartId, slices
from holdfast.seam import Seam
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data/quiver")
QUIVER_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def test_a_part_is_named_by_its_manifest_and_not_by_its_folder() -> None:
    disk = SimulatedDisk()
    first, second = seal_parts(disk, ROOT, [2, 3])
    assert first.part.id.quiver_id == second.part.id.quiver_id
    assert first.part.id.end_seq <= second.part.id.first_seq
    moved = ROOT / "segments" / ("9" * 16 + first.folder.name[16:])
    disk.rename(first.folder, moved, "test")
    assert first.part.id in [one.part.id for one in sealed_parts(disk, ROOT)]


def test_a_restored_quiver_has_the_same_parts_under_its_new_id() -> None:
    disk = SimulatedDisk()
    before = seal_parts(disk, ROOT, [2])
    seam, copy, again = (
        Seam(disk, randomness=seeded_randomness(9)),
        ROOT.parent / "b",
        PurePath("/r"),
    )
    backup(seam, ROOT, copy, lambda _: None)
    restore(seam, copy, again, lambda _: None)
    with Quiver.open(again, CONFIG, seam=seam) as quiver:
        assert quiver.quiver_id != before[0].part.id.quiver_id
    assert [one.part.id for one in sealed_parts(disk, again)] == [one.part.id for one in before]


def test_it_reads_as_operators_write_it() -> None:
    part_id = PartId(QUIVER_ID, 7, 12)
    assert str(part_id) == f"{QUIVER_ID}:7-12"
    assert PartId.parse(str(part_id)) == part_id


@pytest.mark.parametrize(
    "text",
    ["", "7-12", f"{QUIVER_ID}:12-7", f"{QUIVER_ID}:7", f"{QUIVER_ID.upper()}:7-12", "../x:1-2"],
)
def test_what_no_part_is_called_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        PartId.parse(text)


def test_its_slices_are_its_bytes() -> None:
    disk = SimulatedDisk()
    (sent,) = seal_parts(disk, ROOT, [4])
    found: dict[str, bytes] = {}
    for piece in slices(disk, sent.folder, sent.part):
        name = sent.part.files[piece.file].name
        assert piece.offset_bytes == len(found.get(name, b"")), "files come in order"
        found[name] = found.get(name, b"") + piece.data
    assert found == {file.name: disk.read(sent.folder / file.name) for file in sent.part.files}
    assert sent.part.size_bytes == sum(map(len, found.values()))


def test_scenario_34_large_and_empty_files_have_slices() -> None:
    disk = SimulatedDisk()
    disk.make_dir(ROOT.parent, "test")
    disk.put(ROOT.parent / "large", bytes(2 * SLICE_BYTES + 1))
    disk.put(ROOT.parent / "empty", b"")
    files = (PartFile("large", 2 * SLICE_BYTES + 1), PartFile("empty", 0))
    part = Part(PartId(QUIVER_ID, 0, 0), "x", 2, files)
    sizes = [(one.file, len(one.data)) for one in slices(disk, ROOT.parent, part)]
    assert sizes == [(0, SLICE_BYTES), (0, SLICE_BYTES), (0, 1), (1, 0)]
