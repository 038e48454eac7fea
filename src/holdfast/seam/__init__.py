"""The seam: disk, buckets, clock and randomness, each with a real and a faulty implementation.

Everything that writes (quiver, store, handoff) reaches the outside world only through here, so a
test can fail any call, forget what was not synced, or turn back the clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.seam.bucket import OpenBucket, open_bucket
from holdfast.seam.clock import Clock, RealClock
from holdfast.seam.disk import Disk, RealDisk
from holdfast.seam.randomness import system_randomness


def _go_on(point: str) -> None:
    """Let the process live: what happens at a named point outside of a test or a proof."""


@dataclass(frozen=True)
class Seam:
    """The outside world as one thing to hand around."""

    disk: Disk = field(default_factory=RealDisk)
    clock: Clock = field(default_factory=RealClock)
    randomness: random.Random = field(default_factory=system_randomness)
    # Called at named moments between two effects that are not disk calls, such as "the backend has
    # answered, the outcome is not written yet": where a proof kills the process.
    reached: Callable[[str], None] = _go_on
    open_bucket: OpenBucket = open_bucket
