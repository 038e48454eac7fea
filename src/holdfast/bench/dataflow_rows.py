"""What is read: rows with a time, a short key and a number, in quivers and in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.bench.scale import DataflowScale
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.remote import FlightSettings, QuiverServer

# Of one bundle, and of one micro-batch.
BUNDLE_ROWS = 10_000
KEYS = 50
# Parquet files have as many rows as segments have about.
FILE_BUNDLES = 70
SLOT = "events"
LARGE, SMALL, BATCHES = "large", "small", "batches"
CONFIG = QuiverConfig(extractors={SLOT: ColumnExtractor("at")})

_BEGAN_US = 1_760_000_000_000_000
# Between two rows: twenty thousand rows are a second.
_STEP_US = 50


@dataclass(frozen=True)
class Stores:
    """Where the rows are: quivers that a server of this process owns, and Parquet files."""

    folder: Path
    location: str

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
def filled(folder: Path, scale: DataflowScale) -> Iterator[Stores]:
    """Yield all stores, filled and sealed, served until the end of the block."""
    counts = {
        LARGE: scale.rows // BUNDLE_ROWS,
        SMALL: scale.python_rows // BUNDLE_ROWS,
        BATCHES: scale.batches,
    }
    with ExitStack() as opened:
        quivers = {}
        for name, bundles in counts.items():
            quivers[name] = opened.enter_context(Quiver.open(folder / name, CONFIG))
            # What all subscribers have read goes: this one reads nothing.
            quivers[name].register("keeper")
            for number in range(bundles):
                quivers[name].append({SLOT: bundle(number)})
            quivers[name].flush()
        _write_parquet(folder / "parquet", counts[LARGE])
        server = QuiverServer(quivers, FlightSettings(listen="127.0.0.1:0"))
        opened.enter_context(server)
        yield Stores(folder, server.location)


def bundle(number: int) -> pa.RecordBatch:
    """Return the rows of one bundle; the same number gives the same rows."""
    places = range(number * BUNDLE_ROWS, (number + 1) * BUNDLE_ROWS)
    keys = pa.array([f"key-{key:02d}" for key in range(KEYS)])
    return pa.record_batch(
        {
            "at": pa.array([_BEGAN_US + place * _STEP_US for place in places], _TIME),
            # Neighbours have different keys, in no simple order.
            "key": keys.take(pa.array([place * 7919 % 104_729 % KEYS for place in places])),
            "value": pa.array([place * 0.25 for place in places], pa.float64()),
        }
    )


_TIME = pa.timestamp("us", tz="UTC")


def _write_parquet(folder: Path, bundles: int) -> None:
    folder.mkdir()
    for first in range(0, bundles, FILE_BUNDLES):
        numbers = range(first, min(first + FILE_BUNDLES, bundles))
        pq.write_table(
            pa.Table.from_batches([bundle(number) for number in numbers]),
            folder / f"{first:06d}.parquet",
        )
