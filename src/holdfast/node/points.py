"""The named steps at which a data node touches the disk: the fault points of tests and proofs."""

from __future__ import annotations

from holdfast.seam.points import FaultPoint


class NodePoint(FaultPoint):
    """One step that can fail, or at which a process can die."""

    ROOT_MAKE_DIR = "node.root.make_dir", "make the data directory or one of its folders"
    ROOT_SYNC_DIR = "node.root.sync_dir", "make the name of a new folder durable"
    IDENTITY_CREATE = "node.identity.create", "create NODE under a temporary name"
    IDENTITY_WRITE = "node.identity.write", "write NODE"
    IDENTITY_SYNC = "node.identity.sync", "sync NODE"
    IDENTITY_RENAME = "node.identity.rename", "give NODE its name"
    IDENTITY_SYNC_DIR = "node.identity.sync_dir", "make NODE's name durable"

    STAGE_MAKE_DIR = "node.stage.make_dir", "make the folder of a part that comes in"
    STAGE_CREATE = "node.stage.create", "create a file of it"
    STAGE_WRITE = "node.stage.write", "write a slice of it"
    STAGE_SYNC = "node.stage.sync", "sync a file of it"
    STAGE_SYNC_DIR = "node.stage.sync_dir", "make the names inside the part durable"
    STAGE_REMOVE = "node.stage.remove", "remove a part that was not adopted"

    ADOPT_RENAME = "node.adopt.rename", "give the part its name: it is adopted"
    ADOPT_SYNC_DIR = "node.adopt.sync_dir", "make that name durable: it may be acknowledged"
    ADOPT_UNDO = "node.adopt.undo", "take the name away again, because its sync failed"

    SEEN_CREATE = "node.seen.create", "create `seen` under a temporary name"
    SEEN_WRITE = "node.seen.write", "write `seen`"
    SEEN_SYNC = "node.seen.sync", "sync `seen`"
    SEEN_RENAME = "node.seen.rename", "give `seen` its name"
    SEEN_SYNC_DIR = "node.seen.sync_dir", "make that durable: parts that it names may be removed"

    REMOVE_RENAME = "node.remove.rename", "move a part that retention takes out of sight"
    REMOVE_SYNC_DIR = "node.remove.sync_dir", "make that move durable"
    REMOVE_UNLINK = "node.remove.unlink", "remove its files"

    SCRUB_SET_ASIDE = "node.scrub.set_aside", "move a damaged part into quarantine"
    SCRUB_SYNC_DIR = "node.scrub.sync_dir", "make that move durable"

    RECOVER_SWEEP = "node.recover.sweep", "remove what the last process left half done"
    RECOVER_SYNC_DIR = "node.recover.sync_dir", "sync names that the last process may not have"
