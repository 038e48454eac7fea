"""What tests of deliveries are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.deliver.stage import Stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage with an empty quiver."""
    stage = Stage(monkeypatch)
    yield stage
    stage.close()
