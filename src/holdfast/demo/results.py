"""The results of the demo: counts of a pipeline on Spark, and the store that keeps them.

The pipeline counts, per job and five seconds, what the gateway accepts, and commits its windows
with every batch, through all kills. When everything is still, the journals of the demo become a
commit, too; it is deleted, and the collector takes back exactly what it had added. Nobody else uses
the store then, so the bytes can be compared.
"""

from __future__ import annotations

import http.client
import io
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.dataflow.driver.java import find_java
from holdfast.errors import CheckFailed

if TYPE_CHECKING:
    from holdfast.store.filesets import Commits
    from holdfast.store.store import Store


STORE = "store"
COUNTS, JOURNALS = "counts", "journals"
_NEEDED = ("blake3", "pyfastcdc", "xxhash", "zstandard")
LOOK_EVERY_S = 0.5
CLOSE_SECONDS_MAX = 300.0
_WINDOWS, _LATE = "counts", "late"

PIPELINES: dict[str, Any] = {
    "counting": {
        "watermark": {"max_delay": "2s", "idle_after": "2s"},
        "vertices": {
            "events": {"source": {"quiver": "buffer", "decode": "openlineage"}},
            "per_job": {
                "reduce": {
                    "window": {"fixed": "5s"},
                    "key": ["job"],
                    "aggregate": {"events": "count(*)"},
                    "late": "side_output",
                }
            },
            "counts": {"sink": {"files": _WINDOWS}},
            "late": {"sink": {"files": _LATE}},
            "kept": {"sink": {"fileset": {"store": STORE, "commit": COUNTS}}},
        },
        "edges": [
            "events -> per_job",
            "per_job -> counts",
            "per_job -> kept",
            "per_job.late -> late",
        ],
    }
}


@dataclass
class PipelineView:
    """What is shown of Spark."""

    state: str = "starting"
    rows: int = 0
    rows_per_s: float = 0.0
    watermark: datetime | None = None


def can_count() -> bool:
    """Whether this machine can run pipelines."""
    java = find_java() if find_spec("pyspark") is not None else None
    return java is not None and java.is_good and can_keep()


class Counting:
    """The pipeline of one demo, as it is seen from outside."""

    def __init__(self, directory: Path, config: Path, admin_port: int) -> None:
        self._directory = directory
        self._config = config
        self._admin_port = admin_port
        self._looked_s = 0.0

    def look(self, view: PipelineView) -> None:
        """Take in what the gateway's admin port says, not too often."""
        if time.monotonic() < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        # From /metrics, as anybody's monitoring would: the demo knows no more than its users.
        figures = self._figures()
        states = [line for line, value in figures.items() if "run_state" in line and value == 1]
        view.state = states[0].partition('state="')[2].partition('"')[0] if states else "starting"
        view.rows_per_s = _figure(figures, "pipeline_query_rows_per_second")
        # Of the query that is furthest: each of them reads every event.
        view.rows = int(_largest(figures, "pipeline_query_rows_total"))
        watermark_s = _figure(figures, "pipeline_query_watermark_timestamp_seconds")
        view.watermark = datetime.fromtimestamp(watermark_s, UTC) if watermark_s else None

    def _figures(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return {}  # it is dead right now
        finally:
            connection.close()
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("pipeline_")]
        return {name: float(value) for name, _, value in lines}

    def close(self) -> None:
        """Count everything, and close all windows."""
        command = ["dataflow", "drain", str(self._config), "--close", "--json"]
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=CLOSE_SECONDS_MAX,
        )
        if ended.returncode != 0:
            raise CheckFailed(
                f"the pipeline was not closed: {ended.stderr[-2000:]}", hint="run `holdfast doctor`"
            )

    def in_windows(self) -> int:
        """Return how many events are in windows, as the files say."""
        windows = sum(
            pc.sum(pq.read_table(path, columns=["events"])["events"]).as_py() or 0
            for path in (self._directory / _WINDOWS).glob("*.parquet")
        )
        return int(windows)

    def counted(self) -> int:
        """Return how many events are in the results: in windows, and late."""
        late = sum(
            pq.read_metadata(p).num_rows for p in (self._directory / _LATE).glob("*.parquet")
        )
        return self.in_windows() + int(late)


def _figure(figures: dict[str, float], name: str) -> float:
    return sum(value for line, value in figures.items() if line.startswith(f"{name}{{"))


def _largest(figures: dict[str, float], name: str) -> float:
    found = (value for line, value in figures.items() if line.startswith(f"{name}{{"))
    return max(found, default=0.0)


@dataclass(frozen=True)
class Kept:
    """What became of the store."""

    # Commits of the pipeline, the last of them, and the events in its windows.
    commits: int
    last: str
    counted: int
    # What the commit that was deleted had added, and what the collector took back.
    added_chunks: int
    added_bytes: int
    reclaimed_chunks: int
    reclaimed_bytes: int

    @property
    def ok(self) -> bool:
        """Whether exactly the bytes of the deleted commit are gone."""
        added = (self.added_chunks, self.added_bytes)
        return added == (self.reclaimed_chunks, self.reclaimed_bytes) and self.added_chunks > 0


def can_keep() -> bool:
    """Whether what a store needs is installed."""
    return all(find_spec(name) is not None for name in _NEEDED)


class Keeping:
    """The store of one demo."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._url = str(directory / STORE)

    def create(self) -> None:
        """Make the store, before the pipeline needs it."""
        from holdfast.store.store import Store

        Store.create(self._url).close()

    def finish(self) -> Kept:
        """Store the journals, delete them, collect; count what the pipeline committed."""
        from holdfast.store.filesets import Commits
        from holdfast.store.gc.collector import Collector
        from holdfast.store.store import Store

        with Store.open(self._url) as store:
            collector, commits = Collector(store.references, store.objects), Commits(store)
            # First of all: what kills have left is nobody's, and would be counted as reclaimed.
            collector.collect()
            before = _held(store)
            self._store_journals(store)
            added = tuple(new - old for new, old in zip(_held(store), before, strict=True))
            commits.delete(JOURNALS)
            report = collector.collect()
            results = commits.list(f"{COUNTS}/")
            last = results[-1].name if results else ""
            return Kept(
                commits=len(results),
                last=last,
                counted=_counted(commits, last) if last else 0,
                added_chunks=added[0],
                added_bytes=added[1],
                reclaimed_chunks=report.objects_deleted,
                reclaimed_bytes=report.bytes_deleted,
            )

    def _store_journals(self, store: Store) -> None:
        from holdfast.store.filesets import Commits, FileSetWriter

        with store.references.open_job("demo") as job, FileSetWriter(store, job) as writer:
            for path in sorted(self._directory.iterdir()):
                if path.is_file():
                    writer.put(path.name, path.read_bytes())
            Commits(store).create(job, JOURNALS, [writer.close()])


def _held(store: Store) -> tuple[int, int]:
    """Return all chunks that the database knows, and their bytes."""
    totals = store.references.statistics().states.values()
    return sum(one.chunks for one in totals), sum(one.size_bytes for one in totals)


def _counted(commits: Commits, name: str) -> int:
    """Return the events in the windows of a commit, by reading it whole."""
    with commits.open(name) as files:
        tables = [
            pq.read_table(io.BytesIO(files.read(file.path)), columns=["events"])
            for file in files.files()
        ]
    return sum(pc.sum(table["events"]).as_py() or 0 for table in tables)


def how_to_read(folder: str, kept: Kept) -> str:
    """Return what to type in order to read the results."""
    store = f"{folder}/{STORE}"
    return (
        f"holdfast files ls {kept.last} --store {store}\n"
        f'spark.read.format("holdfast").option("store", "{store}")'
        f'.option("format", "parquet").load("{kept.last}")'
    )
