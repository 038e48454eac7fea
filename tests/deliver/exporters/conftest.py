"""Backends and certificates for the tests of exporters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.deliver.exporters.backend import Backend
from tests.support.certificates import Certificates, make_certificates


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend() as started:
        yield started


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))
