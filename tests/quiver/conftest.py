"""What tests of the quiver are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.quiver.machine import Machine
from tests.readers.setting import StillMachine


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine with an empty disk; whatever runs on it in the end is killed."""
    with Machine() as machine:
        yield machine


@pytest.fixture
def still() -> Iterator[StillMachine]:
    """A machine with an empty disk on which housekeeping happens when a test asks for it."""
    with StillMachine() as machine:
        yield machine
