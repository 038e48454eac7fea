"""Files of a files sink that grow: a small batch is added to the newest file, not put beside it.

A file cannot be appended to, and several files cannot become one in a single step: a reader who
lists the folder in between would see rows twice, or not at all. But one file can be replaced by
itself with some rows more. So a batch is published together with the rows of the newest file, under
the name of that file, by one rename: a reader has the rows before the batch, or those and the
batch's.

The file says which batch was added last, and how many rows it had before. A driver that died after
the rename runs that batch again, and its rows take the place of those that are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Damaged

# In the metadata of a Parquet file: it may grow, and this is the batch that was added last.
LAST_BATCH = b"holdfast.last_batch"


class LastBatch(NamedTuple):
    """The batch that was added to a file last."""

    batch: int
    # Of the batch, if it was trimmed.
    part: int
    # How many rows of the file are of other batches.
    rows_before: int


class Growing(NamedTuple):
    """A file that may grow."""

    path: Path
    last: LastBatch
    rows: int
    size_bytes: int
    schema: pa.Schema

    def has(self, batch: int, part: int) -> bool:
        """Whether a batch is in it already, of a driver that died before it had noted that."""
        return (self.last.batch, self.last.part) == (batch, part)

    def takes(self, path: str, room_bytes: int) -> bool:
        """Whether rows like those of a file may be added, if it is not larger than that now."""
        if self.size_bytes > room_bytes:
            return False
        with pq.ParquetFile(path) as file:
            return bool(file.schema_arrow.equals(self.schema))


def newest_file(folder: Path, query_id: str) -> Growing | None:
    """Return the newest file of a query, if it is one that may grow."""
    path = max(folder.glob(f"part-{query_id}-*.parquet"), default=None)
    if path is None:
        return None
    try:
        with pq.ParquetFile(path) as file:
            noted = (file.metadata.metadata or {}).get(LAST_BATCH)
            if noted is None:
                return None
            rows, schema = file.metadata.num_rows, file.schema_arrow
    except FileNotFoundError:
        return None  # removed just now
    except (OSError, pa.ArrowException) as error:
        raise Damaged(
            f"the newest file of a sink cannot be read, so its last batch is not known: {error}",
            hint="read what is left of it elsewhere, and move it away: the next batch begins "
            "another file",
            path=str(path),
        ) from error
    return Growing(path, LastBatch(**json.loads(noted)), rows, os.path.getsize(path), schema)


def may_grow(file: pq.ParquetFile) -> bool:
    """Whether rows may still be added to a file: it is not to be taken in once and for all."""
    return LAST_BATCH in (file.metadata.metadata or {})


def write_joined(
    pieces: Sequence[tuple[str, int | None]], target: Path, last: LastBatch | None = None
) -> None:
    """Write the rows of some files of one schema, or the first of them, into one, and sync it."""
    with pq.ParquetFile(pieces[0][0]) as first:
        schema = first.schema_arrow
    with pq.ParquetWriter(target, schema) as writer:
        for path, rows_max in pieces:
            for batch in _rows_of(path, rows_max):
                writer.write_batch(batch)
        if last is not None:
            writer.add_key_value_metadata({LAST_BATCH: json.dumps(last._asdict())})
    with open(target, "rb") as file:
        os.fsync(file.fileno())


def _rows_of(path: str, rows_max: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or the first of them."""
    with pq.ParquetFile(path) as file:
        left = file.metadata.num_rows if rows_max is None else rows_max
        for batch in file.iter_batches():
            if left > 0:
                yield batch.slice(0, left)
            left -= batch.num_rows
