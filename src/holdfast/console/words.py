"""Figures as people read them; the pages and what is sent to open pages use the same words."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.seam.names import name_bytes

KB = 1024
MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0
# From here on, digits behind the point are noise.
WHOLE_FROM = 100
# What stands where there is nothing to say.
NOTHING = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Return a count: `12,304`."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(per_s: float | None) -> str:
    """Return events per second: `0/s`, `3.5/s`, `1,204/s`."""
    if per_s is None:
        return NOTHING
    return f"{per_s:.1f}/s" if 0 < per_s < WHOLE_FROM else f"{per_s:,.0f}/s"


def size(size_bytes: float | None) -> str:
    """Return bytes in powers of 1024, as settings are written."""
    if size_bytes is None:
        return NOTHING
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < KB:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= KB
    return f"{amount:.1f} TB"


def age(seconds: float | None) -> str:
    """Return a duration with one or two units: `0.4 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    if seconds is None:
        return NOTHING
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    if seconds < HOUR_S:
        return f"{seconds // MINUTE_S:.0f} min"
    if seconds < DAY_S:
        return f"{seconds // HOUR_S:.0f} h {seconds % HOUR_S // MINUTE_S:.0f} min"
    return f"{seconds // DAY_S:.0f} d {seconds % DAY_S // HOUR_S:.0f} h"


def moment(time_ns: int | None) -> str:
    """Return a timestamp in UTC, to the millisecond."""
    if not time_ns:
        return NOTHING
    when = datetime.fromtimestamp(time_ns // 1_000_000 / 1000, tz=UTC)
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number of things: `1 event`, `2 events`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def spelled(path: str) -> str:
    """Return a path of a store; bytes of it that are not UTF-8 are spelled: `caf\\xe9`."""
    return name_bytes(path).decode("utf-8", "backslashreplace")


def plain(word: str) -> str:
    """Return a word of ours without its underscores: `backing off`."""
    return word.replace("_", " ")
