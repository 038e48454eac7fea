"""The crash matrix's column "this block cannot be read", over every point.

After the call of the point the page that was written last cannot be read any more, and the process
lives on, or dies. Whoever comes next starts. All that lies outside the page is there; what lay in
it is named, or was in the last group of the log, where nothing tells what a page held.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from pathlib import PurePath

import pytest
from tests.crash.contents import token_of
from tests.crash.scripts import SCRIPTS, Script, run, wal_paths
from tests.crash.stage import ROOT, check_survivor, content_of, survivors
from tests.crash.test_matrix import calls_of
from tests.quiver.machine import disk_with, take_apart

from holdfast.quiver.base import names
from holdfast.quiver.base.frame import BUNDLE_KINDS, Frame, FrameKind
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.group import COUNT
from holdfast.quiver.log.wal import HeaderFault
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.data_file import DataFile
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedDisk

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("point", list(QuiverPoint))
def test_a_page_that_cannot_be_read_any_more_at(point: QuiverPoint) -> None:
    for script in SCRIPTS:
        times = calls_of(script).get(point, 0)
        for nth in sorted({1, times} - {0} if THOROUGH else {times} - {0}):
            for cut in (True, False):
                check_cell(script, Fault(point, FaultKind.BAD_BLOCK, nth), cut=cut)


def check_cell(script: Script, fault: Fault, *, cut: bool) -> None:
    done = run(script, [fault], cut=cut)
    for ending, disk, promised in survivors(done.stage.disk, seed=fault.nth):
        journal = copy.deepcopy(done.journal)
        cost = set(held_in_bad_pages(disk))
        journal.damaged |= cost
        try:
            check_survivor(disk, journal, promised)
        except BaseException as error:
            error.add_note(f"script {script.name}, {fault}, cut={cut}, then {ending}: {cost}")
            raise


def held_in_bad_pages(disk: SimulatedDisk) -> Iterator[str]:
    """Yield the tokens of all bundles of which something lies in a page that cannot be read."""
    for path in wal_paths(disk) if disk.exists(ROOT / names.WAL_DIR) else ():
        yield from held_in_log(disk, path)
    segments, sound = ROOT / names.SEGMENTS_DIR, disk_with(content_of(disk))
    for entry in disk.list(segments) if disk.exists(segments) else ():
        if names.parse_segment_dir(entry.name) is not None:
            yield from held_in_segment(disk, sound, segments / entry.name)


def held_in_log(disk: SimulatedDisk, path: PurePath) -> Iterator[str]:
    try:
        file = take_apart(disk.peek(path))
    except HeaderFault:
        return
    tokens: dict[int, str] = {}
    for start, frame in zip(file.starts, file.items, strict=True):
        if not isinstance(frame, Frame):
            continue
        if frame.kind in BUNDLE_KINDS:
            found = re.search(rb"(t\d+)\.", frame.payload)
            tokens[frame.seq] = found[1].decode() if found else frame.producer or ""
        if is_bad(disk, path, start, frame.end):
            # Without its COMMIT a transaction that was not synced is nothing.
            count = COUNT.unpack_from(frame.payload)[0] if frame.kind == FrameKind.COMMIT else 1
            seqs = range(frame.seq - count + 1, frame.seq + 1)
            yield from (tokens[seq] for seq in seqs if seq in tokens)


def held_in_segment(disk: SimulatedDisk, sound: SimulatedDisk, folder: PurePath) -> Iterator[str]:
    try:
        summary = manifest.decode(sound.read(folder / names.MANIFEST))
    except manifest.ManifestFault:
        return
    for file in summary.files:
        path = folder / file.name
        for index, batch in enumerate(file.batches):
            if is_bad(disk, path, batch.offset, batch.offset + batch.length):
                rows = DataFile(sound, path, file).batch(index).to_pylist()
                yield from (token_of(file.slot, row) for row in rows)


def is_bad(disk: SimulatedDisk, path: PurePath, start: int, end: int) -> bool:
    return any(first < end and start < last for first, last in disk.unreadable(path))
