"""Driving Spark's watermark with the claim of the source.

Spark takes the largest value of the column named in `withWatermark`. `_wm` is the same in all rows
of a batch, so with a delay of nothing Spark's watermark *is* the claim. What makes a window close
is a mark on the column it is made of, a metadata key that `withWatermark` sets on its own column;
`claimed` sets it on the event time instead. The key is internal to Spark: the version is pinned,
and a test fails if another version means something else by it.

Spark pushes a filter below the watermark if it does not mention `_wm`. Two things follow. The
filter that drops control rows mentions it, or else they are dropped before anybody has seen their
claim. And filters that a user puts before the windows have to keep control rows: `keep_control`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELAY_KEY = "spark.watermarkDelayMs"

# What a session must have: otherwise windows stay open until the next row, or close too early.
SESSION_SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}


def claimed(
    frame: DataFrame, event_time: str = "_event_time", allowed_lateness_ms: int = 0
) -> DataFrame:
    """Return the rows of a source, events only, with their event time marked by the claim.

    `_wm_prev` stays: what is late is decided by it.
    """
    marked = frame.withWatermark("_wm", f"{allowed_lateness_ms} milliseconds")
    events = marked.where(~F.col("_control") | F.col("_wm").isNull())
    metadata = {DELAY_KEY: allowed_lateness_ms}
    columns = [
        F.col(name).alias(name, metadata=metadata) if name == event_time else F.col(name)
        for name in frame.columns
        if name not in ("_wm", "_control")
    ]
    return events.select(*columns)


def keep_control(condition: Column) -> Column:
    """Return a condition for a filter before `claimed`: control rows pass."""
    return condition | F.col("_control")


def is_late(last_end: Column, allowed_lateness_ms: int = 0) -> Column:
    """Whether all windows of a row are closed, the last of which ends at `last_end`.

    Spark closes a window when its end is not after the watermark (`end <= watermark`), and drops
    what comes for it later. This is the same comparison, against the claim with which the batch
    before ended, so that a row is given to its windows or to the late ones before Spark can drop
    it: that claim is never behind the watermark that Spark filters by. In a sliding window a row
    still counts in those that are open, and Spark leaves it out of the others.
    """
    allowed = F.expr(f"interval {allowed_lateness_ms} milliseconds")
    return last_end + allowed <= F.col("_wm_prev")
