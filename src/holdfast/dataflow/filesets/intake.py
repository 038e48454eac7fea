"""A commit as the source of a pipeline: its files are taken into a quiver, each row once.

A commit never changes, so there is an end: when all files are taken, that is noted, and the commit
is not needed any more. Until then it is pinned whenever it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from holdfast.dataflow.source.intake import SUFFIXES, FilesIntake
from holdfast.quiver import Quiver
from holdfast.store.filesets import Commits, FileSet
from holdfast.store.store import Store


class FileSetIntake(FilesIntake):
    """Takes the files of a commit."""

    def __init__(
        self,
        folder: Path,
        quivers: tuple[Quiver, Quiver],
        place: tuple[str, str | None, str],
        kind: str,
        event_time: str,
        schema: pa.Schema | None = None,
    ) -> None:
        """`quivers` are for rows and for what is none; `place` is store, database and commit."""
        self._url, self._database, self._commit = place
        super().__init__(folder, *quivers, Path(self._commit), kind, event_time, schema)
        self._files: FileSet | None = None
        self._listed: list[str] = []

    def take(self, should_stop: Callable[[], bool]) -> int:
        """See `SourceIntake`."""
        if self._note.get("complete", False):
            return 0
        with (
            Store.open(self._url, database=self._database) as store,
            Commits(store).open(self._commit) as self._files,
        ):
            self._listed = self._wanted(self._files)
            rows = super().take(should_stop)
            if self._next() is None:
                self._note.write(complete=True)
        self._files = None
        return rows

    def _wanted(self, files: FileSet) -> list[str]:
        found = [file.path for file in files.files() if not file.is_folder and not file.is_link]
        return [path for path in found if path.endswith(SUFFIXES[self._kind])]

    def _names(self) -> list[str]:
        return self._listed

    def _exists(self, name: str) -> bool:
        return self._opened.exists(name)

    def _open(self, name: str) -> BinaryIO:
        return cast("BinaryIO", self._opened.open(name))

    @property
    def _opened(self) -> FileSet:
        assert self._files is not None, "BUG: a commit is read while it is open"
        return self._files
