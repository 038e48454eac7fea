"""How a pipeline goes, for whoever watches: a table on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.live import Live
from rich.table import Table

from holdfast.dataflow.driver.wire import PipelineFigures, QueryStatistics
from holdfast.operate.cli.consoles import stdout
from holdfast.operate.cli.output import print_json

# On no terminal: a line that often.
TELL_EVERY_S = 10.0
_KB = 1024
_MINUTE_S, _HOUR_S = 60, 3600


class Display:
    """Tells how a pipeline goes."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told_s = time.monotonic()
        self._live = Live(console=stdout) if stdout.is_terminal and not as_json else None
        self.figures = PipelineFigures("starting")

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, told: Sequence[QueryStatistics]) -> None:
        """Show how things are."""
        self.figures = PipelineFigures("running", queries=tuple(told))
        if self._live is not None:
            self._live.update(progress_table(told))
        elif time.monotonic() > self._told_s + TELL_EVERY_S:
            self._told_s = time.monotonic()
            if self._as_json:
                print_json([one.to_fields() for one in told])
            else:
                for one in told:
                    click.echo(_line(one))


def _line(one: QueryStatistics) -> str:
    counts = " ".join(f"{name}={n}" for name, n in one.counts.items())
    return (
        f"{one.name} batch={one.batch} rows={one.rows_total} rows_per_s={one.rows_per_s:.0f} "
        f"watermark={one.watermark} lag={_duration(one.lag_s)} state={_size(one.state_bytes)} "
        f"{counts}".rstrip()
    )


def progress_table(told: Sequence[QueryStatistics]) -> Table:
    """Return a table, a row for each query."""
    table = Table()
    for column in ("query", "batch", "rows", "rows/s", "watermark", "lag", "state", "counts"):
        table.add_column(column)
    for one in told:
        counts = ", ".join(f"{name} {n:,}" for name, n in one.counts.items())
        table.add_row(
            one.name,
            "" if one.batch is None else f"{one.batch:,}",
            f"{one.rows_total:,}",
            f"{one.rows_per_s:,.0f}",
            one.watermark or "",
            _duration(one.lag_s),
            f"{one.state_rows:,} rows, {_size(one.state_bytes)}",
            counts,
        )
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:,.1f} h"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size_bytes < _KB:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= _KB
    return f"{size_bytes:,.1f} GB"
