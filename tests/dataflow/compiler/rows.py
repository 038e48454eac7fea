"""Rows for tests of pipelines: seconds after a moment, a key, a number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 5, 1, 10, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return a moment that many seconds after START."""
    return START + timedelta(seconds=seconds)


def rows(*given: tuple[float, str, int]) -> list[dict[str, Any]]:
    """Return rows of (seconds, key, number)."""
    return [{"event_time": at(s), "key": key, "number": number} for s, key, number in given]


def seconds(moment: datetime) -> float:
    """Return how many seconds after START a moment is."""
    return (moment - START).total_seconds()
