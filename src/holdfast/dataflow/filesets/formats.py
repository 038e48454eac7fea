"""The rows that are in files: Parquet, Arrow (the file format of IPC), JSON (an object a line).

Of Parquet only the columns and row groups are read that may hold something wanted, of Arrow only
the columns; JSON has to be read as a whole, and what is not wanted is left out then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.json as pj

from holdfast.dataflow.source.schema import spark_type
from holdfast.errors import BadInput

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "json": (".json", ".ndjson", ".jsonl"),
}
BATCH_ROWS = 10_000
_COLUMNAR = {"parquet": ds.ParquetFileFormat, "arrow": ds.IpcFileFormat}


class RowFormat:
    """Reads the rows of files of one kind."""

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
        return _COLUMNAR[self._kind]().make_fragment(pa.PythonFile(file, mode="r"))

    def _columnar(self, file: BinaryIO, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        fragment = self._fragment(file)
        found = fragment.physical_schema
        if self._is_timed and self._time_column not in found.names:
            return
        wanted = [name for name in columns if name in found.names]
        yield from fragment.to_batches(
            columns=wanted, filter=self._filter(found), batch_size=BATCH_ROWS
        )

    def _json(self, file: BinaryIO, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with pj.open_json(file) as reader:
            found = reader.schema
            if self._is_timed and self._time_column not in found.names:
                return
            wanted = [name for name in columns if name in found.names]
            condition = self._filter(found)
            for batch in reader:
                yield (batch if condition is None else batch.filter(condition)).select(wanted)

    def _filter(self, schema: pa.Schema) -> pc.Expression | None:
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
    whole = pa.scalar(moment, pa.timestamp("us", "UTC"))
    return whole.cast(pa.timestamp(kind.unit, "UTC"), safe=False).cast(
        pa.timestamp(kind.unit, kind.tz), safe=False
    )
