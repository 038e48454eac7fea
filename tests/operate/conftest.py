"""A backend for the tests of running gateways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.backend import HttpBackend


@pytest.fixture
def backend() -> Iterator[HttpBackend]:
    server = HttpBackend()
    yield server
    server.close()
