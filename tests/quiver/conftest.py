"""What tests of the quiver are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.quiver.machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine with an empty disk; whatever runs on it in the end is killed."""
    with Machine() as machine:
        yield machine
