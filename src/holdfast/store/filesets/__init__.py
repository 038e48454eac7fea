"""File sets: versioned trees of files, as sorted tar streams and indexes of them.

What is named here is imported when it is asked for: a command that lists commits needs neither what
reads folders nor what reads tar archives, and starts without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.store.filesets.archive import export_index, export_tar, import_tar
    from holdfast.store.filesets.commits import Commit, Commits
    from holdfast.store.filesets.fileset import FileSet, PathRange
    from holdfast.store.filesets.folder_writer import StoredTree, put_tree
    from holdfast.store.filesets.info import FileInfo, Metadata, shown_tag, tag_of
    from holdfast.store.filesets.layer import Layer
    from holdfast.store.filesets.layer_builder import compact
    from holdfast.store.filesets.merge import Difference
    from holdfast.store.filesets.restore import extract
    from holdfast.store.filesets.selection import Selection
    from holdfast.store.filesets.writer import FileSetWriter

_MODULES = {
    "Commit": "commits",
    "Commits": "commits",
    "Difference": "merge",
    "FileInfo": "info",
    "FileSet": "fileset",
    "FileSetWriter": "writer",
    "Layer": "layer",
    "Metadata": "info",
    "PathRange": "fileset",
    "Selection": "selection",
    "StoredTree": "folder_writer",
    "compact": "layer_builder",
    "export_index": "archive",
    "export_tar": "archive",
    "extract": "restore",
    "import_tar": "archive",
    "put_tree": "folder_writer",
    "shown_tag": "info",
    "tag_of": "info",
}

__all__ = [
    "Commit",
    "Commits",
    "Difference",
    "FileInfo",
    "FileSet",
    "FileSetWriter",
    "Layer",
    "Metadata",
    "PathRange",
    "Selection",
    "StoredTree",
    "compact",
    "export_index",
    "export_tar",
    "extract",
    "import_tar",
    "put_tree",
    "shown_tag",
    "tag_of",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found  # for the next time
    return found
