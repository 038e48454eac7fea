"""The named steps at which the tools that copy touch the disk."""

from __future__ import annotations

from enum import StrEnum


class ToolPoint(StrEnum):
    """One step that can fail, or at which a process can die."""

    MARKER_CREATE = "backup.marker.create"
    MARKER_WRITE = "backup.marker.write"
    MARKER_SYNC = "backup.marker.sync"
    MARKER_RENAME = "backup.marker.rename"
    MARKER_SYNC_DIR = "backup.marker.sync_dir"
    MARKER_UNLINK = "backup.marker.unlink"
    COPY_MAKE_DIR = "backup.make_dir"
    COPY_CREATE = "backup.file.create"
    COPY_WRITE = "backup.file.write"
    COPY_SYNC = "backup.file.sync"
    COPY_SYNC_DIR = "backup.sync_dir"
    COPY_REMOVE = "backup.remove"
