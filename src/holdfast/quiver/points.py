"""The named steps at which a quiver touches the disk: the fault points of tests and of `prove`.

Each member is the exact `at` of one call into the seam. A new step in the code needs a member here;
a test compares this list with the steps a full workload really reaches.
"""

from __future__ import annotations

from enum import StrEnum


class Point(StrEnum):
    """One step that can fail, or at which a process can die."""

    ROOT_MAKE_DIR = "root.make_dir"
    ROOT_SYNC_DIR = "root.sync_dir"
    FORMAT_CREATE = "format.create"
    FORMAT_WRITE = "format.write"
    FORMAT_SYNC = "format.sync"
    FORMAT_RENAME = "format.rename"
    FORMAT_SYNC_DIR = "format.sync_dir"

    WAL_CREATE = "wal.create"
    WAL_HEADER = "wal.header"
    WAL_HEADER_SYNC = "wal.header_sync"
    WAL_SYNC_DIR = "wal.sync_dir"
    WAL_WRITE = "wal.write"
    WAL_SYNC = "wal.sync"
    WAL_ROTATE_SYNC = "wal.rotate_sync"
    WAL_CLOSE_WRITE = "wal.close_write"
    WAL_CLOSE_SYNC = "wal.close_sync"
    WAL_UNDO = "wal.undo"
    WAL_UNDO_SYNC = "wal.undo_sync"

    SEAL_MAKE_DIR = "seal.make_dir"
    SEAL_DATA_CREATE = "seal.data.create"
    SEAL_DATA_WRITE = "seal.data.write"
    SEAL_DATA_SYNC = "seal.data.sync"
    SEAL_BUNDLES_CREATE = "seal.bundles.create"
    SEAL_BUNDLES_WRITE = "seal.bundles.write"
    SEAL_BUNDLES_SYNC = "seal.bundles.sync"
    SEAL_MANIFEST_CREATE = "seal.manifest.create"
    SEAL_MANIFEST_WRITE = "seal.manifest.write"
    SEAL_MANIFEST_SYNC = "seal.manifest.sync"
    SEAL_SYNC_DIR = "seal.sync_dir"
    SEAL_RENAME = "seal.rename"
    SEAL_SYNC_PARENT = "seal.sync_parent"

    TRUNCATE_UNLINK = "truncate.unlink"
    TRUNCATE_SYNC_DIR = "truncate.sync_dir"

    LEDGER_CREATE = "ledger.create"
    LEDGER_HEADER = "ledger.header"
    LEDGER_HEADER_SYNC = "ledger.header_sync"
    LEDGER_CHECKPOINT = "ledger.checkpoint"
    LEDGER_CHECKPOINT_SYNC = "ledger.checkpoint_sync"
    LEDGER_SYNC_DIR = "ledger.sync_dir"
    LEDGER_WRITE = "ledger.write"
    LEDGER_SYNC = "ledger.sync"
    LEDGER_CONTINUE = "ledger.continue"
    LEDGER_CONTINUE_SYNC = "ledger.continue_sync"
    LEDGER_UNDO = "ledger.undo"
    LEDGER_UNLINK = "ledger.unlink"

    TRASH_MOVE = "trash.move"
    TRASH_SYNC_DIR = "trash.sync_dir"
    TRASH_UNLINK = "trash.unlink"

    RESERVE_MAKE_DIR = "reserve.make_dir"
    RESERVE_CREATE = "reserve.create"
    RESERVE_WRITE = "reserve.write"
    RESERVE_SYNC = "reserve.sync"
    RESERVE_SYNC_DIR = "reserve.sync_dir"
    RESERVE_UNLINK = "reserve.unlink"

    RECOVER_SYNC = "recover.sync"
    RECOVER_SWEEP = "recover.sweep"
    QUARANTINE_MAKE_DIR = "quarantine.make_dir"
    QUARANTINE_MOVE = "quarantine.move"
    QUARANTINE_CREATE = "quarantine.create"
    QUARANTINE_WRITE = "quarantine.write"
    QUARANTINE_SYNC = "quarantine.sync"
    QUARANTINE_SYNC_DIR = "quarantine.sync_dir"


DESCRIPTIONS: dict[Point, str] = {
    Point.ROOT_MAKE_DIR: "make the data directory or one of its folders",
    Point.ROOT_SYNC_DIR: "sync the directory that holds the new folders",
    Point.FORMAT_CREATE: "create FORMAT under a temporary name",
    Point.FORMAT_WRITE: "write FORMAT",
    Point.FORMAT_SYNC: "sync FORMAT",
    Point.FORMAT_RENAME: "give FORMAT its name",
    Point.FORMAT_SYNC_DIR: "make FORMAT's name durable",
    Point.WAL_CREATE: "create a WAL file",
    Point.WAL_HEADER: "write a WAL file's header, and what has to be written again",
    Point.WAL_HEADER_SYNC: "sync a WAL file's header",
    Point.WAL_SYNC_DIR: "make a WAL file's name durable",
    Point.WAL_WRITE: "write one group of frames",
    Point.WAL_SYNC: "sync one group: the moment of acknowledgement",
    Point.WAL_ROTATE_SYNC: "sync what a full WAL file still holds unsynced",
    Point.WAL_CLOSE_WRITE: "write the closing frame of a clean shutdown",
    Point.WAL_CLOSE_SYNC: "sync the closing frame",
    Point.WAL_UNDO: "cut a failed group off the file again",
    Point.WAL_UNDO_SYNC: "sync after that cut",
    Point.SEAL_MAKE_DIR: "make a segment's temporary directory",
    Point.SEAL_DATA_CREATE: "create a slot's Arrow file",
    Point.SEAL_DATA_WRITE: "write a slot's Arrow file",
    Point.SEAL_DATA_SYNC: "sync a slot's Arrow file",
    Point.SEAL_BUNDLES_CREATE: "create the bundle table",
    Point.SEAL_BUNDLES_WRITE: "write the bundle table",
    Point.SEAL_BUNDLES_SYNC: "sync the bundle table",
    Point.SEAL_MANIFEST_CREATE: "create the manifest",
    Point.SEAL_MANIFEST_WRITE: "write the manifest",
    Point.SEAL_MANIFEST_SYNC: "sync the manifest",
    Point.SEAL_SYNC_DIR: "make the names inside the segment durable",
    Point.SEAL_RENAME: "give the segment its name: it becomes visible",
    Point.SEAL_SYNC_PARENT: "make the segment's name durable: its WAL may go",
    Point.TRUNCATE_UNLINK: "remove a WAL file whose bundles are all in segments",
    Point.TRUNCATE_SYNC_DIR: "make that removal durable",
    Point.LEDGER_CREATE: "create a ledger file",
    Point.LEDGER_HEADER: "write a ledger file's header",
    Point.LEDGER_HEADER_SYNC: "sync a ledger file's header",
    Point.LEDGER_CHECKPOINT: "write the checkpoint a ledger file begins with",
    Point.LEDGER_CHECKPOINT_SYNC: "sync that checkpoint",
    Point.LEDGER_SYNC_DIR: "make a ledger file's name durable",
    Point.LEDGER_WRITE: "write lines of the ledger: acks, drops, pins, registrations",
    Point.LEDGER_SYNC: "sync the ledger: from here on data may be deleted",
    Point.LEDGER_CONTINUE: "note in a closed ledger file which one follows it",
    Point.LEDGER_CONTINUE_SYNC: "sync that note",
    Point.LEDGER_UNDO: "cut a failed line off the ledger again",
    Point.LEDGER_UNLINK: "remove a closed ledger file past its time",
    Point.TRASH_MOVE: "move a segment nobody needs into the trash",
    Point.TRASH_SYNC_DIR: "make that move durable",
    Point.TRASH_UNLINK: "unlink a file in the trash",
    Point.RESERVE_MAKE_DIR: "make the folder of the reserve",
    Point.RESERVE_CREATE: "create a part of the reserve",
    Point.RESERVE_WRITE: "write its bytes",
    Point.RESERVE_SYNC: "sync them, so that the blocks are ours",
    Point.RESERVE_SYNC_DIR: "sync the folder of the reserve, or the one that holds it",
    Point.RESERVE_UNLINK: "give up a part of the reserve, because the disk is full",
    Point.RECOVER_SYNC: "sync what the last process may not have synced",
    Point.RECOVER_SWEEP: "remove what an interrupted seal left",
    Point.QUARANTINE_MAKE_DIR: "make the quarantine folder",
    Point.QUARANTINE_MOVE: "move a damaged file or segment into quarantine",
    Point.QUARANTINE_CREATE: "create a file for damaged bytes",
    Point.QUARANTINE_WRITE: "copy damaged bytes into quarantine",
    Point.QUARANTINE_SYNC: "sync the quarantined bytes",
    Point.QUARANTINE_SYNC_DIR: "make names in quarantine durable",
}
