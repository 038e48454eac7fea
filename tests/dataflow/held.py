"""The model of what a retry lane holds: all rows, looked at each time."""

from __future__ import annotations

from collections.abc import Iterable


def earliest_held_us(
    rows: Iterable[tuple[int, int]], *, now_us: int, max_hold_us: int, promised_us: int
) -> int | None:
    """Return the earliest event time of rows (event time, first failure) that holds the watermark.

    A row holds it for `max_hold_us` after it first failed, and then counts as late when it comes.
    What is older than the promise in force was late already: it holds nothing.
    """
    times_us = [
        event_us
        for event_us, failed_us in rows
        if failed_us > now_us - max_hold_us and event_us >= promised_us
    ]
    return min(times_us, default=None)
