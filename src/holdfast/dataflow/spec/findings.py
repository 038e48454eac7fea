"""What is wrong with a pipeline, or odd, and where in its tree; whoever read a file has lines."""

from __future__ import annotations

from typing import Literal, NamedTuple

TreePath = tuple[str | int, ...]


class Finding(NamedTuple):
    """One thing; the path begins at the pipeline."""

    path: TreePath
    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"
    # Whether the key is meant, and not its value.
    at_key: bool = False
