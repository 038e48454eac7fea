"""Databases that tests of the collector run on: the same tests on both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.gc.stage import Stage, staged
from tests.store.postgres import schema


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/gc.sqlite"
    else:
        with schema(request.getfixturevalue("postgres_url")) as url:
            yield url


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    """An empty store with each kind of database."""
    with staged(database_url) as opened:
        yield opened
