"""Tells in the log what destinations lost at their limits, or by damage, while it happens.

The ledger has every single loss, and the metrics their number; the log says that there are any to
look for, at most once per minute and destination.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from pathlib import PurePath

from holdfast.deliver.news import LogPace

log = logging.getLogger("holdfast.graph")


class Losses:
    """Compares what destinations lost ever with what was told of it."""

    def __init__(self) -> None:
        self._told: dict[Hashable, Mapping[str, int]] = {}
        self._paces: dict[Hashable, LogPace] = {}

    def look(
        self,
        which: Hashable,
        destination: str,
        lost_events: Mapping[str, int],
        quiver: PurePath,
        now_s: float,
    ) -> None:
        """Tell what is new; what was lost before the first look is not."""
        told = self._told.setdefault(which, lost_events)
        new = {why: count - told.get(why, 0) for why, count in lost_events.items()}
        if not any(new.values()) or not self._paces.setdefault(which, LogPace()).lets_through(
            now_s
        ):
            return
        self._told[which] = lost_events
        log.warning(
            "%s: lost %d events: %s; see `holdfast quiver ledger %s --subscriber %s`",
            destination,
            sum(new.values()),
            ", ".join(f"{count} {why}" for why, count in new.items() if count),
            quiver,
            destination,
            extra={"destination": destination},
        )
