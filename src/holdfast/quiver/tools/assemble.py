"""Making a data directory from parts: what backup, restore and salvage have in common.

1. BACKUP       says that the directory is not complete: nobody opens it by mistake
2. segments     copied byte by byte, and read back
3. WAL          bundles that are in no segment, under their old numbers, in new files whose
                headers carry on the sequence floor and the count of what was ever accepted
4. ledger       one file that begins with a checkpoint, as all do
5. FORMAT       who it is
6. BACKUP       goes, or says that the copy is complete
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath

from xxhash import xxh3_64

from holdfast.errors import BadInput, Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.config import AckLevel
from holdfast.quiver.base.frame import NO_WATERMARK, NOTHING, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.identity import (
    MARKER_VERSION,
    BackupMarker,
    CopiedFile,
    QuiverIdentity,
    write_identity,
    write_marker,
)
from holdfast.quiver.base.points import ToolPoint
from holdfast.quiver.engine.engine import make_folders
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.ledger.log import LedgerFile, LedgerHeader
from holdfast.quiver.log.group import Numbered
from holdfast.quiver.log.inbox import Append
from holdfast.quiver.log.wal import WalFile, WalHeader, new_salt
from holdfast.seam import Seam
from holdfast.seam.disk import Disk, disk_error, pieces, remove_tree, write_all

OnRead = Callable[[int], None]

_WAL_FILE_BYTES = 64 * 1024 * 1024
# Bundles are written in groups of this size: one write each would be slow for tiny ones.
_GROUP_BYTES = 4 * 1024 * 1024
# Added to every generation at a restore: more often has nobody attached to the original since.
GENERATION_STEP = 1 << 20


@contextmanager
def copying(path: PurePath) -> Iterator[None]:
    """Turn errors of the disk into ones that say what to do; a file that vanished stays that."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        again = "then remove the copy and start over; the original is untouched"
        raise disk_error(error, "the copy could not be made", path, then=again) from error


def hash_file(disk: Disk, path: PurePath) -> tuple[int, str]:
    """Return the length of a file, and its checksum."""
    hasher, size_bytes = xxh3_64(), 0
    for piece in pieces(disk, path):
        hasher.update(piece)
        size_bytes += len(piece)
    return size_bytes, hasher.hexdigest()


def check_apart(source: PurePath, target: PurePath) -> None:
    """Raise if a copy would be made inside what it is made of, or the other way round."""
    if source == target or source in target.parents or target in source.parents:
        raise BadInput(
            "one of the two directories is inside the other",
            hint="copy to another place, best to another disk",
            path=str(target),
        )


class Assembly:
    """A data directory in the making."""

    def __init__(self, seam: Seam, root: PurePath, identity: QuiverIdentity) -> None:
        """Begin in an empty directory."""
        self.root = root
        self.identity = identity
        self.files: list[CopiedFile] = []
        self._seam = seam
        self._disk = seam.disk
        self._now_ns = seam.clock.wall_ns()
        if self._disk.exists(root) and self._disk.list(root):
            raise BadInput(
                "the target directory is not empty",
                hint="name one that is empty, or does not exist yet",
                path=str(root),
            )
        folders = (names.WAL_DIR, names.SEGMENTS_DIR, names.LEDGER_DIR, names.TRASH_DIR)
        with copying(root):
            # The marker before anything else: a copy that is interrupted at any later point is
            # refused by whoever opens the directory, and never taken for a small quiver.
            make_folders(self._disk, root, ())
            write_marker(self._disk, root, self._marker(complete=False))
            make_folders(self._disk, root, folders)

    def _marker(self, *, complete: bool) -> BackupMarker:
        return BackupMarker(MARKER_VERSION, complete, self.identity.quiver_id, self._now_ns)

    # ------------------------------------------------------------------ copying

    def copy_segment(self, source: PurePath, on_read: OnRead) -> None:
        """Copy a segment's directory; raises FileNotFoundError if it goes meanwhile."""
        folder = PurePath(names.SEGMENTS_DIR) / source.name
        with copying(source):
            self._disk.make_dir(self.root / folder, ToolPoint.COPY_MAKE_DIR)
            for entry in self._disk.list(source):
                self.copy_file(source / entry.name, folder / entry.name, on_read)
            self._disk.sync_dir(self.root / folder, ToolPoint.COPY_SYNC_DIR)
            self._disk.sync_dir(self.root / names.SEGMENTS_DIR, ToolPoint.COPY_SYNC_DIR)

    def copy_members(self, source: PurePath, on_read: OnRead) -> None:
        """Copy who the data nodes of a quiver are, if it has any."""
        members = PurePath(names.HANDOFF_DIR) / names.MEMBERS
        if not self._disk.exists(source / members):
            return
        with copying(self.root):
            self._disk.make_dir(self.root / members.parent, ToolPoint.COPY_MAKE_DIR)
            self.copy_file(source / members, members, on_read)
            self._disk.sync_dir(self.root / members.parent, ToolPoint.COPY_SYNC_DIR)
            self._disk.sync_dir(self.root, ToolPoint.COPY_SYNC_DIR)

    def remove_segment(self, name: str) -> None:
        """Take a copied segment out again."""
        folder = PurePath(names.SEGMENTS_DIR) / name
        with copying(self.root / folder):
            remove_tree(self._disk, self.root / folder, ToolPoint.COPY_REMOVE)
        self.files = [file for file in self.files if PurePath(file.path).parent != folder]

    def copy_file(self, source: PurePath, target: PurePath, on_read: OnRead) -> None:
        """Copy one file, and read it back."""
        hasher = xxh3_64()
        with copying(source):
            handle = self._disk.create(self.root / target, ToolPoint.COPY_CREATE)
            try:
                for piece in pieces(self._disk, source):
                    hasher.update(piece)
                    write_all(self._disk, handle, [piece], ToolPoint.COPY_WRITE)
                    on_read(len(piece))
                self._disk.sync(handle, ToolPoint.COPY_SYNC)
            finally:
                self._disk.close(handle)
        # Read back from the disk and compared with what was read from the source: a copy is
        # checked when the original still exists, not on the day it is needed.
        self._note(target, hasher.hexdigest())

    def _note(self, target: PurePath, checksum: str | None = None) -> None:
        """Take a file into the list, as it is on disk now."""
        size_bytes, found = hash_file(self._disk, self.root / target)
        if checksum not in (None, found):
            raise Damaged(
                "a copied file does not read back as it was written",
                hint="the disk that is copied to is broken; use another one",
                path=str(self.root / target),
            )
        self.files.append(CopiedFile(target.as_posix(), size_bytes, found))

    # ---------------------------------------------------------------------- WAL

    def write_wal(
        self, bundles: Iterable[HeldBundle], total: Totals, accepted: Totals, seq_limit: int
    ) -> None:
        """Write bundles, `total` of them, into WAL files; `accepted` is what was, ever."""
        # The header says what was accepted before the file, so that header plus content is the
        # original's count. The balance at the next open rests on it.
        before = accepted.plus(-total.bundles, -total.events)
        with copying(self.root):
            file = self._begin_wal(1, None, before, seq_limit)
            group: list[Numbered] = []
            group_bytes = 0
            for held in bundles:
                group.append(Numbered([_SALVAGED], [held]))
                group_bytes += len(held.payload)
                if group_bytes < _GROUP_BYTES:
                    continue
                file.write(group)
                group, group_bytes = [], 0
                if file.end >= _WAL_FILE_BYTES:
                    before = before.plus(*file.holds)
                    self._end_wal(file)
                    file = self._begin_wal(file.header.number + 1, file, before, seq_limit)
            if group:
                file.write(group)
            self._end_wal(file)

    def _begin_wal(
        self, number: int, previous: WalFile | None, before: Totals, seq_limit: int
    ) -> WalFile:
        header = WalHeader(
            quiver_id=self.identity.quiver_id,
            number=number,
            salt=new_salt(self._seam.randomness),
            seq_limit=seq_limit,
            previous_number=previous.header.number if previous else 0,
            previous_synced=previous.synced if previous else 0,
            previous_holds=previous.synced_holds if previous else NOTHING,
            accepted_before=before,
            created_ns=self._now_ns,
        )
        return WalFile(self._disk, self.root / names.WAL_DIR, header)

    def _end_wal(self, file: WalFile) -> None:
        try:
            file.sync()
        finally:
            file.close()
        self._note(PurePath(names.WAL_DIR) / file.path.name)

    # -------------------------------------------------------------------- ending

    def write_ledger(self, state: LedgerState, number: int) -> None:
        """Write a ledger file that holds nothing but a checkpoint."""
        salt = new_salt(self._seam.randomness)
        header = LedgerHeader(self.identity.quiver_id, number, salt, self._now_ns)
        folder = PurePath(names.LEDGER_DIR)
        with copying(self.root / folder):
            file = LedgerFile.begin(self._disk, self.root / folder, header, state.to_fields())
            try:
                file.make_durable()
            finally:
                file.close()
        self._note(folder / file.path.name)

    def finish(self, backup: Totals | None) -> None:
        """Write FORMAT; mark a backup as complete, or let a quiver be opened."""
        with copying(self.root):
            write_identity(self._disk, self.root, self.identity)
            self._note(PurePath(names.FORMAT))
            if backup is not None:
                marker = BackupMarker(
                    MARKER_VERSION,
                    True,
                    self.identity.quiver_id,
                    self._now_ns,
                    *backup,
                    tuple(self.files),
                )
                write_marker(self._disk, self.root, marker)
                return
            self._disk.unlink(self.root / names.BACKUP, ToolPoint.MARKER_UNLINK)
            self._disk.sync_dir(self.root, ToolPoint.MARKER_SYNC_DIR)


# Stands for the append of a bundle that was accepted long ago.
_SALVAGED = Append([], AckLevel.FSYNCED, None, 0, NO_WATERMARK)


def fenced(state: LedgerState, now_ns: int) -> LedgerState:
    """Return a ledger's state for another quiver: nobody who was attached may go on.

    Readers of the original hold generations of the original. Were the copy to give out the next
    one, a reader of each would hold the same, and could acknowledge in the other's ledger.
    """
    generation = state.last_generation + GENERATION_STEP
    subscribers = {
        name: replace(
            subscriber, generation=generation, absent_since_ns=now_ns, absent_s=0.0, pins=[]
        )
        for name, subscriber in state.subscribers.items()
    }
    return replace(state, subscribers=subscribers, last_generation=generation)
