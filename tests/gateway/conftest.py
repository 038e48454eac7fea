"""What end-to-end tests are given: a gateway and backends that do not outlive the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.processes import Backend, Gateway

MakeGateway = Callable[..., Gateway]
MakeBackend = Callable[..., Backend]


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


@pytest.fixture
def make_backend(tmp_path: Path, processes: ExitStack) -> MakeBackend:
    def make(name: str = "backend") -> Backend:
        backend = Backend(tmp_path, name)
        processes.callback(backend.kill)
        return backend

    return make


@pytest.fixture
def make_gateway(tmp_path: Path, processes: ExitStack) -> MakeGateway:
    """Start a gateway with the exporters of a test, or other nodes."""

    def make(nodes: dict[str, Any], **settings: Any) -> Gateway:
        gateway = Gateway(tmp_path, nodes, **settings)
        processes.callback(gateway.kill)
        gateway.start()
        return gateway

    return make
