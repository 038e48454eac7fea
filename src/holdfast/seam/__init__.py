"""The seam: disk, clock and randomness, each with a real and a faulty implementation.

Everything that writes (quiver, store, handoff) reaches the outside world only through here, so a
test can fail any call, forget what was not synced, or turn back the clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from holdfast.seam.clock import Clock, RealClock
from holdfast.seam.disk import Disk, RealDisk
from holdfast.seam.randomness import system_randomness


@dataclass(frozen=True)
class Seam:
    """The outside world as one thing to hand around."""

    disk: Disk = field(default_factory=RealDisk)
    clock: Clock = field(default_factory=RealClock)
    randomness: random.Random = field(default_factory=system_randomness)
