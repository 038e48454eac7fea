"""A driver without Spark: asks a stream's reader what Spark would, and keeps its two logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.schema import stored_schema
from holdfast.dataflow.source.stream import StreamReader

QUERY_ID = "2b1f0f7e-0000-4000-8000-000000000001"


class Driver:
    """Runs batches of one stream on one checkpoint folder, crash-free until you drop it."""

    def __init__(self, path: str, checkpoint: Path, **options: Any) -> None:
        given = {"path": path, "subscriber": "stats", "checkpoint": str(checkpoint)}
        given |= {"quiver_config": "tests.dataflow.quivers:CONFIG"}
        given |= {name: str(value) for name, value in options.items()}
        self.options = parse_options(given)
        self.checkpoint = checkpoint
        self.schema = stored_schema(self.options)
        self.reader = StreamReader(self.options, from_arrow_schema(self.schema))
        for log in ("offsets", "commits"):
            (checkpoint / log).mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": QUERY_ID}))

    def start_offset(self) -> dict[str, Any]:
        """Return where the next batch begins: behind the last committed one."""
        committed = self._last("commits")
        return self.reader.initialOffset() if committed < 0 else self._offset(committed)

    def plan(self, max_rows: int = 1_000_000) -> int | None:
        """Return the batch to run: an unfinished one, or a new one; None if there is no need."""
        committed, planned = self._last("commits"), self._last("offsets")
        start = self.start_offset()
        if planned > committed:
            return planned
        end = self.reader.latestOffset(start, ReadMaxRows(max_rows))
        if json.dumps(end) == json.dumps(start):
            return None
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(end)}'
        (self.checkpoint / "offsets" / str(planned + 1)).write_text(text)
        return planned + 1

    def run(self, batch: int) -> pa.Table:
        """Return the rows of a planned batch."""
        start = self._offset(batch - 1) if batch else self.reader.initialOffset()
        partitions = self.reader.partitions(start, self._offset(batch))
        batches = [rows for part in partitions for rows in self.reader.read(part)]
        return pa.Table.from_batches(batches, self.schema)

    def finish(self, batch: int) -> None:
        """Write the commit log."""
        (self.checkpoint / "commits" / str(batch)).write_text("v1\n{}")

    def next(self, max_rows: int = 1_000_000) -> pa.Table | None:
        """Plan, run and commit one batch."""
        batch = self.plan(max_rows)
        if batch is None:
            return None
        rows = self.run(batch)
        self.finish(batch)
        return rows

    def offset(self) -> dict[str, Any]:
        """Return the newest planned offset."""
        return self._offset(self._last("offsets"))

    def _offset(self, batch: int) -> dict[str, Any]:
        text = (self.checkpoint / "offsets" / str(batch)).read_text()
        offset: dict[str, Any] = json.loads(text.splitlines()[-1])
        return offset

    def _last(self, log: str) -> int:
        return max((int(p.name) for p in (self.checkpoint / log).iterdir()), default=-1)

    def stop(self) -> None:
        """End as Spark does when a query is stopped."""
        self.reader.stop()
