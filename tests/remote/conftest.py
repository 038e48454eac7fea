"""What tests of the Flight server are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.serving import Served, serving

from holdfast.remote import RemoteQuiver


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A quiver that is served without a reading process of its own."""
    with serving(tmp_path / "quiver") as served:
        yield served


@pytest.fixture
def remote(served: Served) -> RemoteQuiver:
    """A client of it."""
    return served.connect()
