"""The named steps of a sender at which a test or a proof fails a call, or ends the process."""

from __future__ import annotations

from holdfast.seam.points import FaultPoint


class HandoffPoint(FaultPoint):
    """One step on disk, or one moment between an answer and the ledger."""

    MAKE_DIR = "handoff.make_dir", "make the folder for what is known of data nodes"
    SYNC_ROOT = "handoff.sync_root", "make that folder's name durable"
    SWEEP = "handoff.sweep", "remove what a crash left of writing MEMBERS"
    MEMBERS_CREATE = "handoff.members.create", "create MEMBERS under a temporary name"
    MEMBERS_WRITE = "handoff.members.write", "write MEMBERS"
    MEMBERS_SYNC = "handoff.members.sync", "sync MEMBERS"
    MEMBERS_RENAME = "handoff.members.rename", "give MEMBERS its name: who owns what has changed"
    MEMBERS_SYNC_DIR = "handoff.members.sync_dir", "make that name durable"

    ANSWERED = "handoff-answered", "a data node has the part, the outcome is not written yet"
    COMMITTED = "handoff-committed", "the outcome is written; a power cut may still take it back"
    REOPENED = "handoff-reopened", "others wait for what a forgotten node missed; it is still here"
    FORGOTTEN = "handoff-forgotten", "MEMBERS names the node no more; its subscriber is still there"
