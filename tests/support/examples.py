"""How many examples a property tries that cannot afford as many as hypothesis tries by itself."""

from __future__ import annotations

from hypothesis import settings

# What `make test-all` tries of a property that names no number (tests/conftest.py).
USUAL = 100
# Fewer than this would hardly be a property.
LEAST = 4


def examples(most: int) -> int:
    """Return `most` where slow tests run too, and the same share of it as of others elsewhere."""
    return max(LEAST, min(most, most * settings().max_examples // USUAL))
