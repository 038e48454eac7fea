"""Paths of this machine: `s3://bucket/x` is no such path, though any system would make it one."""

from __future__ import annotations

import re
from pathlib import PurePath

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{2,}")

# What pathlib makes of an address, `/here/s3:/bucket/x`. A folder may be called `c:`, so these are
# the schemes of object stores and file systems alone.
_FLATTENED = re.compile(
    r"(?:^|/)((?:s3[an]?|gs|abfss?|wasbs?|(?:web)?hdfs|dbfs|https?|file):/)(.*)"
)


def problem_of(path: str | PurePath) -> str | None:
    """Say why a text or path cannot be a folder or file here; None if it can."""
    if isinstance(path, PurePath):
        flattened = _FLATTENED.search(str(path))
        path = str(path) if flattened is None else f"{flattened[1]}/{flattened[2]}"
    found = _SCHEME.match(path)
    if found is None:
        return None
    plain = path[found.end() - 1 :] if found[1].lower() == "file" else "a path"
    return (
        f"{path!r} is an address, and only folders of this machine will do here; "
        f"write {plain} without `{found[0]}`"
    )
