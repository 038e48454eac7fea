"""`spark.read` of a commit: its files, or the rows in them, a range of paths per task.

The pin is a lease of the length that option `pin` says, and it is never renewed: Spark plans a read
in a process that ends when the plan is made, long before the last task. It simply expires.

Files hold rows as Parquet, Arrow (the IPC file format) or JSON (an object a line). Of Parquet only
the columns and row groups are read that may hold something wanted, of Arrow only the columns; JSON
has to be read as a whole, and what is not wanted is left out then.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic import AwareDatetime, Field
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.filesets.shipping import ShippedPart, Shipper, absolute
from holdfast.dataflow.source.options import NameTuple, validated
from holdfast.dataflow.source.schema import fitter, spark_type
from holdfast.errors import BadConfig, BadInput
from holdfast.settings import DurationS, Secret, Settings, SizeBytes
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileInfo, FileSet
from holdfast.store.filesets.fileset import BUFFER_BYTES, StoredFile
from holdfast.store.filesets.paths import compile_glob
from holdfast.store.gc.settings import GcSettings
from holdfast.store.store import Store

RowsFormat = Literal["files", "parquet", "arrow", "json"]


class FileSetOptions(Settings):
    """Options of a read; lists are written with commas, sizes and durations with units."""

    store: str
    """The store: a folder, or `s3://bucket/prefix`."""

    database: Secret | None = None
    """Its database, where it is not in the folder. Only the driver uses it."""

    path: str = ""
    """The commit: the argument of `load(…)`."""

    format: RowsFormat = "files"
    """`files`: a row per file (path, size, modified, content). Else the rows that are in them."""

    glob: str = ""
    """Only files whose path matches; by default all, or all that end as the format does."""

    columns: NameTuple | None = None
    """The columns to read; without it all. Content that is not asked for is not read."""

    since: AwareDatetime | None = None
    """Only rows with this time or a later one; of `files`, only files modified then or later."""

    until: AwareDatetime | None = None
    """Only rows, or files, before this time."""

    time_column: str = "event_time"
    """The column that `since` and `until` are about, if rows are read."""

    shard_files: Annotated[int, Field(ge=1)] = 10_000
    """Files that one task reads, about."""

    shard_bytes: SizeBytes = 64 * 1024 * 1024
    """Bytes of files that one task reads, about."""

    pin: Annotated[DurationS, Field(gt=0, le=7 * 86400)] = 3600.0
    """How long the read may take, from its plan on: until then nothing that it reads is collected,
    even if the commit is deleted. For longer reads hold the commit open: `Commits.open`."""


def parse_file_set_options(options: Mapping[str, Any]) -> FileSetOptions:
    """Return the options of a read; raise `BadConfig` with everything that is wrong."""
    fault = "the store cannot be read like this"
    parsed = validated(FileSetOptions, options, fault, "options with `store`")
    if not parsed.path:
        raise BadConfig(
            "no commit is named", hint="write .load('name'); `holdfast files ls` lists them"
        )
    return parsed


SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "json": (".json", ".ndjson", ".jsonl"),
}
BATCH_ROWS = 10_000


class RowFormat:
    """Reads the rows of files of one kind.

    A file that lacks a column is read all the same, as Spark does with folders of files: columns
    are fitted to the schema afterwards, and missing ones are null. Only the time is different: what
    cannot be compared is not wanted.
    """

    def __init__(
        self,
        kind: str,
        time_column: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> None:
        self._kind = kind
        self._time_column = time_column
        self._since, self._until = since, until

    @property
    def _is_timed(self) -> bool:
        return self._since is not None or self._until is not None

    def schema(self, file: BinaryIO, path: str) -> pa.Schema:
        """Return the columns of a file, in types that Spark takes."""
        try:
            if self._kind == "json":
                with pj.open_json(file) as reader:
                    found = reader.schema
            else:
                found = self._fragment(file).physical_schema
        except pa.ArrowException as error:
            raise self._unreadable(path, error) from error
        if self._is_timed and self._time_column not in found.names:
            raise BadInput(
                f"there is no column {self._time_column!r} in {path!r}",
                hint="name the one with the time: option time_column",
            )
        kinds = [(field.name, spark_type(field.type)) for field in found]
        return pa.schema([(name, kind) for name, kind in kinds if kind is not None])

    def rows(self, file: BinaryIO, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield those columns of a file that it has, of the rows whose time is wanted."""
        try:
            yield from (self._json if self._kind == "json" else self._columnar)(file, columns)
        except pa.ArrowException as error:
            raise self._unreadable(path, error) from error

    def _fragment(self, file: BinaryIO) -> Any:
        # Here, because it imports pandas: half a second that nobody else should wait for.
        import pyarrow.dataset as ds

        kinds = {"parquet": ds.ParquetFileFormat, "arrow": ds.IpcFileFormat}
        return kinds[self._kind]().make_fragment(pa.PythonFile(file, mode="r"))

    def _columnar(self, file: BinaryIO, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield rows of Parquet, without row groups that cannot match, or of Arrow."""
        fragment = self._fragment(file)
        found = fragment.physical_schema
        if self._is_timed and self._time_column not in found.names:
            return
        wanted = [name for name in columns if name in found.names]
        yield from fragment.to_batches(
            columns=wanted, filter=self._filter(found), batch_size=BATCH_ROWS
        )

    def _json(self, file: BinaryIO, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield rows of JSON, which has to be parsed as a whole before anything is left out."""
        with pj.open_json(file) as reader:
            found = reader.schema
            if self._is_timed and self._time_column not in found.names:
                return
            wanted = [name for name in columns if name in found.names]
            condition = self._filter(found)
            for batch in reader:
                yield (batch if condition is None else batch.filter(condition)).select(wanted)

    def _filter(self, schema: pa.Schema) -> pc.Expression | None:
        """Return the condition on time; None if all rows are wanted."""
        if not self._is_timed:
            return None
        column, kind = pc.field(self._time_column), schema.field(self._time_column).type
        bounds = []
        if self._since is not None:
            bounds.append(column >= _moment(self._since, kind))
        if self._until is not None:
            bounds.append(column < _moment(self._until, kind))
        return bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]

    def _unreadable(self, path: str, error: pa.ArrowException) -> BadInput:
        """Return the error for a file that is not of the format that was asked for."""
        return BadInput(
            f"{path!r} cannot be read as {self._kind}: {str(error).splitlines()[0]}",
            hint="leave it out with option glob, or read it as a file: option format",
        )


def _moment(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """Return a time as a column of that type holds it; times without a zone are UTC."""
    if not pa.types.is_timestamp(kind):
        raise BadInput(
            f"the column with the time holds {kind}, not times",
            hint="name another with option time_column, or leave out since and until",
        )
    # Cast in two steps, unit first and zone second: Arrow compares only equal types, and a column
    # without a zone is taken for UTC, as everywhere here.
    whole = pa.scalar(moment, pa.timestamp("us", "UTC"))
    return whole.cast(pa.timestamp(kind.unit, "UTC"), safe=False).cast(
        pa.timestamp(kind.unit, kind.tz), safe=False
    )


TIME_TYPE = pa.timestamp("us", tz="UTC")
FILES = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("modified", TIME_TYPE), ("content", pa.binary())]
)
# Rows of one batch of files, and bytes of their content: at least one file.
BATCH_FILES = 1000
BATCH_BYTES = 16 * 1024 * 1024
# What one value in Spark can hold.
CONTENT_BYTES_MAX = 2**31 - 1
_US_NS = 1000


class FileSetReader(DataSourceReader):
    """Reads the files of a commit."""

    def __init__(self, options: FileSetOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        """Leave the database out: this is what tasks get, and they must not need it.

        Spark pickles the reader for every task. A password that is not in the pickle cannot end up
        in an event log or on an executor's disk.
        """
        return {
            "_options": self._options.model_copy(
                update={"database": None, "store": absolute(self._options.store)}
            ),
            "_schema": self._schema,
        }

    def partitions(self) -> Sequence[InputPartition]:
        """Pin the commit, and return its parts."""
        options = self._options
        needs_content = options.format != "files" or "content" in self._schema.names
        with open_store(options, options.pin) as store:
            files = Commits(store).open(options.path)
            try:
                parts = Shipper(files, store.references).parts(
                    max_files=options.shard_files,
                    max_bytes=options.shard_bytes,
                    content_of=wanted(options) if needs_content else None,
                )
                return list(parts)  # and the pin stays, for the tasks
            except BaseException:
                files.close()
                raise

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        if not isinstance(partition, ShippedPart):
            return  # Spark's own word for "there are none"
        # Without the database: tasks are given the keys of all chunks that they need, so that a
        # hundred executors do not ask it, nor have to reach it.
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with Store.open_objects(self._options.store) as store:
            files = FileSet(store, partition.layers, keys=partition.found_keys())
            is_wanted = wanted(self._options)
            found = (file for file in files.files(partition.lo, partition.hi) if is_wanted(file))
            if self._options.format == "files":
                yield from _as_rows(files, found, schema)
            else:
                yield from _rows_in(files, found, schema, self._options)


@contextmanager
def open_store(options: FileSetOptions, lease_s: float) -> Iterator[Store]:
    """Open the store with its database; leases of this process have this length."""
    database = options.database.get_secret_value() if options.database else None
    settings = StoreSettings(gc=GcSettings(lease_s=lease_s))
    with Store.open(options.store, database=database, settings=settings) as store:
        yield store


def file_set_schema(options: FileSetOptions) -> pa.Schema:
    """Return the columns of a read: those of files, or those of the first file."""
    schema = FILES if options.format == "files" else _first_schema(options)
    if options.columns is None:
        return schema
    missing = [name for name in options.columns if name not in schema.names]
    if missing:
        raise BadInput(
            f"there is no column {', '.join(missing)} in commit {options.path!r}",
            hint=f"there are {', '.join(schema.names)}",
        )
    return pa.schema([schema.field(name) for name in options.columns])


def _first_schema(options: FileSetOptions) -> pa.Schema:
    """Return the columns of the first file that is wanted.

    Reading all files for their columns would take as long as the read itself. Columns that a later
    file has in another type are cast; those it lacks are null.
    """
    is_wanted = wanted(options)
    lease_s = StoreSettings().gc.lease_s
    with open_store(options, lease_s) as store, Commits(store).open(options.path) as files:
        for file in files.files():
            if is_wanted(file):
                with _opened(files, file) as opened:
                    return _row_format(options).schema(opened, file.path)
    raise BadInput(
        f"commit {options.path!r} has no file to read as {options.format}",
        hint=f"name some with option glob; by default {', '.join(SUFFIXES[options.format])}",
    )


def wanted(options: FileSetOptions) -> Callable[[FileInfo], bool]:
    """Return whether a file is to be read.

    Of rows, times are judged row by row and not by file: when a file was modified says nothing
    about the events in it. Of `files` the time of modification is all there is.
    """
    matches = compile_glob(options.glob).fullmatch if options.glob else None
    suffixes = SUFFIXES.get(options.format, ("",)) if matches is None else ("",)
    since_ns, until_ns = (_ns(moment) for moment in (options.since, options.until))

    def is_wanted(file: FileInfo) -> bool:
        if file.is_folder or file.is_link or not file.path.endswith(suffixes):
            return False
        if matches is not None and not matches(file.path):
            return False
        if options.format != "files" or (since_ns is None and until_ns is None):
            return True
        modified_ns = file.mtime_ns
        return modified_ns is not None and (
            (since_ns is None or modified_ns >= since_ns)
            and (until_ns is None or modified_ns < until_ns)
        )

    return is_wanted


def _ns(moment: datetime | None) -> int | None:
    """Return a bound of time as files have theirs."""
    return None if moment is None else pa.scalar(moment, TIME_TYPE).value * _US_NS


def _row_format(options: FileSetOptions) -> RowFormat:
    return RowFormat(options.format, options.time_column, options.since, options.until)


def _opened(files: FileSet, file: FileInfo) -> BinaryIO:
    """Return a file as Arrow reads it: in any order, and only the chunks it asks for."""
    raw = StoredFile(files.reader, file.refs, file.size_bytes)
    return cast("BinaryIO", io.BufferedReader(raw, buffer_size=BUFFER_BYTES))


def _rows_in(
    files: FileSet, found: Iterator[FileInfo], schema: pa.Schema, options: FileSetOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are in some files."""
    fit, row_format = fitter(schema), _row_format(options)
    for file in found:
        with _opened(files, file) as opened:
            for batch in row_format.rows(opened, file.path, schema.names):
                if batch.num_rows:
                    yield fit(batch)


def _as_rows(
    files: FileSet, found: Iterator[FileInfo], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each file, in batches that are bounded by number and by bytes."""
    fit, with_content = fitter(schema), "content" in schema.names
    rows: list[dict[str, object]] = []
    size_bytes = 0
    for file in found:
        row: dict[str, object] = {"path": file.path, "size": file.size_bytes}
        row["modified"] = None if file.mtime_ns is None else file.mtime_ns // _US_NS
        if with_content:
            row["content"] = _content(files, file)
            size_bytes += file.size_bytes
        rows.append(row)
        if len(rows) >= BATCH_FILES or size_bytes >= BATCH_BYTES:
            yield fit(_batch(rows))
            rows, size_bytes = [], 0
    if rows:
        yield fit(_batch(rows))


def _batch(rows: list[dict[str, object]]) -> pa.RecordBatch:
    """Return files as Arrow; a batch has the columns that its rows were given."""
    names = [name for name in FILES.names if name in rows[0]]
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in rows], FILES.field(name).type) for name in names], names
    )


def _content(files: FileSet, file: FileInfo) -> bytes:
    """Return the bytes of a file; raises if one value of Spark cannot hold them."""
    if file.size_bytes > CONTENT_BYTES_MAX:
        raise BadInput(
            f"{file.path!r} has {file.size_bytes} bytes, too many for one value",
            hint="leave out the column content, or leave out the file with option glob",
        )
    return b"".join(files.content(file))
