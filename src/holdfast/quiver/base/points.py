"""The named steps at which a quiver touches the disk: the fault points of tests and of `prove`.

Each member is the exact `at` of one call into the seam. A new step in the code needs a member here;
a test compares this list with the steps a full workload really reaches.
"""

from __future__ import annotations

from holdfast.seam.points import FaultPoint


class QuiverPoint(FaultPoint):
    """One step that can fail, or at which a process can die."""

    ROOT_MAKE_DIR = "root.make_dir", "make the data directory or one of its folders"
    ROOT_SYNC_DIR = "root.sync_dir", "sync the directory that holds the new folders"
    FORMAT_CREATE = "format.create", "create FORMAT under a temporary name"
    FORMAT_WRITE = "format.write", "write FORMAT"
    FORMAT_SYNC = "format.sync", "sync FORMAT"
    FORMAT_RENAME = "format.rename", "give FORMAT its name"
    FORMAT_SYNC_DIR = "format.sync_dir", "make FORMAT's name durable"

    WAL_CREATE = "wal.create", "create a WAL file"
    WAL_HEADER = "wal.header", "write a WAL file's header, and what has to be written again"
    WAL_HEADER_SYNC = "wal.header_sync", "sync a WAL file's header"
    WAL_SYNC_DIR = "wal.sync_dir", "make a WAL file's name durable"
    WAL_REUSE = "wal.reuse", "open a spare WAL file to write over it"
    WAL_RENAME = "wal.rename", "give it its number, once its header is synced"
    WAL_REOPEN = "wal.reopen", "open it again under its name, to append behind its header"
    WAL_WRITE = "wal.write", "write one group of frames"
    WAL_SYNC = "wal.sync", "sync one group: the moment of acknowledgement"
    WAL_ROTATE_SYNC = "wal.rotate_sync", "sync what a full WAL file still holds unsynced"
    WAL_CLOSE_WRITE = "wal.close_write", "write the closing frame of a clean shutdown"
    WAL_CLOSE_SYNC = "wal.close_sync", "sync the closing frame"
    WAL_UNDO = "wal.undo", "cut a failed group off the file again"
    WAL_UNDO_SYNC = "wal.undo_sync", "sync after that cut"

    SEAL_MAKE_DIR = "seal.make_dir", "make a segment's temporary directory"
    SEAL_DATA_CREATE = "seal.data.create", "create a slot's Arrow file"
    SEAL_DATA_WRITE = "seal.data.write", "write a slot's Arrow file"
    SEAL_DATA_SYNC = "seal.data.sync", "sync a slot's Arrow file"
    SEAL_BUNDLES_CREATE = "seal.bundles.create", "create the bundle table"
    SEAL_BUNDLES_WRITE = "seal.bundles.write", "write the bundle table"
    SEAL_BUNDLES_SYNC = "seal.bundles.sync", "sync the bundle table"
    SEAL_MANIFEST_CREATE = "seal.manifest.create", "create the manifest"
    SEAL_MANIFEST_WRITE = "seal.manifest.write", "write the manifest"
    SEAL_MANIFEST_SYNC = "seal.manifest.sync", "sync the manifest"
    SEAL_SYNC_DIR = "seal.sync_dir", "make the names inside the segment durable"
    SEAL_RENAME = "seal.rename", "give the segment its name: it becomes visible"
    SEAL_SYNC_PARENT = "seal.sync_parent", "make the segment's name durable: its WAL may go"

    TRUNCATE_UNLINK = "truncate.unlink", "remove a WAL file whose bundles are all in segments"
    TRUNCATE_KEEP = "truncate.keep", "rename such a file to a spare instead, to be written over"
    TRUNCATE_SYNC_DIR = "truncate.sync_dir", "make those names durable"
    SPARE_UNLINK = "spare.unlink", "remove a spare: its room is needed, or the quiver closes"

    LEDGER_CREATE = "ledger.create", "create a ledger file"
    LEDGER_HEADER = "ledger.header", "write a ledger file's header"
    LEDGER_HEADER_SYNC = "ledger.header_sync", "sync a ledger file's header"
    LEDGER_CHECKPOINT = "ledger.checkpoint", "write the checkpoint a ledger file begins with"
    LEDGER_CHECKPOINT_SYNC = "ledger.checkpoint_sync", "sync that checkpoint"
    LEDGER_SYNC_DIR = "ledger.sync_dir", "make a ledger file's name durable"
    LEDGER_WRITE = "ledger.write", "write lines of the ledger: acks, drops, pins, registrations"
    LEDGER_SYNC = "ledger.sync", "sync the ledger: from here on data may be deleted"
    LEDGER_CONTINUE = "ledger.continue", "note in a closed ledger file which one follows it"
    LEDGER_CONTINUE_SYNC = "ledger.continue_sync", "sync that note"
    LEDGER_UNDO = "ledger.undo", "cut a failed line off the ledger again"
    LEDGER_UNLINK = "ledger.unlink", "remove a closed ledger file past its time"

    TRASH_MOVE = "trash.move", "move a segment that no subscriber needs into the trash"
    TRASH_SYNC_DIR = "trash.sync_dir", "make that move durable"
    TRASH_UNLINK = "trash.unlink", "unlink a file in the trash"

    RESERVE_MAKE_DIR = "reserve.make_dir", "make the folder of the reserve"
    RESERVE_CREATE = "reserve.create", "create a part of the reserve"
    RESERVE_WRITE = "reserve.write", "write its bytes"
    RESERVE_SYNC = "reserve.sync", "sync them, so that the blocks are ours"
    RESERVE_SYNC_DIR = (
        "reserve.sync_dir",
        "sync the folder of the reserve, or the one that holds it",
    )
    RESERVE_UNLINK = "reserve.unlink", "give up a part of the reserve, because the disk is full"

    RECOVER_SYNC = "recover.sync", "sync what the last process may not have synced"
    RECOVER_SWEEP = "recover.sweep", "remove what an interrupted seal left"
    QUARANTINE_MAKE_DIR = "quarantine.make_dir", "make the quarantine folder"
    QUARANTINE_MOVE = "quarantine.move", "move a damaged file or segment into quarantine"
    QUARANTINE_CREATE = "quarantine.create", "create a file for damaged bytes"
    QUARANTINE_WRITE = "quarantine.write", "copy damaged bytes into quarantine"
    QUARANTINE_SYNC = "quarantine.sync", "sync the quarantined bytes"
    QUARANTINE_SYNC_DIR = "quarantine.sync_dir", "make names in quarantine durable"


class ArchivePoint(FaultPoint):
    """The moments around an upload, as fault injection names them: see `Seam.reached`."""

    SENDING = "archive-sending", "a segment is not in the archive, and about to be sent"
    FILES_SENT = "archive-files-sent", "the archive has all files of a segment but its manifest"
    SENT = "archive-sent", "the archive has a whole segment, and nobody knows yet"


class ToolPoint(FaultPoint):
    """One step of the tools that copy: it can fail, or a process can die at it."""

    MARKER_CREATE = "backup.marker.create", "create BACKUP under a temporary name"
    MARKER_WRITE = "backup.marker.write", "write BACKUP"
    MARKER_SYNC = "backup.marker.sync", "sync BACKUP"
    MARKER_RENAME = "backup.marker.rename", "give BACKUP its name"
    MARKER_SYNC_DIR = "backup.marker.sync_dir", "make BACKUP's name durable"
    MARKER_UNLINK = "backup.marker.unlink", "remove BACKUP: the copy becomes a quiver"
    COPY_MAKE_DIR = "backup.make_dir", "make a folder of the copy"
    COPY_CREATE = "backup.file.create", "create a file of the copy"
    COPY_WRITE = "backup.file.write", "write a file of the copy"
    COPY_SYNC = "backup.file.sync", "sync a file of the copy"
    COPY_SYNC_DIR = "backup.sync_dir", "make names in the copy durable"
    COPY_REMOVE = "backup.remove", "remove a file or folder of the copy again"
