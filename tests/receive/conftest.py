"""What tests of the receiver are given: a quiver with dead letters, and time for heavy events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.receive.harness import Place

from holdfast.receive import child


@pytest.fixture(autouse=True)
def time_for_heavy_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting the child that checks them takes half a minute where everything else runs too."""
    monkeypatch.setattr(child, "CHECK_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()
