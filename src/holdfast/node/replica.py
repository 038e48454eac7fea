"""The parts of one quiver on a data node: how each comes to be there once, and goes once.

A part is adopted in numbered steps. The rename is the commit: before it there is nothing, after it
all of the part, and no step in between leaves anything that a start has to repair.

    1. stage    write its files into a folder of `staging`
    2. verify   every checksum of its manifest, and that it is the part that was offered
    3. sync     its files, and its folder
    4. rename   into `segments`: it is adopted
    5. sync     both folders of the rename: it may be acknowledged

Which seqs are here is read off the folders; which were here and went is in `seen`, synced before
the folder goes. Together they answer for every range, for ever: there is no window.

    1. seen     the part's range is in it, durably
    2. rename   the part into `staging`, and sync: no reader finds it any more
    3. unlink   its files; what is left of it is swept at the next start

A part that a scrub finds damaged is moved into `quarantine`: its seqs are not here then, and it is
needed again. It stays there, to be looked at, until a sound copy of it was adopted.

`seen` also holds the ranges that the sender said are not this node's. They are answered like any
range that was never here (owners change), and close the gaps between the others in `health`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePath
from typing import NamedTuple

from holdfast.errors import BadInput, Damaged, HoldfastError, UnknownFormat, UnknownPosition
from holdfast.node import layout
from holdfast.node.points import NodePoint
from holdfast.quiver.base import names
from holdfast.quiver.base.collector import collector_paused
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.segments.data_file import DAMAGE_ERRORS
from holdfast.quiver.segments.manifest import Summary
from holdfast.quiver.segments.segment import Segment
from holdfast.replica.messages import (
    AnswerKind,
    DamagedPart,
    Holding,
    PartAnswer,
    decode_intervals,
    interval_fields,
)
from holdfast.replica.part import Part, PartId, Slice, file_names, part_id, part_of
from holdfast.replica.verify import read_manifest, verify
from holdfast.seam.disk import DISK_IS_FULL, Disk, Handle, entries_of, remove_tree, write_all

# How long a sender waits when another one sends the same range, and when the disk is full.
TAKEN_RETRY_S = 1.0
FULL_RETRY_S = 10.0

log = logging.getLogger("holdfast.node")


class AdoptedPart(NamedTuple):
    """A part that is here."""

    folder: PurePath
    summary: Summary
    size_bytes: int


@dataclass
class _Seen:
    # Was here, and is not any more.
    removed: IntervalSet = field(default_factory=IntervalSet)
    # Not this node's, by what its sender said last.
    not_owned: IntervalSet = field(default_factory=IntervalSet)


class Replica:
    """All parts of one quiver. Safe to use from many threads."""

    def __init__(self, disk: Disk, folder: PurePath, quiver_id: str) -> None:
        """Open what is there, or make it; finish what the last process began."""
        self.quiver_id = quiver_id
        self.folder = folder
        # What was lost with `seen`, in words for operators; empty if nothing was.
        self.findings: list[str] = []
        self._disk = disk
        self._segments = folder / layout.SEGMENTS_DIR
        self._staging = folder / layout.STAGING_DIR
        self._quarantine = folder / layout.QUARANTINE_DIR
        # For all of the following; never held during I/O.
        self._lock = threading.Lock()
        # Held while `seen` is written and parts are removed: one at a time.
        self._writing = threading.Lock()
        self._parts: dict[PartId, AdoptedPart] = {}
        # What is damaged of a part, in `quarantine` or still in `segments`, and its bytes. Nothing
        # is left of one whose folder was gone when it was looked for.
        self._damaged: dict[PartId, dict[PurePath, int]] = {}
        self._stored = IntervalSet()
        self._coming = IntervalSet()
        self._stagings = 0
        self._seen = _Seen()
        # Folders that `seen` allows to go, and that are still here.
        self._doomed: list[PurePath] = []
        # Counts what changes `holding`.
        self.changes = 0
        self._open()

    # ------------------------------------------------------------------ opening

    def _open(self) -> None:
        if not self._disk.exists(self._segments):
            # Made last; so whatever else is there may not be durable yet.
            layout.make_folder(self._disk, self.folder)
            layout.make_folder(self._disk, self._staging)
        self._sweep()
        fields = layout.read_record(self._disk, self.folder / layout.SEEN)
        if fields is not None:
            self._seen = _Seen(
                decode_intervals(fields["removed"]), decode_intervals(fields["not_owned"])
            )
        if not self._disk.exists(self._segments):
            # In this order: segments without `seen` mean that it was lost.
            if fields is None:
                self._write_seen(self._seen)
            layout.make_folder(self._disk, self._segments)
        elif fields is None:
            self._find(
                "`seen` was lost or damaged, and is made anew from the parts that are here; what "
                "was removed before may come once more"
            )
            self._write_seen(self._seen)
        # The last process may have died, or failed, between a rename and its sync.
        for folder in (self.folder, self._segments, self._staging):
            self._disk.sync_dir(folder, NodePoint.RECOVER_SYNC_DIR)
        with collector_paused():
            for entry in entries_of(self._disk, self._segments):
                if entry.is_dir and names.parse_segment_dir(entry.name) is not None:
                    self._open_part(self._segments / entry.name)
        self._open_quarantine()
        # A full or failing disk must not keep what is sound from being served: later, then.
        with contextlib.suppress(OSError):
            self._remove_doomed()

    def _sweep(self) -> None:
        for entry in entries_of(self._disk, self._staging):
            path = self._staging / entry.name
            try:
                if entry.is_dir:
                    remove_tree(self._disk, path, NodePoint.RECOVER_SWEEP)
                else:
                    self._disk.unlink(path, NodePoint.RECOVER_SWEEP)
            except OSError as error:
                log.warning("%s cannot be removed now: %s", path, error.strerror)

    def _open_quarantine(self) -> None:
        for entry in entries_of(self._disk, self._quarantine):
            name = names.parse_segment_dir(entry.name.rpartition(".")[0])
            if name is not None:
                folder = self._quarantine / entry.name
                if self._stored.covers(name.first_seq, name.last_seq + 1):
                    self._unlink(folder)  # the last process adopted a sound copy, and died
                else:
                    self._note_damaged(folder, name)

    def _note_damaged(self, folder: PurePath, name: names.SegmentName) -> None:
        part = PartId(self.quiver_id, name.first_seq, name.last_seq)
        self._damaged.setdefault(part, {})[folder] = self._bytes_in(folder)

    def _bytes_in(self, folder: PurePath) -> int:
        """Return what a damaged folder occupies, as far as the disk can say."""
        try:
            return self._disk.used_bytes(folder)
        except OSError:
            return 0

    def _open_part(self, folder: PurePath) -> None:
        """Serve a folder that is what its manifest says; leave everything else where it is.

        Nothing that is odd is removed at a start. An operator may have put it there, and a folder
        that is left alone costs disk and no more.
        """
        try:
            summary = read_manifest(self._disk, folder)
        except (Damaged, BadInput, UnknownFormat) as error:
            # Not served, and not counted: a sound copy of it may come.
            self._find(f"part {folder.name} is not served: {error.message}")
            name = names.parse_segment_dir(folder.name)
            if isinstance(error, Damaged) and name is not None:
                self._note_damaged(folder, name)
            return
        found = part_id(summary)
        if found.quiver_id != self.quiver_id:
            self._find(f"part {folder.name} is of quiver {found.quiver_id}; it is not served")
        elif self._seen.removed.covers(found.first_seq, found.end_seq):
            self._doomed.append(folder)  # the last process noted it, and got no further
        elif self._stored.overlaps(found.first_seq, found.end_seq):
            self._find(f"part {folder.name} holds seqs of another part; it is not served")
        else:
            try:
                self._add(folder, summary)
            except OSError as error:
                if error.errno not in DAMAGE_ERRORS:
                    raise
                self._find(f"part {folder.name} is not served: {error.strerror}")
                self._note_damaged(folder, summary.name)

    def _find(self, what: str) -> None:
        log.error("%s: %s", self.quiver_id, what)
        self.findings.append(what)

    def _add(self, folder: PurePath, summary: Summary) -> None:
        found = part_id(summary)
        size_bytes = sum(self._disk.files_bytes(folder, file_names(summary)))
        with self._lock:
            self._parts[found] = AdoptedPart(folder, summary, size_bytes)
            self._stored.add(found.first_seq, found.end_seq)
            self.changes += 1

    # ------------------------------------------------------------------ answers

    def answer(self, part: PartId) -> PartAnswer:
        """Say what is known of a range: NEED if nothing is."""
        with self._lock:
            return self._answer(part)

    def _answer(self, part: PartId) -> PartAnswer:
        """Answer by ranges of seqs, not by names of parts.

        A sender that lost its segments and recovered them may cut the same seqs differently. Then
        part of a range is here and part is not, and adopting it would put rows here twice: that is
        a conflict, which only a person can decide.
        """
        first, end = part.first_seq, part.end_seq
        if self._stored.covers(first, end):
            return PartAnswer(part, AnswerKind.HAVE)
        if self._stored.overlaps(first, end) or self._seen.removed.overlaps(first, end):
            had = self._stored.union(self._seen.removed)
            if had.covers(first, end):
                return PartAnswer(part, AnswerKind.EXPIRED)
            missing = list(had.holes(first, end))
            reason = f"seqs of it are here in parts of other ranges; not here: {missing}"
            return PartAnswer(part, AnswerKind.CONFLICT, reason)
        if self._coming.overlaps(first, end):
            return PartAnswer(
                part, AnswerKind.BUSY, "another sender is sending it", retry_after_s=TAKEN_RETRY_S
            )
        return PartAnswer(part, AnswerKind.NEED)

    def holding(self) -> Holding:
        """Return which seqs are here, and which are not asked for again."""
        with self._lock:
            seen = self._stored.union(self._seen.removed).union(self._seen.not_owned)
            return Holding(self.quiver_id, IntervalSet(self._stored), seen)

    def parts(self) -> list[AdoptedPart]:
        """Return the parts that are here, in the order of their seqs; not those in damage."""
        with self._lock:
            return [self._parts[part] for part in sorted(self._parts)]

    @property
    def damaged(self) -> int:
        """How many parts were found damaged, and are not replaced by a sound copy yet."""
        return len(self._damaged)

    @property
    def damaged_bytes(self) -> int:
        """What is left of them on the disk."""
        with self._lock:
            return sum(sum(folders.values()) for folders in self._damaged.values())

    def is_damaged(self, part: PartId) -> bool:
        """Whether a sound copy of a part is waited for."""
        return part in self._damaged

    def segments(self) -> list[Segment]:
        """Return the parts that are here as segments, to be read."""
        return [Segment(self._disk, one.folder, one.summary) for one in self.parts()]

    def part(self, wanted: PartId) -> tuple[Part, PurePath]:
        """Return a part that is here, and its folder; raise `UnknownPosition` if it is not."""
        with self._lock:
            stored = self._parts.get(wanted)
        if stored is None:
            raise UnknownPosition(
                f"part {wanted} is not here",
                hint="`health` lists which seqs this node has; ask another node",
            )
        return part_of(self._disk, stored.folder, stored.summary), stored.folder

    # ----------------------------------------------------------------- adoption

    @contextlib.contextmanager
    def receiving(self, part: Part) -> Iterator[Incoming | PartAnswer]:
        """Take a part in, if it is needed; else yield the answer why not.

        Its range is ours until the end of the block. What was not committed by then is removed.
        """
        with self._lock:
            answer = self._answer(part.id)
            if answer.kind is AnswerKind.NEED:
                self._coming.add(part.id.first_seq, part.id.end_seq)
                self._stagings += 1
            folder = self._staging / f"{part.folder_name}.{self._stagings}"
        if answer.kind is not AnswerKind.NEED:
            yield answer
            return
        incoming = Incoming(self._disk, folder, part, self)
        try:
            yield incoming
        finally:
            incoming.close()
            with self._lock:
                self._coming.remove(part.id.first_seq, part.id.end_seq)

    def adopt(self, staged: PurePath, summary: Summary) -> None:
        """Steps 4 and 5: give a part that is verified and synced its name."""
        target = self._segments / names.segment_dir(summary.name)
        part = part_id(summary)
        if self._disk.exists(target):
            # Damaged, or it would be a part here.
            size_bytes = self._bytes_in(target)
            with self._lock:
                self._damaged.setdefault(part, {}).setdefault(target, size_bytes)
            self._set_aside(part, target)
        self._disk.rename(staged, target, NodePoint.ADOPT_RENAME)
        try:
            for folder in (self._segments, self._staging):
                self._disk.sync_dir(folder, NodePoint.ADOPT_SYNC_DIR)
        except OSError:
            # It must not be found, and vouched for, by a sync that says nothing about this rename.
            self._disk.rename(target, staged, NodePoint.ADOPT_UNDO)
            raise
        self._add(target, summary)
        with self._writing, self._lock:  # a scrub may be moving it
            damaged = self._damaged.pop(part, {})
        for folder in damaged:
            if folder != target:
                self._unlink(folder)

    # ------------------------------------------------------------------ removal

    def remove(self, parts: Iterable[AdoptedPart]) -> int:
        """Remove parts for good; return how many bytes they had.

        If the disk fails on the way, the rest goes with the next call, or at the next start.
        """
        with self._writing:
            self._remove_doomed()
            going = [one for one in parts if part_id(one.summary) in self._parts]
            if not going:
                return 0
            seen = _Seen(IntervalSet(self._seen.removed), IntervalSet(self._seen.not_owned))
            for one in going:
                part = part_id(one.summary)
                seen.removed.add(part.first_seq, part.end_seq)
                seen.not_owned.remove(part.first_seq, part.end_seq)
            self._write_seen(seen)
            with self._lock:
                self._seen = seen
                self.changes += 1
                for one in going:
                    part = part_id(one.summary)
                    del self._parts[part]
                    self._stored.remove(part.first_seq, part.end_seq)
            self._doomed += [one.folder for one in going]
            self._remove_doomed()
            return sum(one.size_bytes for one in going)

    def _remove_doomed(self) -> None:
        # Renamed first, and the renames synced: unlinked in place, a crash would leave a folder
        # with some of its files, which looks like damage.
        while self._doomed:
            folder = self._doomed[0]
            away = self._staging / f"{folder.name}.removed"
            if self._disk.exists(folder):  # not if the sync below failed before
                self._disk.rename(folder, away, NodePoint.REMOVE_RENAME)
            for one in (self._segments, self._staging):
                self._disk.sync_dir(one, NodePoint.REMOVE_SYNC_DIR)
            del self._doomed[0]
            self._unlink(away)

    def _unlink(self, folder: PurePath) -> None:
        """Remove a folder that nobody finds any more; what stays is swept at the next start."""
        try:
            remove_tree(self._disk, folder, NodePoint.REMOVE_UNLINK)
        except OSError as error:
            log.warning("%s cannot be removed now: %s", folder, error.strerror)

    def set_not_owned(self, ranges: IntervalSet) -> None:
        """Note which seqs are not this node's; durable when it returns."""
        with self._writing:
            not_owned = self._seen.not_owned.union(ranges).without(self._seen.removed)
            if not_owned == self._seen.not_owned:
                return
            seen = _Seen(IntervalSet(self._seen.removed), not_owned)
            self._write_seen(seen)
            with self._lock:
                self._seen = seen
                self.changes += 1

    def _write_seen(self, seen: _Seen) -> None:
        fields = {
            "removed": interval_fields(seen.removed),
            "not_owned": interval_fields(seen.not_owned),
        }
        temporary = self._staging / layout.SEEN_TEMPORARY
        layout.write_record(
            self._disk, self.folder / layout.SEEN, temporary, fields, at="node.seen"
        )

    # -------------------------------------------------------------------- scrub

    def check(self, stored: AdoptedPart) -> DamagedPart | None:
        """Read every byte of a part. A damaged one is set aside, and is not here any more."""
        part = part_id(stored.summary)
        try:
            verify(self._disk, stored.folder)
        except (Damaged, BadInput, UnknownFormat) as error:
            is_there = self._disk.exists(stored.folder)
            size_bytes = self._bytes_in(stored.folder)
            with self._lock:
                if self._parts.pop(part, None) is None:
                    return None  # removed while we looked
                self._damaged.setdefault(part, {})
                if is_there:
                    self._damaged[part][stored.folder] = size_bytes
                self._stored.remove(part.first_seq, part.end_seq)
                self.changes += 1
            if not is_there:
                log.error("part %s is gone: somebody removed its folder", part)
                return DamagedPart(part, "its folder is gone", str(stored.folder))
            log.error("part %s is damaged: %s", part, error.message)
            return DamagedPart(part, error.message, self._try_to_set_aside(part, stored.folder))
        return None

    def look_at_quarantine(self) -> None:
        """Count no more what an operator took out of quarantine: nothing else removes it there."""
        with self._writing:
            with self._lock:
                known = [(part, list(folders)) for part, folders in self._damaged.items()]
            for part, folders in known:
                gone = [one for one in folders if not self._disk.exists(one)]
                with self._lock:
                    left = self._damaged.get(part, {})
                    for folder in gone:
                        left.pop(folder, None)
                    if gone and not left:
                        self._damaged.pop(part, None)

    def set_aside_known(self) -> list[DamagedPart]:
        """Set aside what was found damaged at the start, or could not be moved when it was."""
        with self._lock:
            left = [
                (part, folder)
                for part, folders in self._damaged.items()
                for folder in folders
                if folder.parent == self._segments
            ]
        reason = "its manifest is damaged, or it could not be moved when it was found"
        return [
            DamagedPart(part, reason, self._try_to_set_aside(part, folder)) for part, folder in left
        ]

    def _try_to_set_aside(self, part: PartId, folder: PurePath) -> str:
        """Set a folder aside, if the disk lets us; return where it is now."""
        try:
            return str(self._set_aside(part, folder))
        except OSError as error:
            log.warning("%s stays where it is for now: %s", folder, error.strerror)
            return str(folder)

    def _set_aside(self, part: PartId, folder: PurePath) -> PurePath:
        """Move a folder that is known as damaged into quarantine, under a name of its own.

        One at a time; and only what is still known so: a scrub and the adoption of a sound copy
        may find the same folder, and the second must not move what has its name by then.
        """
        with self._writing:
            with self._lock:
                if folder not in self._damaged.get(part, {}):
                    return folder
            layout.make_folder(self._disk, self._quarantine)
            taken = {entry.name for entry in entries_of(self._disk, self._quarantine)}
            numbered = (f"{folder.name}.{number}" for number in count())
            away = self._quarantine / next(name for name in numbered if name not in taken)
            self._disk.rename(folder, away, NodePoint.SCRUB_SET_ASIDE)
            with self._lock:
                self._damaged[part][away] = self._damaged[part].pop(folder)
            for one in (self._quarantine, self._segments):
                self._disk.sync_dir(one, NodePoint.SCRUB_SYNC_DIR)
            return away


class Incoming:
    """A part that comes in, slice by slice."""

    def __init__(self, disk: Disk, folder: PurePath, part: Part, replica: Replica) -> None:
        self.part = part
        self._disk = disk
        self._folder = folder
        self._replica = replica
        # Which file is open, and how much of it is written.
        self._file = -1
        self._handle: Handle | None = None
        self._written_bytes = 0
        self._is_made = False

    def write(self, piece: Slice) -> None:
        """Step 1: take a slice; files and their slices come in order, each file's at least one."""
        if piece.file == self._file + 1 and piece.file < len(self.part.files):
            self._finish_file()
            self._begin_file(piece.file)
        if piece.file != self._file or piece.offset_bytes != self._written_bytes:
            raise self._torn(f"slice {piece.offset_bytes} of file {piece.file} is out of order")
        if self._written_bytes + len(piece.data) > self.part.files[self._file].size_bytes:
            raise self._torn(f"file {piece.file} is longer than it was offered")
        assert self._handle is not None, "BUG: the file of a slice is open"
        if piece.data:
            write_all(self._disk, self._handle, [piece.data], NodePoint.STAGE_WRITE)
            self._written_bytes += len(piece.data)

    def commit(self) -> None:
        """Steps 2 to 5; raises if this is not the part that was offered, or the disk fails."""
        self._finish_file()
        if self._file != len(self.part.files) - 1:
            raise self._torn(f"it ended after {self._file + 1} files")
        # What is on this disk now, read back: what was meant to be written proves nothing.
        summary = verify(self._disk, self._folder)
        if (part_id(summary), names.segment_dir(summary.name)) != (
            self.part.id,
            self.part.folder_name,
        ):
            raise BadInput(
                f"what came as part {self.part.id} is {part_id(summary)}",
                hint="offer a part by the name in its manifest",
            )
        self._disk.sync_dir(self._folder, NodePoint.STAGE_SYNC_DIR)
        self._replica.adopt(self._folder, summary)

    def close(self) -> None:
        """Remove what is still staged: all of it, unless it was adopted."""
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
        if self._is_made and self._disk.exists(self._folder):
            try:
                remove_tree(self._disk, self._folder, NodePoint.STAGE_REMOVE)
            except OSError as error:
                log.warning("%s stays until the next start: %s", self._folder, error.strerror)

    def _begin_file(self, number: int) -> None:
        if not self._is_made:
            self._disk.make_dir(self._folder, NodePoint.STAGE_MAKE_DIR)
            self._is_made = True
        path = self._folder / self.part.files[number].name
        self._handle = self._disk.create(path, NodePoint.STAGE_CREATE)
        self._file, self._written_bytes = number, 0

    def _finish_file(self) -> None:
        """Sync the file that is open: verified or not, it is not touched again."""
        if self._handle is None:
            return
        if self._written_bytes != self.part.files[self._file].size_bytes:
            raise self._torn(f"file {self._file} ended after {self._written_bytes} bytes")
        handle, self._handle = self._handle, None
        try:
            self._disk.sync(handle, NodePoint.STAGE_SYNC)
        finally:
            self._disk.close(handle)

    def _torn(self, what: str) -> BadInput:
        return BadInput(
            f"the bytes of part {self.part.id} are not as offered: {what}",
            hint="nothing was stored; offer it again",
        )


def failure(part: PartId, error: HoldfastError | OSError) -> PartAnswer:
    """Return the answer for a part whose adoption failed.

    What may be better next time is tried again; what its own bytes rule out is held by its sender.
    """
    if isinstance(error, OSError):
        if error.errno in DISK_IS_FULL:
            return PartAnswer(part, AnswerKind.BUSY, "the disk is full", FULL_RETRY_S)
        return PartAnswer(part, AnswerKind.RETRY, f"the node's disk failed: {error.strerror}")
    if isinstance(error, Damaged):
        return PartAnswer(part, AnswerKind.RETRY, f"it arrived damaged: {error.message}")
    if isinstance(error, BadInput | UnknownFormat):
        return PartAnswer(part, AnswerKind.REJECT, error.message)
    return PartAnswer(part, AnswerKind.RETRY, error.message)
