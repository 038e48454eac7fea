"""Verifying a part: every byte counts, and a manifest that lies is found out."""

from __future__ import annotations

import contextlib
import errno
import json
from functools import cache
from pathlib import Path, PurePath
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replica.parts import seal_parts
from xxhash import xxh3_64_hexdigest

from holdfast.errors import BadInput, Damaged, HoldfastError, StorageFailed, UnknownFormat
from holdfast.quiver.base import names
from holdfast.quiver.segments import manifest
from holdfast.replica.part import part_id
from holdfast.replica.transport import OutgoingPart
from holdfast.replica.verify import verify
from holdfast.seam.disk import Disk, RealDisk
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data/quiver")
GOLDEN = Path(__file__).parents[1] / "quiver" / "golden"


@cache
def _sealed() -> OutgoingPart:
    (part,) = seal_parts(SimulatedDisk(), ROOT, [5])
    return part


def one_part() -> tuple[SimulatedDisk, OutgoingPart]:
    """Return a disk with nothing but a part, and the part."""
    disk, sealed = SimulatedDisk(), _sealed()
    folder = PurePath("/part")
    disk.make_dir(folder, "test")
    for file in sealed.part.files:
        disk.put(folder / file.name, sealed.disk.read(sealed.folder / file.name))
    return disk, OutgoingPart(sealed.part, disk, folder)


def test_a_sound_part_is_sound() -> None:
    disk, sent = one_part()
    assert part_id(verify(disk, sent.folder)) == sent.part.id


@given(st.data())
def test_scenario_08_any_changed_byte_is_found(data: st.DataObject) -> None:
    disk, sent = one_part()
    file = data.draw(st.sampled_from(sent.part.files))
    place = data.draw(st.integers(0, file.size_bytes - 1))
    flip = data.draw(st.integers(1, 255))
    path = sent.folder / file.name
    disk.overwrite(path, place, bytes([disk.read(path)[place] ^ flip]))
    if file.name == names.MANIFEST:
        verify(disk, sent.folder)  # it is there twice: one of the two is sound
        return
    with pytest.raises(Damaged):
        verify(disk, sent.folder)


@given(st.data())
def test_scenario_08_a_file_that_is_cut_or_longer_is_found(data: st.DataObject) -> None:
    disk, sent = one_part()
    file = data.draw(st.sampled_from([one for one in sent.part.files if one.name != "manifest"]))
    path = sent.folder / file.name
    content = disk.read(path)
    cut = data.draw(st.integers(0, len(content) - 1))
    disk.put(path, data.draw(st.sampled_from([content[:cut], content + b"x"])))
    with pytest.raises(Damaged):
        verify(disk, sent.folder)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_scenario_08_a_missing_file_is_found(place: int) -> None:
    disk, sent = one_part()
    disk.unlink(sent.folder / sent.part.files[place].name, "test")
    with pytest.raises(Damaged):
        verify(disk, sent.folder)


def test_a_file_too_many_is_found() -> None:
    disk, sent = one_part()
    disk.put(sent.folder / "007-more.arrow", b"x")
    with pytest.raises(BadInput, match=r"007-more\.arrow"):
        verify(disk, sent.folder)


def test_a_block_that_cannot_be_read_is_damage_and_a_disk_that_is_busy_is_not() -> None:
    disk, sent = one_part()
    path = sent.folder / sent.part.files[-1].name

    class Busy:
        def __getattr__(self, name: str) -> Any:
            return getattr(disk, name)

        def read_range(self, path: PurePath, offset: int, size: int) -> bytes:
            raise OSError(errno.EMFILE, "too many open files")

    with pytest.raises(StorageFailed):
        verify(cast("Disk", Busy()), sent.folder)
    disk.spoil(path, 0, 1)
    with pytest.raises(Damaged):
        verify(disk, sent.folder)


def put_summary(disk: SimulatedDisk, folder: PurePath, values: Any) -> None:
    """Write a manifest that proves itself, whatever it says."""
    line = json.dumps(values).encode()
    copy = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
    disk.put(folder / names.MANIFEST, copy + copy)


def summary_values(disk: SimulatedDisk, folder: PurePath) -> Any:
    return json.loads(disk.read(folder / names.MANIFEST).split(b"\n")[0])


def test_scenario_29_a_newer_version_is_told_apart_from_damage() -> None:
    disk, sent = one_part()
    put_summary(disk, sent.folder, summary_values(disk, sent.folder) | {"version": 99})
    with pytest.raises(UnknownFormat, match="99"):
        verify(disk, sent.folder)


LIES = [
    {"quiver_id": "../../etc"},
    {"quiver_id": 7},
    {"first_seq": -1},
    {"first_seq": 10**30},
    {"last_seq": -1},
    {"first_seq": "0"},
    {"files": "all"},
    {"files": [{}]},
    {"bundles": None},
    {"segment_seq": -3},
    {"producers": 1},
    {"size_bytes": 0},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_manifest_that_cannot_be_true_is_refused(lie: dict[str, Any]) -> None:
    disk, sent = one_part()
    put_summary(disk, sent.folder, summary_values(disk, sent.folder) | lie)
    with pytest.raises(BadInput):
        verify(disk, sent.folder)


@pytest.mark.parametrize("document", [[], 7, None, "x", {}, {"version": 2}], ids=str)
def test_a_manifest_that_is_something_else_is_refused(document: Any) -> None:
    disk, sent = one_part()
    put_summary(disk, sent.folder, document)
    with pytest.raises(BadInput):
        verify(disk, sent.folder)


@pytest.mark.parametrize(
    "lie",
    [
        {"name": "../../../x.arrow"},
        {"name": "000-a/../../x.arrow"},
        {"name": "manifest"},
        {"size_bytes": 1},
        {"batches": [{"offset": 0, "length": 2**80}]},
    ],
    ids=str,
)
def test_names_and_places_of_a_file_stay_inside_it(lie: dict[str, Any]) -> None:
    disk, sent = one_part()
    values = summary_values(disk, sent.folder)
    if "batches" in lie:
        lie = {"batches": [values["files"][0]["batches"][0] | lie["batches"][0]]}
    values["files"][0] |= lie
    put_summary(disk, sent.folder, values)
    with pytest.raises(BadInput):
        verify(disk, sent.folder)


VALUES: list[Any] = [None, -1, 2**70, 0.5, "", "x", [], [None], [[]], {}, {"": 1}, [{"name": []}]]


@pytest.mark.parametrize(
    "name", ["files", "producers", "first_seq", "quiver_id", "version", "size_bytes"]
)
def test_whatever_a_manifest_says_the_answer_is_typed(name: str) -> None:
    disk, sent = one_part()
    values = summary_values(disk, sent.folder)
    for value in VALUES:
        put_summary(disk, sent.folder, values | {name: value})
        with contextlib.suppress(HoldfastError):
            verify(disk, sent.folder)


def test_segments_of_old_versions_are_sound_too() -> None:
    folders = sorted(path.parent for path in GOLDEN.rglob("manifest"))
    summaries = [verify(RealDisk(), folder) for folder in folders]
    assert {summary.version for summary in summaries} == set(manifest.READABLE_VERSIONS)


def test_a_manifest_that_was_cut_to_one_copy_is_sound() -> None:
    disk, sent = one_part()
    assert manifest.cut_copy(disk, sent.folder, "test", "test")
    assert part_id(verify(disk, sent.folder)) == sent.part.id
