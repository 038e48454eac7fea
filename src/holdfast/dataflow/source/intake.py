"""Sources that are no quivers (files, commits, a generator), taken into one, each row once.

A source has to give a batch again as it was, to say what it still holds, and to forget what is
processed. Quivers can; so everything else goes into one first, and is read from there like the
events of a gateway. What was taken is kept in a small note beside the quiver:

    note: file begun ──▶ append (producer, epoch) ──▶ note: so far ──▶ … ──▶ done.log

A driver that dies between an append and its note takes the same rows again, under the same epoch,
and the quiver answers with the first receipt. For that the next rows must be the same again: which
file comes next is noted before anything of it is appended.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.dataflow.base.durable_file import replace_durably
from holdfast.dataflow.base.growing_files import may_grow
from holdfast.errors import BadInput
from holdfast.quiver import Quiver
from holdfast.quiver.base.envelope import TIME_TYPE

if TYPE_CHECKING:
    from holdfast.store.filesets import FileSet

PRODUCER = "intake"
SLOT = "events"
# Rows of one bundle.
BUNDLE_ROWS = 10_000
# Names of files that are done; more have to be moved away.
DONE_MAX = 1_000_000
# What Arrow says to a value that does not fit its column.
_ROW_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)
SUFFIXES = {"ndjson": (".ndjson", ".jsonl", ".json"), "parquet": (".parquet",)}


class IntakeNote:
    """How far an intake has come: a small file, replaced as a whole and synced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fields: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            self._fields = {}

    def get(self, name: str, default: Any) -> Any:
        """Return a field."""
        return self._fields.get(name, default)

    def write(self, **changes: Any) -> None:
        """Change some fields, durably."""
        self._fields |= changes
        replace_durably(self._path, json.dumps(self._fields))


class SourceIntake(ABC):
    """Takes rows into a quiver. One thread at a time."""

    def __init__(self, folder: Path, quiver: Quiver) -> None:
        self._note = IntakeNote(folder / "intake.json")
        self._quiver = quiver
        self.rows_total = 0
        self.rejected_total = 0

    @abstractmethod
    def take(self, should_stop: Callable[[], bool]) -> int:
        """Take in what is there now; return how many rows that was."""

    def _append(self, rows: pa.RecordBatch, **so_far: Any) -> None:
        """Append rows, once, and note how far that is."""
        epoch = self._note.get("epoch", 0) + 1
        if rows.num_rows:
            self._quiver.append({SLOT: rows}, producer=PRODUCER, epoch=epoch)
            self.rows_total += rows.num_rows
        self._note.write(epoch=epoch, **so_far)


# -------------------------------------------------------------------------- files


class FilesIntake(SourceIntake):
    """Takes the files of a folder, each when it is there; they must not change after that."""

    def __init__(
        self,
        folder: Path,
        quiver: Quiver,
        rejected: Quiver,
        incoming: Path,
        kind: str,
        event_time: str,
        schema: pa.Schema | None = None,
    ) -> None:
        """`rejected` gets lines that are no rows; lines have the columns of `schema`."""
        super().__init__(folder, quiver)
        self._rejected = rejected
        self._incoming = incoming
        self._kind = kind
        self._event_time = event_time
        self._schema = _with_time(schema or pa.schema([]), event_time)
        self._moments = [f.name for f in self._schema if pa.types.is_timestamp(f.type)]
        self._done_log = folder / "done.log"
        self._done = self._load_done()

    def take(self, should_stop: Callable[[], bool]) -> int:
        """See `SourceIntake`."""
        before = self.rows_total
        while not should_stop() and (name := self._next()) is not None:
            if self._note.get("file", None) != name:
                self._note.write(file=name, offset=0)
            for rows, offset in self._read(name, self._note.get("offset", 0)):
                self._append(rows, file=name, offset=offset)
                if should_stop():
                    return self.rows_total - before
            self._finish(name)
        return self.rows_total - before

    def _next(self) -> str | None:
        """Return the file that was begun, else the first that is not done.

        One that was begun and vanished is done: what was taken of it stays, and there is no more.
        """
        begun = self._note.get("file", None)
        if begun is not None and begun not in self._done:
            if self._exists(begun):
                return str(begun)
            self._finish(begun)  # taken away before its end
        return next((name for name in self._names() if name not in self._done), None)

    def _exists(self, name: str) -> bool:
        return (self._incoming / name).exists()

    def _open(self, name: str) -> BinaryIO:
        return open(self._incoming / name, "rb")

    def _names(self) -> list[str]:
        """Return the files that are there, in order."""
        if not self._incoming.is_dir():
            raise BadInput(
                "there is no folder to read files from",
                hint="create it, or name another as `files` of the source",
                path=str(self._incoming),
            )
        return sorted(
            entry.name
            for entry in os.scandir(self._incoming)
            if entry.name.endswith(SUFFIXES[self._kind]) and not entry.name.startswith((".", "_"))
        )

    def _finish(self, name: str) -> None:
        """Note that a file is done, durably, before the next one is begun."""
        self._done_log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._done_log, "a", encoding="utf-8") as file:
            file.write(json.dumps(name) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._done.add(name)

    def _load_done(self) -> set[str]:
        """Return the names of all files that are done; a line that a crash cut off is no name."""
        try:
            lines = self._done_log.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return set()
        done = {json.loads(line) for line in lines if line.endswith('"')}
        if len(done) > DONE_MAX:
            raise BadInput(
                f"{len(done)} files are done, at most {DONE_MAX} are remembered",
                hint="move them to another folder, and use a new state directory",
                path=str(self._incoming),
            )
        return done

    def _read(self, name: str, offset: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows of a file from an offset on, each with where the next ones begin."""
        read = self._read_parquet if self._kind == "parquet" else self._read_lines
        with self._open(name) as file:
            yield from read(self._incoming / name, file, offset)

    def _read_parquet(
        self, path: Path, opened: BinaryIO, offset: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Offsets are numbers of rows."""
        try:
            with pq.ParquetFile(opened) as file:
                if may_grow(file):
                    raise BadInput(
                        "a sink may add rows to the file, and each file is taken in once",
                        hint="set `target_size` of that sink to 0, and use a new folder",
                        path=str(path),
                    )
                end = 0
                for batch in file.iter_batches(BUNDLE_ROWS):
                    end += batch.num_rows
                    if end > offset:
                        yield self._timed(batch), end
        except (pa.ArrowException, OSError) as error:
            self._reject(path, [(0, str(path).encode(), f"no Parquet file: {error}")])
            yield pa.record_batch({}), offset

    def _read_lines(
        self, path: Path, file: BinaryIO, offset: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Offsets are bytes."""
        file.seek(offset)
        while lines := _lines(file, BUNDLE_ROWS):
            yield self._rows(path, offset, lines), file.tell()
            offset = file.tell()

    def _rows(self, path: Path, offset: int, lines: Sequence[bytes]) -> pa.RecordBatch:
        """Return lines as rows; those that are none are kept elsewhere, with their position.

        Arrow converts all rows or none, so they are tried one by one only if there is a bad one.
        """
        rows: list[dict[str, Any]] = []
        places: list[tuple[int, bytes]] = []
        wrong: list[tuple[int, bytes, str]] = []
        for line in lines:
            if line.strip():
                try:
                    rows.append(self._row(orjson.loads(line)))
                    places.append((offset, line))
                except (ValueError, TypeError) as error:
                    wrong.append((offset, line, str(error)))
            offset += len(line)
        try:
            fitting = self._batch(rows)
        except _ROW_ERRORS:  # one at least; that must not cost the others
            reasons = [self._why_rejected(row) for row in rows]
            wrong += [(*place, why) for place, why in zip(places, reasons, strict=True) if why]
            fitting = self._batch([row for row, why in zip(rows, reasons, strict=True) if not why])
        if wrong:
            self._reject(path, sorted(wrong))
        return fitting

    def _row(self, row: object) -> dict[str, Any]:
        """Return a JSON object with texts in columns of times parsed; Arrow does not parse them."""
        if not isinstance(row, dict):
            raise TypeError("it is not a JSON object")
        for name in self._moments:
            text = row.get(name)
            if isinstance(text, str):
                moment = datetime.fromisoformat(text)
                row[name] = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return row

    def _why_rejected(self, row: dict[str, Any]) -> str:
        """Return what Arrow says against a row; "" if it fits."""
        try:
            self._batch([row])
        except _ROW_ERRORS as error:
            return str(error)
        return ""

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows, self._schema)

    def _timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._event_time in batch.schema.names:
            return batch
        return batch.append_column(self._event_time, pa.nulls(batch.num_rows, TIME_TYPE))

    def _reject(self, path: Path, wrong: Sequence[tuple[int, bytes, str]]) -> None:
        epoch = self._note.get("epoch", 0) + 1
        headers = [{"file": str(path), "offset": str(o), "error": why} for o, _, why in wrong]
        self._rejected.append_raw(
            [line for _, line, _ in wrong],
            slot=SLOT, headers=headers, producer=PRODUCER, epoch=epoch,
        )  # fmt: skip
        self.rejected_total += len(wrong)


def _with_time(schema: pa.Schema, name: str) -> pa.Schema:
    """Return a schema whose event time is a timestamp, whatever was declared."""
    place, field = schema.get_field_index(name), pa.field(name, TIME_TYPE)
    return schema.append(field) if place < 0 else schema.set(place, field)


def _lines(file: Any, count: int) -> list[bytes]:
    """Return the next lines of a file, each with its end, so that offsets can be counted."""
    found = []
    for _ in range(count):
        line = file.readline()
        if not line:
            break
        found.append(line)
    return found


# ------------------------------------------------------------------------ commits


class FileSetIntake(FilesIntake):
    """Takes the files of a commit of a store.

    A commit never changes, so there is an end: when all files are taken, that is noted, and the
    commit is not needed any more. Until then it is pinned whenever it is read.
    """

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
        # What a store needs is an extra: pipelines without one run where it is not installed. One
        # with a store finds out here, before it starts, and not in the thread that takes rows in.
        from holdfast.store.filesets import Commits
        from holdfast.store.store import Store

        self._commits, self._store = Commits, Store
        self._url, self._database, self._commit = place
        super().__init__(folder, *quivers, Path(self._commit), kind, event_time, schema)
        self._files: FileSet | None = None
        self._listed: list[str] = []

    def take(self, should_stop: Callable[[], bool]) -> int:
        """See `SourceIntake`."""
        if self._note.get("complete", False):
            return 0
        with (
            self._store.open(self._url, database=self._database) as store,
            self._commits(store).open(self._commit) as self._files,
        ):
            found = [
                file for file in self._files.files() if not file.is_folder and not file.is_link
            ]
            self._listed = [f.path for f in found if f.path.endswith(SUFFIXES[self._kind])]
            rows = super().take(should_stop)
            if self._next() is None:
                self._note.write(complete=True)
        self._files = None
        return rows

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


# ---------------------------------------------------------------------- generator


class GeneratorIntake(SourceIntake):
    """Makes rows: numbered, with a key, a value and the time they were due."""

    def __init__(
        self, folder: Path, quiver: Quiver, rows_per_s: float, keys: int, rows: int | None
    ) -> None:
        """Make `rows_per_s` since the first start; immediately, if there is a number of `rows`."""
        super().__init__(folder, quiver)
        self._rows_per_s = rows_per_s
        self._keys = keys
        self._rows = rows

    def take(self, should_stop: Callable[[], bool]) -> int:
        """See `SourceIntake`."""
        before = self.rows_total
        began_s = self._note.get("began_s", None)
        if began_s is None:
            began_s = int(time.time())
            self._note.write(began_s=began_s)
        due = int((time.time() - began_s) * self._rows_per_s) if self._rows is None else self._rows
        while not should_stop() and (first := self._note.get("made", 0)) < due:
            end = min(due, first + BUNDLE_ROWS)
            self._append(self._made(began_s, first, end), made=end)
        return self.rows_total - before

    def _made(self, began_s: int, first: int, end: int) -> pa.RecordBatch:
        """Return rows by their numbers: the same numbers give the same rows."""
        began, step = datetime.fromtimestamp(began_s, UTC), timedelta(seconds=1 / self._rows_per_s)
        numbers = range(first, end)
        return pa.record_batch(
            {
                "event_time": pa.array([began + n * step for n in numbers], TIME_TYPE),
                "number": pa.array(numbers, pa.int64()),
                "key": [f"key-{n % self._keys}" for n in numbers],
                "value": [(n * 7919 % 1000) / 10 for n in numbers],
            }
        )
