"""Holds: rows that failed and will come again keep the watermark from passing them, for a while.

The minimum is that of all rows, not the time of the oldest one: where times are out of order the
two differ, and a watermark taken from the oldest row passes others.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def earliest_held_us(
    event_us: pa.Array | pa.ChunkedArray,
    failed_us: pa.Array | pa.ChunkedArray,
    *,
    now_us: int,
    max_hold_us: int,
    promised_us: int,
) -> int | None:
    """Return the earliest event time that holds the watermark; None if none does.

    A row holds it for `max_hold_us` after it first failed, and then counts as late when it comes.
    What is older than the promise in force was late already: it holds nothing.
    """
    is_recent = pc.greater(failed_us, now_us - max_hold_us)
    holds = pc.and_(is_recent, pc.greater_equal(event_us, promised_us))
    earliest: int | None = pc.min(pc.filter(event_us, holds)).as_py()
    return earliest
