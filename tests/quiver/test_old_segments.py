"""Segments of version 1 (no schema in the manifest, schema and dictionaries in the first batch)."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
from tests.quiver.machine import Machine, disk_with
from tests.quiver.test_segment_damage import Position, positions_in, sample, scanned
from xxhash import xxh3_64_hexdigest

from holdfast.errors import Damaged
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.manifest import FileSummary

Rows = dict[str, dict[Position, tuple[Any, ...]]]


def old_file(file: FileSummary, content: bytes) -> FileSummary:
    """Return what version 1 said of a file: its first batch began with the file."""
    first, *others = file.batches
    end = first.offset + first.length
    begin = first._replace(offset=0, length=end, checksum=xxh3_64_hexdigest(content[:end]))
    footer = (others or [begin])[-1]
    frame = content[footer.offset + footer.length :]
    return file._replace(
        batches=(begin, *others),
        frame_checksum=xxh3_64_hexdigest(frame),
        schema="",
        dictionary_checksum="",
    )


def old_store() -> tuple[dict[PurePath, bytes], tuple[FileSummary, ...]]:
    """Return the sample as version 1 would have it; the files themselves are the same."""
    folder, summary = sample().segment.path, sample().summary
    files = tuple(old_file(f, sample().files[folder / f.name]) for f in summary.files)
    old = manifest.encode(summary._replace(version=1, files=files))
    for line in (b'"schema":"",', b',"dictionary_checksum":""'):
        assert line in old
    return {**sample().files, folder / "manifest": old}, files


def read(files: dict[PurePath, bytes]) -> Rows:
    with Machine(disk_with(files)) as machine:
        quiver = machine.start()
        assert quiver.recovery.damages == []
        return scanned(quiver)


def without(lost: set[Position]) -> Rows:
    rows = sample().rows.items()
    return {slot: {p: row for p, row in of.items() if p not in lost} for slot, of in rows}


def test_they_are_read_and_so_is_every_bundle_of_them() -> None:
    files, _ = old_store()
    with Machine(disk_with(files)) as machine:
        quiver = machine.start()
        assert scanned(quiver, "fail") == sample().rows
        for seq in range(sample().summary.bundles):
            bundle = quiver.bundle(seq)
            assert bundle is not None
            assert bundle.slots
        assert quiver.segments()[0].summary.version == 1
        for file in quiver.segments()[0].files:
            file.check_frame()


@pytest.mark.parametrize("where", ["footer", "longer"])
def test_neither_the_footer_nor_bytes_behind_it_cost_anything(where: str) -> None:
    files, old = old_store()
    for file in old:
        path = sample().segment.path / file.name
        content = bytearray(files[path])
        if where == "footer":
            content[-20] ^= 1
        else:
            content += b"more"
        assert read({**files, path: bytes(content)}) == sample().rows


def test_a_damaged_first_batch_costs_its_rows_and_with_dictionaries_all() -> None:
    files, old = old_store()
    for file in old:
        path = sample().segment.path / file.name
        content = bytearray(files[path])
        content[100] ^= 1
        has_dictionaries = file.slot == "words"
        places = range(len(file.batches)) if has_dictionaries else range(1)
        lost = {position for place in places for position in positions_in(file, place)}
        assert read({**files, path: bytes(content)}) == without(lost)


def test_without_first_batch_and_footer_nothing_tells_the_schema() -> None:
    files, old = old_store()
    file = next(file for file in old if file.kind == "raw")
    path = sample().segment.path / file.name
    content = bytearray(files[path])
    content[100] ^= 1
    content[-20] ^= 1
    with Machine(disk_with({**files, path: bytes(content)})) as machine:
        quiver = machine.start()
        with pytest.raises(Damaged, match="schema or footer"):
            quiver.scan(slot="raw").read_all()
