"""Quivers for the tests of the source: events with a time, a key and a number."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from tests.patience import PATIENCE_S

from holdfast.errors import DirectoryLocked
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig

START = datetime(2026, 5, 1, 10, tzinfo=UTC)
CONFIG = QuiverConfig(extractors={"events": ColumnExtractor("at")})
CONFIG_NAME = "tests.dataflow.quivers:CONFIG"

Row = tuple[float, str, int]


def batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows of (seconds after START, key, number)."""
    kept = list(rows)
    return pa.record_batch(
        {
            "at": pa.array([at(seconds) for seconds, _, _ in kept], pa.timestamp("us", tz="UTC")),
            "key": [key for _, key, _ in kept],
            "number": pa.array([number for _, _, number in kept], pa.int64()),
        }
    )


def at(seconds: float) -> datetime:
    """Return a moment that many seconds after START."""
    return START + timedelta(seconds=seconds)


def open_when_free(path: Path, config: QuiverConfig = CONFIG) -> Quiver:
    """Open a quiver; the process that planned a query lets go of it a little after its end."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Quiver.open(path, config)
        except DirectoryLocked:
            if time.monotonic() > give_up_at_s:
                raise
            time.sleep(0.05)


def fill(path: Path, *bundles: Iterable[Row], seal_each: bool = False) -> str:
    """Append bundles to a quiver and close it; return its id."""
    with open_when_free(path) as quiver:
        for rows in bundles:
            quiver.append(batch(rows))
            if seal_each:
                quiver.flush()
        return quiver.quiver_id
