"""Sizes and durations as people write them: `32MB`, `25ms`, `72h`, or plain numbers.

Sizes are powers of 1024, as in the rest of Holdfast (`KiB` and `KB` mean the same); a plain number
counts bytes, or seconds. Types of settings made of them are in settings/units.py: tools that read
an option need no pydantic.
"""

from __future__ import annotations

import math
import re
from typing import TypeVar

Number = TypeVar("Number", int, float)

_NUMBER = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)"
_SIZE_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DURATION_UNITS_S = {
    "": 1.0,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def parse_size_bytes(value: object) -> int:
    """Return bytes from `32MB`, `32MiB` or 33554432."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _not_negative(value, "a size")
    found = re.fullmatch(_NUMBER, value.strip()) if isinstance(value, str) else None
    unit = found["unit"].lower() if found else ""
    if len(unit) > 1:
        unit = unit.removesuffix("ib").removesuffix("b")
    if found is None or unit not in _SIZE_UNITS:
        raise ValueError(f"{value!r} is not a size; write bytes, or a number with KB, MB, GB or TB")
    return math.floor(float(found["number"]) * _SIZE_UNITS[unit])


def size_text(size_bytes: int) -> str:
    """Return a size as people write it, if it is a round one."""
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} bytes"


def parse_duration_s(value: object) -> float:
    """Return seconds from `25ms`, `10s`, `5m`, `72h`, `3d` or a plain number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _not_negative(float(value), "a duration")
    found = re.fullmatch(_NUMBER, value.strip()) if isinstance(value, str) else None
    if found is None or found["unit"].lower() not in _DURATION_UNITS_S:
        raise ValueError(f"{value!r} is not a duration; write a number with ms, s, m, h or d")
    return float(found["number"]) * _DURATION_UNITS_S[found["unit"].lower()]


def written_size(size_bytes: int) -> int | str:
    """Return a size as a file has it: `256MB`, or the bytes if they are not round."""
    for unit, factor in (("TB", 2**40), ("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return size_bytes


def written_duration(duration_s: float) -> float | str:
    """Return a duration as a file has it: `14d`, or the seconds if no short text is exact.

    What `print-config` prints is read again, so the text must mean the very same number: it is
    parsed to see. `1.5h` is never written, since 90m says the same.
    """
    if not duration_s:
        return "0s"
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 1e-3)):
        text = f"{duration_s / factor:g}{unit}"
        is_whole = duration_s >= factor and text[: -len(unit)].isdigit()
        if is_whole and parse_duration_s(text) == duration_s:
            return text
    return duration_s


def _not_negative(value: Number, what: str) -> Number:
    if not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not {what}; it must not be negative")
    return value
