"""The named moments at which a test or a proof ends the process; see `Seam.reached`.

Each lies between two effects: a transaction and an object, or two transactions.
"""

from __future__ import annotations

from holdfast.seam.points import FaultPoint


class StorePoint(FaultPoint):
    """One moment between two effects."""

    RESERVED = "gc-reserved", "chunks are reserved, none is uploaded yet"
    MARKED = "gc-marked", "chunks are marked as uploaded, nothing refers to them yet"
    REFERRED = "gc-referred", "references are changed"
    PUBLISHING = "gc-publishing", "a commit's row is there, its object is not"
    COMMIT_DELETING = (
        "gc-commit-deleting",
        "a commit is not found any more, its object is still there",
    )
    LEASES_EXPIRED = "gc-leases-expired", "leases have ended, what they held is still held"
    LEASE_RELEASED = "gc-lease-released", "a lease that ended holds nothing any more"
    COMMIT_PUT = (
        "gc-commit-put",
        "the collector stored the object of a commit that was left half made",
    )
    COMMIT_OBJECT_DELETED = (
        "gc-commit-object-deleted",
        "the collector deleted a commit's object, its row is still there",
    )
    REMOVING = "gc-removing", "garbage is marked Removing"
    DELETING = "gc-deleting", "garbage is Deleting: what it referred to is released"
    OBJECTS_DELETED = "gc-objects-deleted", "objects are deleted, their rows are not"
    FORGOTTEN = "gc-forgotten", "the rows of deleted objects are gone"
    SWEPT = "gc-swept", "orphans are deleted"
    REBUILD_LISTED = "gc-rebuild-listed", "a rebuild has a row for each object"
    REBUILD_COMMIT = "gc-rebuild-commit", "a rebuild has the references of one more commit"
    SETTING_ASIDE = "gc-setting-aside", "an old database is marked as such, and has its name still"
    SET_ASIDE = "gc-set-aside", "an old database gets another name"
    SET_ASIDE_SYNC = "gc-set-aside-sync", "the folder of a database that got another name is synced"
