"""A real store in a folder, with SQLite, and a job to write under."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.filesets.memory import CHUNKING

from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = StoreSettings(chunking=CHUNKING)
    with Store.create(str(tmp_path / "store"), settings=settings) as opened:
        yield opened


@pytest.fixture
def job(store: Store) -> Iterator[Job]:
    with store.references.open_job("test") as opened:
        yield opened


@pytest.fixture
def commits(store: Store) -> Commits:
    return Commits(store)
