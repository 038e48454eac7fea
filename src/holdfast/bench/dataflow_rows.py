"""What a query reads, and when its batches were done.

Rows have a time, a short key and a number; they are in quivers and in Parquet files.

Spark writes `offsets/N` when batch N is planned and `commits/N` when it is done, and keeps the last
hundred. So what is measured is what was durable when, not what the engine says of itself; how long
a query takes to start is not part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.bench.scale import DataflowScale
from holdfast.bench.stopwatch import TreeStopwatch
from holdfast.errors import CheckFailed
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.remote import FlightSettings, QuiverServer

# Of one bundle, and of one micro-batch.
BUNDLE_ROWS = 10_000
KEYS = 50
# Parquet files have as many rows as segments have about.
FILE_BUNDLES = 70
SLOT = "events"
LARGE, SMALL, BATCHES, EMPTY = "large", "small", "batches", "empty"
CONFIG = QuiverConfig(extractors={SLOT: ColumnExtractor("at")})

_BEGAN_US = 1_760_000_000_000_000
# Between two rows: twenty thousand rows are a second.
_STEP_US = 50


@dataclass(frozen=True)
class Stores:
    """Where the rows are: quivers that a server of this process owns, and Parquet files."""

    folder: Path
    location: str
    quivers: dict[str, Quiver]

    def address(self, name: str) -> str:
        """Return the address of a quiver."""
        return f"{self.location}/{name}"

    def directory(self, name: str) -> Path:
        """Return the directory of a quiver."""
        return self.folder / name

    @property
    def parquet(self) -> Path:
        """The folder with the rows of the large quiver as Parquet."""
        return self.folder / "parquet"


@contextmanager
def filled(folder: Path, scale: DataflowScale, names: Collection[str]) -> Iterator[Stores]:
    """Yield some stores, filled and sealed, served until the end of the block."""
    counts = {
        LARGE: scale.rows // BUNDLE_ROWS,
        SMALL: scale.python_rows // BUNDLE_ROWS,
        BATCHES: scale.batches,
        EMPTY: 0,
    }
    with ExitStack() as opened:
        quivers = {}
        for name in names:
            quivers[name] = opened.enter_context(Quiver.open(folder / name, CONFIG))
            # What all subscribers have read goes: this one reads nothing.
            quivers[name].register("keeper")
            for number in range(counts[name]):
                quivers[name].append({SLOT: bundle(number)})
            quivers[name].flush()
        if LARGE in names:
            _write_parquet(folder / "parquet", counts[LARGE])
        server = QuiverServer(quivers, FlightSettings(listen="127.0.0.1:0"))
        opened.enter_context(server)
        yield Stores(folder, server.location, quivers)


def bundle(number: int) -> pa.RecordBatch:
    """Return the rows of one bundle; the same number gives the same rows."""
    places = np.arange(number * BUNDLE_ROWS, (number + 1) * BUNDLE_ROWS)
    keys = pa.array([f"key-{key:02d}" for key in range(KEYS)])
    return pa.record_batch(
        {
            "at": pa.array(_BEGAN_US + places * _STEP_US, _TIME),
            # Neighbours have different keys, in no simple order.
            "key": keys.take(pa.array(places * 7919 % 104_729 % KEYS)),
            "value": pa.array(places * 0.25, pa.float64()),
        }
    )


_TIME = pa.timestamp("us", tz="UTC")


def _write_parquet(folder: Path, bundles: int) -> None:
    """Write the rows of a quiver for Spark's own source, in files of about the size of segments."""
    folder.mkdir()
    for first in range(0, bundles, FILE_BUNDLES):
        numbers = range(first, min(first + FILE_BUNDLES, bundles))
        pq.write_table(
            pa.Table.from_batches([bundle(number) for number in numbers]),
            folder / f"{first:06d}.parquet",
        )


class TimedRun(NamedTuple):
    """One run of a query over some rows."""

    rows: int
    # From the first plan to the last commit.
    batches_s: float
    # Of all processes, start and end of the query included.
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.batches_s


def measured(checkpoint: Path, rows: int, watch: TreeStopwatch) -> TimedRun:
    """Return what a query that has ended took."""
    offsets, commits = _times(checkpoint, "offsets"), _times(checkpoint, "commits")
    batches_s = max(commits.values()) - min(offsets.values())
    return TimedRun(rows, batches_s, watch.wall_s, watch.cpu_s)


def batch_times_ms(checkpoint: Path) -> list[float]:
    """Return how long after the one before it each batch was done, from the second on."""
    commits = _times(checkpoint, "commits")
    return [
        (commits[number] - commits[number - 1]) * 1e3
        for number in sorted(commits)
        if number - 1 in commits
    ]


def batches_done(checkpoint: Path) -> int:
    """Return how many batches a query has done."""
    commits = checkpoint / "commits"
    return max((int(p.name) for p in commits.glob("*") if p.name.isdigit()), default=-1) + 1


def _times(checkpoint: Path, log: str) -> dict[int, float]:
    """Return when each file of one of Spark's logs was written."""
    files = [path for path in (checkpoint / log).glob("*") if path.name.isdigit()]
    if not files:
        raise CheckFailed("a query did no batch", hint="the figures mean nothing")
    return {int(path.name): path.stat().st_mtime_ns / 1e9 for path in files}
