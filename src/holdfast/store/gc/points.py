"""The named moments at which a test or a proof ends the process; see `Seam.reached`.

Each lies between two effects: a transaction and an object, or two transactions.
"""

from __future__ import annotations

from enum import StrEnum


class Point(StrEnum):
    """One moment between two effects."""

    RESERVED = "gc-reserved"
    MARKED = "gc-marked"
    REFERRED = "gc-referred"
    PUBLISHING = "gc-publishing"
    COMMIT_DELETING = "gc-commit-deleting"
    LEASES_EXPIRED = "gc-leases-expired"
    LEASE_RELEASED = "gc-lease-released"
    COMMIT_PUT = "gc-commit-put"
    COMMIT_OBJECT_DELETED = "gc-commit-object-deleted"
    REMOVING = "gc-removing"
    DELETING = "gc-deleting"
    OBJECTS_DELETED = "gc-objects-deleted"
    FORGOTTEN = "gc-forgotten"
    SWEPT = "gc-swept"
    REBUILD_LISTED = "gc-rebuild-listed"
    REBUILD_COMMIT = "gc-rebuild-commit"
    SETTING_ASIDE = "gc-setting-aside"
    SET_ASIDE = "gc-set-aside"
    SET_ASIDE_SYNC = "gc-set-aside-sync"


DESCRIPTIONS: dict[Point, str] = {
    Point.RESERVED: "chunks are reserved, none is uploaded yet",
    Point.MARKED: "chunks are marked as uploaded, nothing refers to them yet",
    Point.REFERRED: "references are changed",
    Point.PUBLISHING: "a commit's row is there, its object is not",
    Point.COMMIT_DELETING: "a commit is not found any more, its object is still there",
    Point.LEASES_EXPIRED: "leases have ended, what they held is still held",
    Point.LEASE_RELEASED: "a lease that ended holds nothing any more",
    Point.COMMIT_PUT: "the collector stored the object of a commit that was left half made",
    Point.COMMIT_OBJECT_DELETED: "the collector deleted a commit's object, its row is still there",
    Point.REMOVING: "garbage is marked Removing",
    Point.DELETING: "garbage is Deleting: what it referred to is released",
    Point.OBJECTS_DELETED: "objects are deleted, their rows are not",
    Point.FORGOTTEN: "the rows of deleted objects are gone",
    Point.SWEPT: "orphans are deleted",
    Point.REBUILD_LISTED: "a rebuild has a row for each object",
    Point.REBUILD_COMMIT: "a rebuild has the references of one more commit",
    Point.SETTING_ASIDE: "an old database is marked as such, and has its name still",
    Point.SET_ASIDE: "an old database gets another name",
    Point.SET_ASIDE_SYNC: "the folder of a database that got another name is synced",
}
