"""What a pipeline says about event time."""

from __future__ import annotations

from typing import Literal

from holdfast.settings import DurationS, Settings


class WatermarkSettings(Settings):
    """How far the watermark follows the events, and what holds it."""

    max_delay: DurationS = 10.0
    """How much older than the newest event another may be, and still be in time."""

    idle_after: DurationS = 5.0
    """A gateway that has accepted nothing for this long and has nothing waiting is idle."""

    max_hold: DurationS = 600.0
    """How long a row that is retried holds the watermark, from its first failure on."""

    unreachable: Literal["hold", "release"] = "hold"
    """A gateway that does not answer holds the watermark, or is left out of it (and counted)."""

    @property
    def max_delay_us(self) -> int:
        """`max_delay` in the unit of event times."""
        return int(self.max_delay * 1_000_000)
