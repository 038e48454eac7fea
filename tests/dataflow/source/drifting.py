"""Quivers whose columns change, and a driver without Spark that reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import at, open_when_free

from holdfast.dataflow.source.rejected_publish import CONFIG, SLOT
from holdfast.quiver import Quiver
from holdfast.quiver.base.envelope import TIME_TYPE

VERTEX = "events"


def bundle(first: int, values: pa.Array | Sequence[Any]) -> pa.RecordBatch:
    """Return rows with ids from `first` on, each as many seconds after the start."""
    ids = range(first, first + len(values))
    times = pa.array([at(number) for number in ids], TIME_TYPE)
    return pa.record_batch({"at": times, "id": pa.array(ids, pa.int64()), "n": values})


def append(path: Path, *bundles: pa.RecordBatch, seal_each: bool = False) -> str:
    """Append bundles to a quiver and close it; return its id."""
    with open_when_free(path) as quiver:
        for rows in bundles:
            quiver.append(rows)
            if seal_each:
                quiver.flush()
        quiver.flush()
        return quiver.quiver_id


def driver(folder: Path, *more: Path, **options: Any) -> Driver:
    """Return a driver that sets aside what does not fit; the same folder is the same query."""
    paths = ",".join(map(str, (folder / "q", *more)))
    given = {"unfit": folder / "letters", "vertex": VERTEX, **options}
    return Driver(given.pop("path", paths), folder / "checkpoint", **given)


def ids(rows: pa.Table | None) -> list[int]:
    """Return which rows there are, in order of their ids."""
    found = [] if rows is None else rows.column("id").to_pylist()
    return sorted(number for number in found if number is not None)


def staged(folder: Path) -> list[Path]:
    """Return the files that tasks left."""
    return sorted((folder / "checkpoint" / "holdfast" / "unfit" / "stats").iterdir())


def letters(folder: Path) -> list[dict[str, Any]]:
    """Return the dead letters, in the order in which they were written."""
    if not (folder / "letters").exists():
        return []
    with Quiver.open(folder / "letters", CONFIG) as quiver:
        if not quiver.statement().through_seq + 1:
            return []
        found: list[dict[str, Any]] = quiver.scan(slot=SLOT).read_all().to_pylist()
        return found


def letter_ids(folder: Path) -> list[int]:
    """Return which rows are dead letters, in the order in which they were written."""
    return [json.loads(letter["row"])["id"] for letter in letters(folder)]
