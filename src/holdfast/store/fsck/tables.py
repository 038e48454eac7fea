"""What a check compares, as Arrow tables that can be split by the first byte of a hash.

All facts about a store are rows of one wide table, `FACTS`: which table a fact belongs to, which
prefix it is compared in, and the columns of that table. So facts can be collected from anywhere, in
any order, by any number of processes; whoever brings all facts of one prefix together can compare
them (compare.py) without knowing the rest of the store.

    table       compared where            says
    reached     prefix of the chunk       commits lead to `hash`, used as `kind`
    expected    prefix of the source      `source` must refer to `hash`, by its own bytes
    walked      prefix of the chunk       all that this index chunk refers to is among `expected`
    row         prefix of the chunk       a row of the database
    edge_to     prefix of the chunk       a reference in the database, by what it refers to
    edge_from   prefix of the source      the same reference, by who refers
    object      prefix of the chunk       an object that was listed
    source      prefix of the source      a commit, job or pin exists; `walked`: its record was read

A source that is a chunk has the prefix of its hash, any other the last byte of its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.store.gc.references_sql import CHUNK_KIND

# The prefix of a fact is one byte.
PREFIXES = 256


class FactTable(StrEnum):
    """Which table a fact belongs to."""

    REACHED = "reached"
    EXPECTED = "expected"
    WALKED = "walked"
    ROW = "row"
    EDGE_TO = "edge_to"
    EDGE_FROM = "edge_from"
    OBJECT = "object"
    SOURCE = "source"


_SOURCE = ("source_kind", "source_id", "source_generation")
COLUMNS: Mapping[FactTable, tuple[str, ...]] = {
    FactTable.REACHED: ("hash", "commit", "kind"),
    FactTable.EXPECTED: ("hash", "commit", *_SOURCE),
    FactTable.WALKED: ("hash", "generation"),
    FactTable.ROW: ("hash", "generation", "refcount", "holds", "uploaded", "state", "stored_bytes"),
    FactTable.EDGE_TO: ("hash", "generation", *_SOURCE),
    FactTable.EDGE_FROM: ("hash", "generation", *_SOURCE),
    FactTable.OBJECT: ("hash", "generation", "size_bytes", "modified_s"),
    FactTable.SOURCE: ("source_kind", "source_id", "walked"),
}

FACTS = pa.schema(
    [
        ("table", pa.string()),
        ("prefix", pa.int32()),
        ("hash", pa.binary()),
        ("generation", pa.int64()),
        ("commit", pa.int64()),
        ("kind", pa.string()),
        ("source_kind", pa.string()),
        ("source_id", pa.binary()),
        ("source_generation", pa.int64()),
        ("refcount", pa.int64()),
        ("holds", pa.int64()),
        ("uploaded", pa.bool_()),
        ("state", pa.string()),
        ("size_bytes", pa.int64()),
        ("stored_bytes", pa.int64()),
        ("modified_s", pa.float64()),
        ("walked", pa.bool_()),
    ]
)

FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("hash", pa.binary()),
        ("generation", pa.int64()),
        ("commit", pa.string()),
        ("path", pa.string()),
        ("detail", pa.string()),
        ("source", pa.string()),
    ]
)


class Partition(NamedTuple):
    """All facts of some prefixes, one Arrow table each."""

    reached: Any
    expected: Any
    walked: Any
    row: Any
    edge_to: Any
    edge_from: Any
    object: Any
    source: Any


def facts(
    table: FactTable, prefixes: Sequence[int], columns: Mapping[str, Sequence[Any]]
) -> pa.RecordBatch:
    """Return facts of one table, each with its prefix, as rows of `FACTS`."""
    count = len(prefixes)
    arrays = []
    for field in FACTS:
        if field.name == "table":
            arrays.append(pa.array([table.value] * count, field.type))
        elif field.name == "prefix":
            arrays.append(pa.array(prefixes, field.type))
        elif field.name in columns:
            arrays.append(pa.array(columns[field.name], field.type))
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=FACTS)


def partition_of(batches: Iterable[pa.RecordBatch]) -> Partition:
    """Return the tables that some facts make up, in whatever order they came."""
    import pyarrow.compute as pc

    whole = pa.Table.from_batches(batches, schema=FACTS)
    return Partition(
        *(
            whole.filter(pc.equal(whole["table"], name.value)).select(list(columns))
            for name, columns in COLUMNS.items()
        )
    )


def source_prefix(kind: str, source_id: bytes) -> int:
    """Return in which prefix the references of a source are compared."""
    if not source_id:
        return 0
    return source_id[0] if kind == CHUNK_KIND else source_id[-1]
