"""scrub: read every byte of a data directory and compare it with its checksum.

It changes nothing. Damage is reported with the seqs it concerns, so that they can be fetched from a
backup or from their producers before a reader comes to them. `on_read` is called with the bytes
read; it may take its time, and so sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from holdfast.errors import Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import Frame
from holdfast.quiver.ledger.log import read_ledger_file
from holdfast.quiver.log.wal import HEADER_BYTES, HeaderFault, NewerVersion, sound_copies
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.data_file import DataFile
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.inspect import (
    Inventory,
    QuiverFinding,
    Report,
    Severity,
    as_ranges,
    format_findings,
    inspect,
    wal_damage_findings,
)
from holdfast.seam.disk import Disk, entries_of, read_pages

_RESTORE = "readers get it recorded as damaged; restore it from a backup before they come to it"
_FRAME = "nothing is lost here: readers of the quiver need neither; other Arrow programs do"
_IDS = "nothing is lost here: a search for an id reads the rows instead"
_ONE_COPY = "the other copy is read; nothing is lost, but look after the disk"


def total_bytes(disk: Disk, root: PurePath) -> int:
    """Return how many bytes a scrub will read."""
    folders = (names.WAL_DIR, names.SEGMENTS_DIR, names.LEDGER_DIR)
    return sum(_tree_bytes(disk, root / folder) for folder in folders)


def _tree_bytes(disk: Disk, folder: PurePath) -> int:
    size_bytes = 0
    for entry in entries_of(disk, folder):
        if entry.is_dir:
            size_bytes += _tree_bytes(disk, folder / entry.name)
        size_bytes += entry.size_bytes
    return size_bytes


def scrub(disk: Disk, root: PurePath, on_read: Callable[[int], None]) -> Report:
    """Read everything."""
    inventory = inspect(disk, root)
    report = Report()
    scrubbing = _Scrub(disk, report, on_read)
    report.findings += [*format_findings(inventory), *wal_damage_findings(inventory)]
    report.findings += [*scrubbing.wal(inventory), *scrubbing.ledger(inventory)]
    for segment in inventory.segments:
        # A new one: what it read is forgotten with it.
        report.findings += scrubbing.segment(Segment(disk, segment.path, segment.summary))
    for name in inventory.unreadable:
        what = "the manifest cannot be read, so nothing in it can be checked"
        act = "`holdfast quiver salvage` reads what it can"
        where = f"{names.SEGMENTS_DIR}/{name}"
        report.findings.append(QuiverFinding(Severity.ERROR, where, what, act))
    return report


class _Scrub:
    """Reads in the order in which damage hurts: the log, which exists once; the ledger; segments.

    What is stored twice (headers, manifests) is a warning while one copy is sound: nothing is lost,
    and the disk has shown what it does.
    """

    def __init__(self, disk: Disk, report: Report, on_read: Callable[[int], None]) -> None:
        self._disk = disk
        self._report = report
        self._on_read = on_read

    def _count(self, size_bytes: int) -> None:
        self._report.size_bytes += size_bytes
        self._on_read(size_bytes)

    def _done(self) -> None:
        self._report.files += 1

    # ------------------------------------------------------------- log files

    def wal(self, inventory: Inventory) -> Iterator[QuiverFinding]:
        # Every frame was hashed when the directory was inspected.
        for content in inventory.wal:
            self._count(content.size_bytes)
            self._done()
            yield from self._one_copy(f"{names.WAL_DIR}/{content.path.name}", content.path)
        for file in inventory.wal_files:
            # One without a whole header is being made, or its making was interrupted.
            if file.fault is not None and file.size_bytes > HEADER_BYTES:
                self._done()
                what = f"it cannot be read: {file.fault}"
                act = "`holdfast quiver salvage` reads its frames into a new quiver"
                yield QuiverFinding(Severity.ERROR, f"{names.WAL_DIR}/{file.name}", what, act)

    def ledger(self, inventory: Inventory) -> Iterator[QuiverFinding]:
        for path, _, _ in inventory.ledger.files:
            where = f"{names.LEDGER_DIR}/{path.name}"
            try:
                content = read_ledger_file(self._disk, path)
                items = content.items
            except FileNotFoundError:
                continue  # past its time, and removed while we look
            except (OSError, HeaderFault, NewerVersion) as fault:
                yield _unreadable_ledger(where, str(fault))
                continue
            self._count(len(content.view))
            self._done()
            yield from self._one_copy(where, path)
            for item in items:
                # At the end of a file it was being written when the power went.
                if not isinstance(item, Frame) and item is not items[-1]:
                    what = f"{item.end - item.start} bytes at {item.start}: {item.reason}"
                    act = "outcomes in them are forgotten: readers may get those bundles again"
                    yield QuiverFinding(Severity.ERROR, where, what, act)
        for path, reason in inventory.ledger.unreadable:
            yield _unreadable_ledger(f"{names.LEDGER_DIR}/{path.name}", reason)

    def _one_copy(self, where: str, path: PurePath) -> Iterator[QuiverFinding]:
        try:
            head = read_pages(self._disk, path, HEADER_BYTES).view
        except FileNotFoundError:
            return  # removed since it was read
        # One that lost its name meanwhile was removed, or is being written over.
        if sound_copies(head) == 1 and self._disk.exists(path):
            what = "one of the two copies of its header is damaged"
            yield QuiverFinding(Severity.WARNING, where, what, _ONE_COPY)

    # ---------------------------------------------------------------- segments

    def segment(self, segment: Segment) -> list[QuiverFinding]:
        """Return what is damaged in one segment; nothing if it was removed meanwhile.

        A segment may be removed by its owner while it is read. What looked like damage then was
        that, and is taken back: the directory is gone.
        """
        findings = [*self._manifest(segment), *self._table(segment)]
        try:
            for file in segment.files:
                findings += self._data_file(segment, file)
        except Damaged:
            # A damaged table alone is rebuilt from the rows and raises nothing.
            assert not self._disk.exists(segment.path), "BUG: only what is gone has no bundle table"
        return findings if self._disk.exists(segment.path) else []

    def _manifest(self, segment: Segment) -> Iterator[QuiverFinding]:
        where = f"{names.SEGMENTS_DIR}/{segment.path.name}/{names.MANIFEST}"
        try:
            data = bytes(read_pages(self._disk, segment.path / names.MANIFEST).view)
        except OSError as error:
            yield QuiverFinding(
                Severity.ERROR, where, f"it cannot be read: {error.strerror}", _RESTORE
            )
            return
        self._count(len(data))
        self._done()
        if manifest.sound_copies(data) == 1:
            yield QuiverFinding(
                Severity.WARNING, where, "one of its two copies is damaged", _ONE_COPY
            )

    def _table(self, segment: Segment) -> Iterator[QuiverFinding]:
        where = f"{names.SEGMENTS_DIR}/{segment.path.name}/{names.BUNDLES}"
        summary = segment.summary
        try:
            segment.stored_table()
        except Damaged:
            what = "it is damaged; readers are served from the rows, without producers"
            seqs = ((summary.first_seq, summary.last_seq),)
            yield QuiverFinding(Severity.WARNING, where, what, "restore it from a backup", seqs)
        self._count(summary.size_bytes - sum(file.size_bytes for file in summary.files))
        self._done()

    def _data_file(self, segment: Segment, file: DataFile) -> Iterator[QuiverFinding]:
        where = f"{names.SEGMENTS_DIR}/{segment.path.name}/{file.summary.name}"
        number = segment.files.index(file)
        self._done()
        first_row, read_bytes = 0, 0
        for index, batch in enumerate(file.summary.batches):
            try:
                file.batch(index)
            except Damaged as damage:
                seqs = _seqs_of_rows(segment, number, first_row, batch.rows)
                what = damage.message.removeprefix("a segment file ")
                what = f"{what} (record batch {index}, rows {first_row} to "
                what += f"{first_row + batch.rows - 1})"
                yield QuiverFinding(Severity.ERROR, where, what, _RESTORE, seqs)
            self._count(batch.length)
            first_row, read_bytes = first_row + batch.rows, read_bytes + batch.length
        # What lies outside of the blocks is read by `check_frame`; the sum is what `total_bytes`
        # announced.
        self._count(file.summary.size_bytes - read_bytes)
        try:
            file.check_frame()
        except Damaged as damage:
            what = damage.message.removeprefix("a segment file ")
            yield QuiverFinding(Severity.WARNING, where, what, _FRAME)
        yield from self._ids(segment, number)

    def _ids(self, segment: Segment, number: int) -> Iterator[QuiverFinding]:
        path = segment.path / names.ids_file(segment.summary.files[number].name)
        # Data nodes get no filters: one that is missing is as it should be.
        if not self._disk.exists(path):
            return
        self._done()
        if segment.ids_filter(number) is None:
            where = f"{names.SEGMENTS_DIR}/{segment.path.name}/{path.name}"
            yield QuiverFinding(Severity.WARNING, where, "it does not match its checksum", _IDS)


def _unreadable_ledger(where: str, reason: str) -> QuiverFinding:
    act = "readers may get again what they had acknowledged since the file before it"
    return QuiverFinding(Severity.ERROR, where, f"it cannot be read: {reason}", act)


def _seqs_of_rows(
    segment: Segment, file: int, first_row: int, rows: int
) -> tuple[tuple[int, int], ...]:
    """Return the bundles that have rows in a part of a file."""
    table = segment.bundle_table
    places: Sequence[list[dict[str, int]]] = table.column("places").to_pylist()
    end_row = first_row + rows
    return as_ranges(
        seq
        for seq, where in zip(table.column("seq").to_pylist(), places, strict=True)
        if any(
            place["file"] == file
            and place["first_row"] < end_row
            and place["first_row"] + place["rows"] > first_row
            for place in where
        )
    )
