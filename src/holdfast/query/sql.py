"""SQL over stored tables: duckdb, held to bounds that a tool beside a gateway must keep.

duckdb takes four fifths of a machine's memory unless it is told otherwise, and loads extensions
from the network when a query needs one. Both are wrong beside a process that promises to accept
events. So memory and the disk space for what does not fit have limits, and nothing is installed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from holdfast.errors import BadInput, HoldfastError, Overloaded
from holdfast.query.datasets import StoredDataset

if TYPE_CHECKING:
    pass

MB = 1024 * 1024
# Rows of one batch of an answer.
ANSWER_ROWS = 10_000
# What duckdb says of a long query; the rest repeats the query.
_MESSAGE_LINES_MAX = 3


@dataclass(frozen=True)
class SqlLimits:
    """What a query may take."""

    # What duckdb holds in memory; what is read for it is held beside that, some megabytes.
    memory_bytes: int = 1024 * MB
    # What it may write to a temporary folder when that is not enough.
    spill_bytes: int = 10 * 1024 * MB
    threads: int = 2


@contextlib.contextmanager
def answer(
    datasets: Mapping[str, StoredDataset], sql: str, limits: SqlLimits | None = None
) -> Iterator[pa.RecordBatchReader]:
    """Give the answer to a query over some tables, as a stream that can be read within the block.

    Raises `BadInput` for a query that is none, `Overloaded` if it needs more than the limits, and
    whatever reading the tables raises.
    """
    import duckdb

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-sql-") as spill,
        duckdb.connect(config=_settings(limits or SqlLimits(), spill)) as connection,
    ):
        for name, dataset in datasets.items():
            if dataset.kept is None or not dataset.kept[0]:
                connection.register(name, dataset)
                continue
            paths, rest = dataset.kept
            files = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
            connection.register(f"rest of {name}", rest)
            connection.sql(
                f"create view {name} as select * from read_parquet([{files}])"
                f' union all by name select * from "rest of {name}"'
            )
        try:
            found = cast("duckdb.DuckDBPyRelation | None", connection.sql(sql))
            answered = None if found is None else found.to_arrow_reader(ANSWER_ROWS)
        except duckdb.Error as error:
            raise _explained(error, datasets) from error
        if answered is None:  # a statement that has no answer
            yield pa.RecordBatchReader.from_batches(pa.schema([]), [])
        else:
            batches = _read(answered, datasets)
            yield pa.RecordBatchReader.from_batches(answered.schema, batches)


def _read(
    answered: pa.RecordBatchReader, datasets: Mapping[str, StoredDataset]
) -> Iterator[pa.RecordBatch]:
    import duckdb

    try:
        yield from answered
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise _explained(error, datasets) from error


def _settings(limits: SqlLimits, spill: str) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "memory_limit": f"{limits.memory_bytes}B",
        "max_temp_directory_size": f"{limits.spill_bytes}B",
        "temp_directory": spill,
        "threads": limits.threads,
        "autoinstall_known_extensions": False,
        # Names in a query are those of tables, and not of variables of this program.
        "python_enable_replacements": False,
        "TimeZone": "UTC",
    }


def _explained(error: Exception, datasets: Mapping[str, StoredDataset]) -> HoldfastError:
    """Return what went wrong: what ended the reading of a table, or what duckdb says."""
    import duckdb

    parts = [part for one in datasets.values() for part in (one, one.kept[1] if one.kept else one)]
    for dataset in parts:
        if dataset.failure is not None:
            return dataset.failure
    said = "\n".join(str(error).splitlines()[:_MESSAGE_LINES_MAX]).strip()
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in said:
        return Overloaded(
            f"the query needs more room than it has: {said}",
            hint="ask for less at once, or give it more with --memory and --spill",
        )
    return BadInput(
        f"the query cannot be answered: {said}", hint=f"tables are {', '.join(sorted(datasets))}"
    )
