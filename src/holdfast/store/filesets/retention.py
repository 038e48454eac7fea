"""Which commits of a series are kept: the newest ones, and one of each day, week, month, year."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.store.filesets.commits import PUT_SINK, Commit


class KeepPolicy(NamedTuple):
    """How many are kept of each kind; one commit may count for several kinds."""

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0


_PERIODS: tuple[Callable[[datetime], tuple[int, ...]], ...] = (
    lambda time: (time.year, time.month, time.day),
    lambda time: tuple(time.isocalendar())[:2],
    lambda time: (time.year, time.month),
    lambda time: (time.year,),
)


def series_of(commits: Iterable[Commit]) -> dict[bytes, list[Commit]]:
    """Return commits by what they are versions of: a folder, or names up to the last slash."""
    found: dict[bytes, list[Commit]] = {}
    for commit in commits:
        above = b"/" + commit.name.rpartition("/")[0].encode()
        found.setdefault(commit.batch_records.get(PUT_SINK, above), []).append(commit)
    return found


def kept_of(series: Sequence[Commit], policy: KeepPolicy) -> list[str]:
    """Return the names of those that are kept, the newest first.

    Of each period the newest is kept, so that what is kept today is not what goes tomorrow: a day
    that is over keeps its last commit for as long as the day counts.
    """
    newest = sorted(series, key=lambda commit: (commit.created_ns, commit.id), reverse=True)
    kept = {commit.id for commit in newest[: policy.last]}
    for period, count in zip(_PERIODS, policy[1:], strict=True):
        met: set[tuple[int, ...]] = set()
        for commit in newest:
            time = datetime.fromtimestamp(commit.created_ns / 1e9, UTC)
            if period(time) not in met and len(met) < count:
                met.add(period(time))
                kept.add(commit.id)
    return [commit.name for commit in newest if commit.id in kept]
