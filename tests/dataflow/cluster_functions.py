"""A function that workers of a cluster import."""

from __future__ import annotations

from typing import Any


def halved(row: dict[str, Any]) -> dict[str, Any]:
    """Return the key of a row, and half its number."""
    return {"key": row["key"], "half": row["number"] / 2}
