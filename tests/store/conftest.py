"""Servers that tests of the store share: one of each for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.store.postgres import postgres_server
from tests.store.variables import in_environment

from holdfast.prove.store import BUCKET, running_s3


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of an empty bucket; each test works below a prefix of its own."""
    log = tmp_path_factory.mktemp("s3") / "server.log"
    with running_s3(log) as variables, in_environment(variables):
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The url of a PostgreSQL server; `tests.store.postgres.schema` gives a test its own tables."""
    with postgres_server() as url:
        yield url
