"""The named steps at which the tools that copy touch the disk."""

from __future__ import annotations

from holdfast.seam.points import FaultPoint


class ToolPoint(FaultPoint):
    """One step that can fail, or at which a process can die."""

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
