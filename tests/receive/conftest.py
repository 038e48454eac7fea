"""A quiver with dead letters for every test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.receive.harness import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()
