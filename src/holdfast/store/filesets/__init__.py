"""File sets: versioned trees of files, as sorted tar streams and indexes of them."""

from holdfast.store.filesets.archive import export_index, export_tar, import_tar
from holdfast.store.filesets.commits import Commit, Commits
from holdfast.store.filesets.extract import extract
from holdfast.store.filesets.fileset import FileSet, PathRange
from holdfast.store.filesets.folder_writer import StoredTree, put_tree
from holdfast.store.filesets.info import FileInfo, Metadata, shown_tag, tag_of
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import compact
from holdfast.store.filesets.merge import Difference
from holdfast.store.filesets.selection import Selection
from holdfast.store.filesets.writer import FileSetWriter

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
