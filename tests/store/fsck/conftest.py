"""A filled store, with SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.fsck.stage import Damaged, filled_store


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    with filled_store(tmp_path) as store:
        yield store
