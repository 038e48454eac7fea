"""Rejected rows, which do not fit a query's columns, on their way to the dead letters: files.

A task cannot write dead letters itself: it may run twice, its batch may be run again, and a query
may read its source twice in one batch. So it leaves a file beside the checkpoint, whose name says
which rows it read, and which is there as a whole or not at all. A task that reads the same rows
again replaces it by the same letters, or removes it if all of them fit now. The driver takes the
letters from there when the batch is committed (rejected_publish.py).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.dataflow.base.durable_file import sync_folder
from holdfast.dataflow.base.json_rows import as_json
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.rejected_judge import CAST_ERRORS, RejectedRow, cast
from holdfast.dataflow.source.schema import spark_type
from holdfast.errors import BadInput
from holdfast.quiver import Position
from holdfast.quiver.base.arrow import has_dictionary, slices_take_all
from holdfast.quiver.base.bundle import RESERVED_COLUMNS
from holdfast.quiver.base.envelope import TIME_TYPE

# What all dead letters of a pipeline have; the time is in the column that their quiver looks at.
LETTER_FIELDS = (
    pa.field("vertex", pa.string()),
    pa.field("error", pa.string()),
    # How often a function was called with the row: it never came to one.
    pa.field("attempts", pa.int32()),
    # For people, and cut.
    pa.field("row", pa.string()),
    # As it is stored, as an Arrow stream, without the quiver's own columns.
    pa.field("payload", pa.binary()),
    pa.field("event_time", TIME_TYPE),
)
POSITION_FIELDS = (pa.field("_seq", pa.int64()), pa.field("_row", pa.int32()))
SCHEMA = pa.schema([*POSITION_FIELDS, *LETTER_FIELDS])

# Letters that a task holds in memory before it writes them to its file.
HELD_MAX = 1000
ERROR_LETTERS_MAX = 1000
ROW_LETTERS_MAX = 64 * 1024
# A larger row has only what is for people: dead letters have to fit into a bundle.
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024

_FRESH = ".new"
_SUFFIX = ".arrow"


class RejectedFileName(NamedTuple):
    """Which rows a file is about: bundles of one segment, as one task reads them in one batch."""

    quiver_id: str
    segment: str
    start: Position
    end: Position

    @property
    def file(self) -> str:
        """Its name in the folder."""
        places = f"{self.start.seq}-{self.start.row}.{self.end.seq}-{self.end.row}"
        return f"{self.quiver_id}.{self.segment}.{places}{_SUFFIX}"

    @property
    def end_seq(self) -> int:
        """All its rows are of bundles before this one."""
        return self.end.seq + (self.end.row > 0)

    @classmethod
    def parse(cls, file: str) -> RejectedFileName:
        """Return what a name in the folder says."""
        quiver_id, segment, start, end = file.removesuffix(_SUFFIX).split(".")
        first, last = (Position(*map(int, place.split("-"))) for place in (start, end))
        return cls(quiver_id, segment, first, last)


def staging_folder(options: SourceOptions) -> Path:
    """Return where the tasks of a stream leave their files."""
    return Checkpoint(options.checkpoint).notes / "unfit" / options.subscriber


def staged_names(folder: Path) -> list[RejectedFileName]:
    """Return which files there are, in the order of their names."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return []
    return [RejectedFileName.parse(name) for name in found if name.endswith(_SUFFIX)]


def clear_halves(folder: Path) -> None:
    """Remove what tasks were writing when they ended; to be called while there is none."""
    for path in folder.glob(f"*{_FRESH}"):
        path.unlink(missing_ok=True)


class RejectedFile:
    """The file of one task for one piece, made when the first row does not fit."""

    def __init__(self, folder: Path, name: RejectedFileName) -> None:
        self._path = folder / name.file
        self._fresh = folder / f"{name.file}.{uuid.uuid4().hex}{_FRESH}"
        self._held: list[dict[str, object]] = []
        self._file: pa.NativeFile | None = None
        self._writer: pa.RecordBatchWriter | None = None

    def add(self, letters: Iterator[dict[str, object]]) -> None:
        """Write letters down."""
        for letter in letters:
            self._held.append(letter)
            if len(self._held) >= HELD_MAX:
                self._flush()

    def publish(self) -> None:
        """Put the file in its place, durably; without letters there is none."""
        self._flush()
        if self._writer is None or self._file is None:
            self._path.unlink(missing_ok=True)
            return
        self._writer.close()
        self._file.close()
        with open(self._fresh, "rb") as written:
            os.fsync(written.fileno())
        os.replace(self._fresh, self._path)
        sync_folder(self._path.parent)

    def discard(self) -> None:
        """Forget what was not published."""
        if self._file is not None:
            self._file.close()
            self._fresh.unlink(missing_ok=True)

    def _flush(self) -> None:
        """Write the letters that are held to the file, which is made for the first of them."""
        if not self._held:
            return
        if self._writer is None:
            self._file = self._open()
            self._writer = pa.ipc.new_file(self._file, SCHEMA)
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._held, SCHEMA))
        self._held = []

    def _open(self) -> pa.NativeFile:
        """Make the file; tasks never make the folder (see `RejectedPublisher`)."""
        try:
            return pa.OSFile(str(self._fresh), "wb")
        except FileNotFoundError as error:
            raise BadInput(
                "a row does not fit the query, and the folder for rejected rows does not exist",
                hint="tasks and driver have to share the storage of the checkpoint",
                path=str(self._path.parent),
            ) from error


# ---------------------------------------------------------------------------- letters


def letters(
    rows: pa.RecordBatch, rejected: Sequence[RejectedRow], vertex: str, where: str
) -> Iterator[dict[str, object]]:
    """Yield the dead letters for rows of a batch, which has all its columns and the quiver's."""
    own = rows.select([name for name in rows.schema.names if name not in RESERVED_COLUMNS])
    for rejected_row in rejected:
        row, (seq, number) = own.slice(rejected_row.row_index, 1), position(rows, rejected_row)
        yield {
            "_seq": seq,
            "_row": number,
            "vertex": vertex,
            "error": sentence(vertex, where, rows, rejected_row)[:ERROR_LETTERS_MAX],
            "attempts": 0,
            "row": _shown(row)[:ROW_LETTERS_MAX],
            "payload": _as_stream(row),
            "event_time": rows.column("_event_time")[rejected_row.row_index].value,
        }


def sentence(vertex: str, where: str, rows: pa.RecordBatch, rejected_row: RejectedRow) -> str:
    """Return in words which row does not fit, and why."""
    seq, number = position(rows, rejected_row)
    return f"{vertex}: row {number} of bundle {seq}: {rejected_row} [{where}]"


def position(rows: pa.RecordBatch, rejected_row: RejectedRow) -> tuple[int, int]:
    """Return bundle and row of a row that does not fit."""
    seq, number = (
        rows.column(field.name)[rejected_row.row_index].as_py() for field in POSITION_FIELDS
    )
    return seq, number


def _as_stream(row: pa.RecordBatch) -> bytes | None:
    """Return a row as an Arrow stream, by which it can be sent again; None if it is too large."""
    arrays = [_alone(column) for column in row.columns]
    alone = pa.RecordBatch.from_arrays(arrays, names=row.schema.names)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, alone.schema) as stream:
        stream.write_batch(alone)
    content = out.getvalue()
    return content.to_pybytes() if content.size <= PAYLOAD_BYTES_MAX else None


def _alone(column: pa.Array) -> pa.Array:
    """Return a value without its neighbours, which dictionaries and views would take along.

    Arrow writes a slice of a dictionary column with the whole dictionary: a letter of a few bytes
    would be as large as the batch that its row came from.
    """
    kind = spark_type(column.type)
    if kind is None or not (has_dictionary(column.type) or slices_take_all(column.type)):
        return column
    try:
        return cast(column, kind)
    except CAST_ERRORS:
        return column


def _shown(row: pa.RecordBatch) -> str:
    """Return a row as JSON; of values that Python does not have, only the type."""
    try:
        return _json(row)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        pass
    arrays = []
    for column in row.columns:
        try:
            _json(pa.RecordBatch.from_arrays([column], ["value"]))
            arrays.append(column)
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
            arrays.append(pa.array([f"({column.type})"]))
    return _json(pa.RecordBatch.from_arrays(arrays, row.schema.names))


def _json(row: pa.RecordBatch) -> str:
    text: bytes = as_json(row).column("payload")[0].as_py()
    return text.decode("utf-8")
