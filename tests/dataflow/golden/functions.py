"""Functions that the golden pipelines call."""

from __future__ import annotations

import os
from typing import Any

# Set while the golden directories were written: the service that `doubled` asks was down.
DOWN = "HOLDFAST_GOLDEN_DOWN"


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    """Return the key of a row, and its number twice; rows of `c` need a service."""
    if row["key"] == "c" and os.environ.get(DOWN):
        raise RuntimeError("the service is down")
    return {"key": row["key"], "number": 2 * row["number"]}


def halved(row: dict[str, Any]) -> dict[str, Any]:
    """Return the key of a row, and half its number."""
    return {"key": row["key"], "number": row["number"] // 2}


def counted(window: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many rows a window has."""
    return {"n": len(rows)}
