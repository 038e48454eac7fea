"""Randomness: from the operating system, or from a seed that a test can repeat."""

from __future__ import annotations

import random
import uuid


def system_randomness() -> random.Random:
    """Return randomness nobody can guess or repeat."""
    return random.SystemRandom()


def seeded_randomness(seed: int) -> random.Random:
    """Return randomness that is the same in every run with this seed."""
    return random.Random(seed)


def random_uuid(randomness: random.Random) -> str:
    """Return a version-4 UUID drawn from `randomness`."""
    return str(uuid.UUID(bytes=randomness.randbytes(16), version=4))
