"""Tables of OTAP for tests: made up at random, with plain ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.signals.otap.payloads import ValueType

NOW_NS = 1_790_000_000_000_000_000
INDEX_TYPES = (None, pa.uint8(), pa.uint16())


def column(values: Sequence[Any], kind: pa.DataType, index: pa.DataType | None) -> pa.Array:
    """Return values as they are, or in a dictionary."""
    made = pa.array(values, kind)
    return made if index is None else made.dictionary_encode().cast(pa.dictionary(index, kind))


def batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return columns as a table."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def traces(chance: random.Random, spans: int, pool: int, optional: int = 2) -> dict[str, Any]:
    """Return spans with attributes and events.

    Values are taken out of a pool of `pool` different ones. With `optional` at 2 the columns vary.
    """

    def index() -> pa.DataType | None:
        kinds = INDEX_TYPES if pool < 200 else (None, pa.uint16())
        return chance.choice(kinds) if optional > 1 else kinds[-1]

    def word() -> str:
        return f"value {chance.randrange(pool)}"

    ids = list(range(spans))
    resources = sorted(chance.randrange(2) for _ in ids)
    columns = {
        "id": pa.array(ids, pa.uint16()),
        "resource": pa.StructArray.from_arrays(
            [
                pa.array(resources, pa.uint16()),
                column([f"url {one}" for one in resources], pa.string(), index()),
            ],
            names=["id", "schema_url"],
            mask=pa.array([chance.random() < 0.1 for _ in ids]),
        ),
        "start_time_unix_nano": pa.array([NOW_NS + one for one in ids], pa.timestamp("ns")),
        "trace_id": pa.array([chance.randbytes(16) for _ in ids], pa.binary(16)),
        "span_id": pa.array([chance.randbytes(8) for _ in ids], pa.binary(8)),
        "name": column([chance.choice([None, word()]) for _ in ids], pa.string(), index()),
    }
    if chance.randrange(optional):
        columns["flags"] = pa.array([chance.choice([None, 1]) for _ in ids], pa.uint32())
    parents = chance.choices(ids, k=3 * spans)
    events = sorted(chance.choices(ids, k=spans))
    return {
        "otap_spans": batch(columns),
        "otap_span_attrs": attributes(chance, parents, pa.uint16(), pool, index()),
        "otap_span_events": batch(
            {
                "id": pa.array(range(len(events)), pa.uint32()),
                "parent_id": pa.array(events, pa.uint16()),
                "name": column([word() for _ in events], pa.string(), index()),
            }
        ),
    }


def attributes(
    chance: random.Random,
    parents: Sequence[int],
    id_type: pa.DataType,
    pool: int,
    index: pa.DataType | None,
) -> pa.RecordBatch:
    """Return a table of attributes of these parents, of all types, some of them equal."""
    types = [chance.choice(list(ValueType)) for _ in parents]
    floats = [0.0, -0.0, 1.5, float("inf"), None]

    def values(kind: ValueType, of: Sequence[Any]) -> list[Any]:
        return [chance.choice(of) if one is kind else None for one in types]

    texts = [f"value {number}" for number in range(min(pool, 5))] + [None, f"v{pool}"]
    numbers = [chance.randrange(pool), -1]
    return batch(
        {
            "parent_id": pa.array(parents, id_type),
            "key": column([f"k{chance.randrange(2)}" for _ in types], pa.string(), index),
            "type": pa.array(types, pa.uint8()),
            "str": column(values(ValueType.STR, texts), pa.string(), index),
            "int": column(values(ValueType.INT, numbers), pa.int64(), index),
            "double": pa.array(values(ValueType.DOUBLE, floats), pa.float64()),
            "bool": pa.array(values(ValueType.BOOL, [True, False]), pa.bool_()),
            "bytes": pa.array(values(ValueType.BYTES, [b"", b"\0"]), pa.binary()),
        }
    )
