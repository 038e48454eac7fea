"""Late: what a row's windows and the watermark in force have to say to each other.

Spark closes a window when its end is not after the watermark (`end <= watermark`), and drops what
comes for it later. The verdict here is the same comparison, against the claim with which the batch
before ended, so that a row is given to its windows or to the late ones before Spark can drop it.
That claim is never behind the watermark Spark filters by, so nothing is dropped silently.
A row is late only when *all* its windows are closed: in a sliding window it still counts in those
that are open, and Spark leaves it out of the others, which are closed.
"""

from __future__ import annotations


def last_end_us(event_us: int, size_us: int, slide_us: int | None = None) -> int:
    """Return the end of the last window that holds an event; windows start at 1970."""
    slide_us = slide_us or size_us
    return event_us // slide_us * slide_us + size_us


def session_end_us(event_us: int, gap_us: int) -> int:
    """Return the end of the session that an event alone would make."""
    return event_us + gap_us


def is_late(last_end: int, watermark_us: int, allowed_lateness_us: int = 0) -> bool:
    """Whether all windows of a row are closed, the last of them ending at `last_end`."""
    return last_end + allowed_lateness_us <= watermark_us
