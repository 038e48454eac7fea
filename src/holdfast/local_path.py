"""Paths of this machine: `s3://bucket/x` is no such path, though any system would make it one."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{2,}")


def problem_of(path: str) -> str | None:
    """Say why a text cannot be the path of a folder or file here; None if it can."""
    found = _SCHEME.match(path)
    if found is None:
        return None
    plain = path[found.end() - 1 :] if found[1].lower() == "file" else "a path"
    return (
        f"{path!r} is an address, and only folders of this machine will do here; "
        f"write {plain} without `{found[0]}`"
    )
